"""Prioritised replay: steps drawn in proportion to how wrong the learner was about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outplay.fragments import Fragment
from outplay.replay.ring import Replay, Transitions
from outplay.spaces import Leaf

Array = np.ndarray

_LEAST_PRIORITY = 1e-6


class SumTree:
    """Numbers at places, with their sum, and which place a part of the sum falls on: O(log n) each, for many at once.

    >>> tree = SumTree(4)
    >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
    >>> tree.find(np.array([0.5, 1.5, 3.9]))
    array([0, 2, 2])
    """

    def __init__(self, size: int) -> None:
        self.width = 1 << max(1, (size - 1).bit_length())
        self.nodes = np.zeros(2 * self.width)

    @property
    def total(self) -> float:
        return float(self.nodes[1])

    def __getitem__(self, places: Array) -> Array:
        values: Array = self.nodes[self.width + places]
        return values

    def set(self, places: Array, values: Array) -> None:
        """Of a place that stands twice, the last value holds."""
        nodes = self.width + places
        self.nodes[nodes] = values
        while len(nodes) and nodes[0] > 1:  # all of them are on one level
            nodes = nodes >> 1
            if len(nodes) > 1:  # those with the same parent stand side by side, mostly: others are summed up twice
                nodes = nodes[np.concatenate([[True], nodes[1:] != nodes[:-1]])]
            self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def find(self, masses: Array) -> Array:
        """The place where the sum up to it first exceeds each of these numbers in [0, total)."""
        masses, nodes = masses.copy(), np.ones(len(masses), np.int64)
        while nodes[0] < self.width:
            nodes *= 2
            left = self.nodes[nodes]
            # Rounding must not lead to where nothing is.
            right = (masses >= left) & (self.nodes[nodes + 1] > 0)
            masses -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self.width


class PrioritizedReplay(Replay):
    """Steps drawn in proportion to priority^α (Schaul et al. 2016). New steps have the highest priority so far."""

    def __init__(self, *arguments: Any, alpha: float = 0.6, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.alpha = alpha
        self.tree = SumTree(self.slots * self.lanes)

    def add(self, fragment: Fragment, rewards: Array | None = None, over: Array | None = None) -> None:
        lanes = self._lanes_of[fragment.group]
        lane = lanes.start  # they move on together
        known, gone = int(self.newest[lane]), int(self.oldest[lane])
        super().add(fragment, rewards, over)
        oldest, newest = int(self.oldest[lane]), int(self.newest[lane])
        # What can no longer be drawn, among it all that was overwritten; and what can be drawn from now on.
        old, new = self._places(lanes, range(gone, oldest)), self._places(lanes, range(max(known, oldest), newest))
        values = np.concatenate([np.zeros(len(old)), np.full(len(new), self.highest**self.alpha)])
        self.tree.set(np.concatenate([old, new]), values)

    def _places(self, lanes: slice, times: range) -> Array:
        slots = np.arange(times.start, times.stop) % self.slots
        return (slots[:, None] * self.lanes + np.arange(lanes.start, lanes.stop)).ravel()

    def _set(self, lanes: slice, times: range, priorities: Array) -> None:
        if len(times):
            self.tree.set(self._places(lanes, times), priorities)

    def sample(self, number: int, rng: np.random.Generator, beta: float = 1.0) -> Transitions:
        """One from each of `number` equal parts of the sum, weighted by (1 / (steps · chance))^β; the largest is 1."""
        masses = (np.arange(number) + rng.random(number)) / number * self.tree.total
        places = self.tree.find(masses)
        slots, lanes = places // self.lanes, places % self.lanes
        last = self.added[lanes] - 1
        chances = self.tree[places] / self.tree.total
        weights = (len(self) * chances) ** -beta
        return self.transitions(last - (last - slots) % self.slots, lanes, (weights / weights.max()).astype(np.float32))

    def update(self, places: Array, errors: Array) -> None:
        """New priorities: the size of the errors. If a place stands twice, its last one holds.

        What can no longer be drawn stays so, however late the errors come.
        """
        there = self.tree[places] > 0
        priorities = np.abs(errors[there]).astype(np.float64) + _LEAST_PRIORITY
        self.highest = max(self.highest, float(priorities.max(initial=0.0)))
        self.tree.set(places[there], priorities**self.alpha)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        state, arrays = super().state()
        for group, lanes in self._lanes_of.items():
            times = range(int(self.oldest[lanes.start]), int(self.newest[lanes.start]))
            arrays[f"priorities.{group}"] = self.tree[self._places(lanes, times)]
        return state, arrays

    def load(self, state: dict[str, Any], arrays: Mapping[str, Array]) -> None:
        super().load(state, arrays)
        for group, lanes in self._lanes_of.items():
            oldest, newest = int(self.oldest[lanes.start]), int(self.newest[lanes.start])
            saved, since = arrays.get(f"priorities.{group}", np.zeros(0)), int(state["oldest"][str(group)])
            until = min(newest, since + len(saved) // (lanes.stop - lanes.start))
            # Others have none yet: they were saved without, or could not be drawn then.
            self._set(lanes, range(oldest, newest), np.array(self.highest**self.alpha))
            begin = max(oldest, since)
            rows = saved.reshape(-1, lanes.stop - lanes.start)[begin - since : until - since]
            self._set(lanes, range(begin, until), rows.ravel())


@dataclass(frozen=True)
class ReplaySpec:
    """What a process needs to make a replay."""

    leaves: tuple[Leaf, ...]
    capacity: int
    n_step: int = 1
    gamma: float = 0.99
    stack: int = 1
    alpha: float | None = None  # of priorities; None: there are none

    def make(self, groups: Mapping[int, int]) -> Replay:
        arguments = (self.leaves, groups, self.capacity, self.n_step, self.gamma, self.stack)
        return Replay(*arguments) if self.alpha is None else PrioritizedReplay(*arguments, alpha=self.alpha)
