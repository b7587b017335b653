"""Prioritized experience replay (Schaul et al. 2016): steps are sampled in proportion to their TD error."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outplay.fragments import Fragment
from outplay.replay.ring import Replay, Sample, Segment
from outplay.replay.sequences import Recurrence
from outplay.spaces import Leaf

Array = np.ndarray

_LEAST_PRIORITY = 1e-6
_SHARE_OF_MAX = 0.9  # η of R2D2: the priority of a sequence is η · max + (1 − η) · mean of its TD errors
_BLOCK, _FEW_BLOCKS = 16, 4096  # measured


class SumTree:
    """A sum tree over an array of priorities, vectorised.

    >>> tree = SumTree(4)
    >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
    >>> tree.find(np.array([0.5, 1.5, 3.9]))
    array([0, 2, 2])

    Nodes have 16 children, up to a last level that is summed as a whole: a wide tree takes numpy fewer calls than a
    binary one. Sums depend on the present priorities alone, not on the order of updates.
    """

    def __init__(self, size: int) -> None:
        self._numbers: list[Array] = []  # by level: the priorities, then the sums of their blocks, and so on
        self._running: list[Array] = []  # by level, (blocks, 16): cumulative sums within each block
        blocks = size
        while not self._running or blocks > _FEW_BLOCKS:
            blocks = -(-blocks // _BLOCK)
            self._numbers.append(np.zeros(blocks * _BLOCK))
            self._running.append(np.zeros((blocks, _BLOCK)))
        self._numbers.append(np.zeros(blocks))
        self._top = np.zeros(blocks + 1)  # cumulative sums of the last level, starting with 0

    @property
    def total(self) -> float:
        return float(self._top[-1])

    def __getitem__(self, places: Array) -> Array:
        values: Array = self._numbers[0][places]
        return values

    def set(self, places: Array, values: Array) -> None:
        """Set priorities. If an index occurs twice, its last value counts."""
        self._numbers[0][places] = values
        blocks = places
        for level, running in enumerate(self._running):
            blocks = blocks // _BLOCK
            if len(blocks) > 1:  # most equal blocks are neighbours; the others are summed twice
                first = np.ones(len(blocks), bool)
                np.not_equal(blocks[1:], blocks[:-1], out=first[1:])
                blocks = blocks[first]
            sums = self._numbers[level].reshape(-1, _BLOCK)[blocks].cumsum(1)
            running[blocks] = sums
            self._numbers[level + 1][blocks] = sums[:, -1]
        np.cumsum(self._numbers[-1], out=self._top[1:])

    def find(self, masses: Array) -> Array:
        """For each number in [0, total): the first index whose cumulative sum exceeds it."""
        # Rounding must not lead to an index with priority 0.
        masses = np.minimum(masses, np.nextafter(self._top[-1], 0))
        places: Array = np.searchsorted(self._top[1:], masses, side="right")
        masses = masses - self._top[places]
        for level in reversed(range(len(self._running))):
            sums = self._running[level][places]
            masses = np.minimum(masses, np.nextafter(sums[:, -1], 0))
            within = np.count_nonzero(sums <= masses[:, None], axis=1)
            places = places * _BLOCK + within
            if level:
                masses = masses - np.where(within > 0, sums[np.arange(len(sums)), within - 1], 0.0)
        return places


class PrioritizedReplay(Replay):
    """Samples transitions or sequences in proportion to priority^α. New ones get the highest priority so far.

    The priority of each is stored at the place of its first step.
    """

    def __init__(self, *arguments: Any, alpha: float = 0.6, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.alpha = alpha
        self.tree = SumTree(self.slots * self.lanes)

    def add(self, fragment: Fragment, rewards: Array | None = None, over: Array | None = None) -> None:
        lanes = self._lanes_of[fragment.group]
        lane = lanes.start  # all lanes of a group are at the same step
        known, gone = int(self.newest[lane]), int(self.oldest[lane])
        super().add(fragment, rewards, over)
        oldest, newest = int(self.oldest[lane]), int(self.newest[lane])
        # Steps that can no longer be sampled get priority 0; those that now can, the highest.
        old = self._places(lanes, np.arange(gone, oldest))
        new = self._places(lanes, self.starts(lanes, range(max(known, oldest), newest)))
        values = np.concatenate([np.zeros(len(old)), np.full(len(new), self.highest**self.alpha)])
        self._set_places(np.concatenate([old, new]), values)

    def _places(self, lanes: slice, times: Array) -> Array:
        slots = times % self.slots
        return (slots[:, None] * self.lanes + np.arange(lanes.start, lanes.stop)).ravel()

    def _set_places(self, places: Array, values: Array) -> None:
        if self.undo.is_on:
            self.undo.keep(functools.partial(self.tree.set, places, self.tree[places]))
        self.tree.set(places, values)

    def _set(self, lanes: slice, times: range, priorities: Array) -> None:
        if len(times):
            self.tree.set(self._places(lanes, np.arange(times.start, times.stop)), priorities)

    def holdings(self) -> tuple[int, float]:
        return len(self), self.tree.total

    @property
    def reads_ahead(self) -> bool:
        return False  # priorities change with each update

    def sample(self, number: int, rng: np.random.Generator, beta: float = 1.0) -> Sample:
        """Stratified sampling, with importance weights (1 / (steps · probability))^β, normalised by the largest."""
        return relative(self.part(number, rng, beta, 1.0, len(self)))

    def part(self, number: int, rng: np.random.Generator, beta: float, share: float, steps: int) -> Sample:
        masses = (np.arange(number) + rng.random(number)) / number * self.tree.total
        places = self.tree.find(masses)
        slots, lanes = places // self.lanes, places % self.lanes
        last = self.added[lanes] - 1
        chances = share * (self.tree[places] / self.tree.total)
        return self.starting_at(last - (last - slots) % self.slots, lanes, (steps * chances) ** -beta)

    def update(self, places: Array, errors: Array) -> None:
        """Set priorities to the absolute TD errors. If an index occurs twice, its last error counts.

        The rows of a sequence have the same index. Steps that can no longer be sampled keep priority 0.
        """
        if self.recurrence is not None:
            places, errors = _by_sequence(places, np.abs(errors))
        there = self.tree[places] > 0
        priorities = np.abs(errors[there]).astype(np.float64) + _LEAST_PRIORITY
        self.highest = max(self.highest, float(priorities.max(initial=0.0)))
        self._set_places(places[there], priorities**self.alpha)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        state, arrays = super().state()
        for group, lanes in self._lanes_of.items():
            times = np.arange(self.oldest[lanes.start], self.newest[lanes.start])
            arrays[f"priorities.{group}"] = self.tree[self._places(lanes, times)]
        return state, arrays

    def load(self, state: dict[str, Any], arrays: Mapping[str, Array]) -> None:
        super().load(state, arrays)
        for group, lanes in self._lanes_of.items():
            oldest, newest = int(self.oldest[lanes.start]), int(self.newest[lanes.start])
            saved, since = arrays.get(f"priorities.{group}", np.zeros(0)), int(state["oldest"][str(group)])
            until = min(newest, since + len(saved) // (lanes.stop - lanes.start))
            if self.recurrence is None:  # steps without a saved priority get the highest; see also `write`
                self._set(lanes, range(oldest, newest), np.array(self.highest**self.alpha))
            begin = max(oldest, since)
            rows = saved.reshape(-1, lanes.stop - lanes.start)[begin - since : until - since]
            self._set(lanes, range(begin, until), rows.ravel())

    def write(self, name: str, arrays: dict[str, Array]) -> None:
        """Where sequences start is known with the segments."""
        super().write(name, arrays)
        if self.recurrence is None:
            return
        segment = Segment.named(name)
        lanes = self._lanes_of[segment.group]
        oldest, newest = int(self.oldest[lanes.start]), int(self.newest[lanes.start])
        times = range(max(oldest, segment.begin), min(newest, segment.end))
        places = self._places(lanes, self.starts(lanes, times))
        places = places[self.tree[places] == 0]
        self.tree.set(places, np.array(self.highest**self.alpha))


def _by_sequence(places: Array, errors: Array) -> tuple[Array, Array]:
    """(places of the sequences, their priorities) from the absolute TD errors of their steps."""
    unique, sequence = np.unique(places, return_inverse=True)
    largest = np.zeros(len(unique))
    np.maximum.at(largest, sequence, errors)
    mean = np.bincount(sequence, errors) / np.bincount(sequence)
    return unique, _SHARE_OF_MAX * largest + (1 - _SHARE_OF_MAX) * mean


def relative(drawn: Sample) -> Sample:
    """With importance weights normalised by the largest."""
    return replace(drawn, weights=(drawn.weights / drawn.weights.max()).astype(np.float32))


@dataclass(frozen=True)
class ReplaySpec:
    """The settings of a replay buffer: what a process needs to make one."""

    leaves: tuple[Leaf, ...]
    capacity: int
    n_step: int = 1
    gamma: float = 0.99
    stack: int = 1
    alpha: float | None = None  # priority exponent; None: uniform sampling
    action_shape: tuple[int, ...] = ()
    num_actions: int | None = None  # of a Discrete space
    recurrence: Recurrence | None = None  # of a recurrent policy

    @property
    def span(self) -> int:
        """The number of steps that are needed after a sampled one."""
        return self.n_step if self.recurrence is None else self.recurrence.span

    def make(self, groups: Mapping[int, int]) -> Replay:
        settings = (self.capacity, self.n_step, self.gamma, self.stack, self.action_shape, self.recurrence)
        arguments = (self.leaves, groups, *settings)
        return Replay(*arguments) if self.alpha is None else PrioritizedReplay(*arguments, alpha=self.alpha)
