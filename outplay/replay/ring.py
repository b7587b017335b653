"""The replay buffer: experience in preallocated ring buffers.

Arrays have shape (T, N): T slots for each of N lanes; step number t of a lane is in slot t % T. The lanes of one
EnvGroup advance together; those of another may be ahead or behind. A step can be sampled if its next n steps are known
and the frames stacked with it are still in the buffer.

On disk, steps are stored in segments. A full segment never changes: it is written once, and later checkpoints link to
it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from outplay.fragments import Fragment
from outplay.replay.sequences import Recurrence, Sequences, sequences
from outplay.replay.transitions import Transitions
from outplay.replay.undo import Undo
from outplay.spaces import Leaf, Leaves

Array = np.ndarray
Kept = list[OrderedDict[int, Leaves]]  # for each lane, observations or states by step number

_SEGMENT_BYTES = 16_000_000
_AHEAD, _AHEAD_BYTES = 64, 4_000_000  # minibatches that are read at a time, and their observations
_NAME = re.compile(r"([0-9]{4,6})-([0-9]{10,15})-([0-9]{10,15})(-open)?")
_COLUMNS = ("actions", "rewards", "terminated", "truncated", "began")


Sample = Transitions | Sequences


class Segment(NamedTuple):
    """Steps `begin` to `end` of one EnvGroup. The newest segment is open: its last step may change."""

    group: int
    begin: int
    end: int
    is_open: bool

    @property
    def name(self) -> str:
        return f"{self.group:04d}-{self.begin:010d}-{self.end:010d}" + ("-open" if self.is_open else "")

    @classmethod
    def named(cls, name: str) -> Segment:
        if (match := _NAME.fullmatch(name)) is None:
            raise ValueError(f"replay/{name} is no segment's name")
        group, begin, end, is_open = match.groups()
        return cls(int(group), int(begin), int(end), bool(is_open))


def is_stacked(leaf: Leaf, stack: int) -> bool:
    """Whether a leaf is a stack of frames, of which only the newest is stored."""
    return stack > 1 and leaf.is_image and leaf.shape[0] == stack


def drawable(first: Array, added: Array, slots: int | Array, stack: int, span: int) -> tuple[Array, Array, Array]:
    """Step numbers per lane: the oldest step in the buffer; the range of steps that can be sampled, [oldest, newest).

    `added` is the number of steps added so far, `first` the oldest step that was loaded from a checkpoint. `span` is
    the number of steps that are needed after a sampled one.
    """
    kept = np.maximum(first, added - slots)
    oldest = np.where(kept > 0, np.minimum(kept + stack - 1, added), 0)
    return kept, oldest, np.maximum(oldest, added - span)


class Replay:
    """A replay buffer with uniform sampling.

    >>> replay = Replay(leaves, groups={0: 8, 1: 8}, capacity=100_000, n_step=3, gamma=0.99)
    >>> replay.add(fragment)
    >>> transitions = replay.sample(32, rng)

    `groups` maps the index of each EnvGroup to its number of lanes. With `stack`, image observations are stacks of that
    many frames, and each frame is stored once: 1,000,000 steps of Atari (84 × 84 × 4) take 7.1 GB. With `recurrence`,
    recurrent states are stored, too, and sequences are sampled that start where there is one.
    """

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        groups: Mapping[int, int],
        capacity: int,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int = 1,
        action_shape: tuple[int, ...] = (),
        recurrence: Recurrence | None = None,
    ) -> None:
        self.leaves = leaves
        self.lanes = sum(groups.values())
        self.slots = -(-capacity // self.lanes)
        self.n_step = n_step
        self.gamma = gamma
        self.stack = stack
        self.recurrence = recurrence
        self.span = n_step if recurrence is None else recurrence.span
        self.added = np.zeros(self.lanes, np.int64)  # steps added per lane
        self.first = np.zeros(self.lanes, np.int64)  # the oldest step loaded from a checkpoint
        self.highest = 1.0  # the highest priority so far, with prioritized replay
        self.undo = Undo()
        ends = np.cumsum(list(groups.values())).tolist()
        self._next = dict.fromkeys(groups, 0)  # by EnvGroup: the number of the next Fragment
        self._lanes_of = {g: slice(end - size, end) for (g, size), end in zip(groups.items(), ends, strict=True)}
        shape = (self.slots, self.lanes)
        self._stacked = [is_stacked(leaf, stack) for leaf in leaves]
        self.observations = tuple(
            np.zeros((*shape, *leaf.shape[stacked:]), leaf.dtype)
            for leaf, stacked in zip(leaves, self._stacked, strict=True)
        )
        # One of n actions is an integer; several numbers are floats, as the policy returns them.
        self.actions = np.zeros((*shape, *action_shape), np.float32 if action_shape else np.int64)
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape, bool)
        self.began = np.zeros(shape, np.int64)  # the first step of the episode
        # First observations of episodes, if frames are stacked; final observations of truncated episodes.
        self.firsts: Kept = [OrderedDict() for _ in range(self.lanes)]
        self.finals: Kept = [OrderedDict() for _ in range(self.lanes)]
        self.states: Kept = [OrderedDict() for _ in range(self.lanes)]  # recurrent states, where sequences can start
        self._kept = {"firsts": (self.firsts, len(leaves)), "finals": (self.finals, len(leaves))}
        if recurrence is not None:
            self._kept["states"] = (self.states, len(recurrence.initial))
        self.last = tuple(
            np.zeros((self.lanes, *leaf.shape), leaf.dtype) for leaf in leaves
        )  # the observation after the newest step
        self._count()

    def _count(self) -> None:
        """Update the range of steps that can be sampled: `oldest` (inclusive) to `newest` (exclusive)."""
        self.kept, self.oldest, self.newest = drawable(self.first, self.added, self.slots, self.stack, self.span)
        counts = self.newest - self.oldest
        if self.recurrence is not None:
            self._starts: list[Array] = []  # by lane
            for lanes in self._lanes_of.values():
                times = range(int(self.oldest[lanes.start]), int(self.newest[lanes.start]))
                self._starts += [self.starts(lanes, times)] * (lanes.stop - lanes.start)
            counts = np.array([len(times) for times in self._starts])
        self._up_to = np.cumsum(counts)

    def starts(self, lanes: slice, times: range) -> Array:
        """Those of the steps `times` of an EnvGroup at which a transition or a sequence can start."""
        if self.recurrence is None:
            return np.arange(times.start, times.stop)
        recorded = np.fromiter(self.states[lanes.start], np.int64)
        return recorded[(recorded >= times.start) & (recorded < times.stop)]

    @property
    def is_ready(self) -> bool:
        """Whether at least one transition or sequence can be sampled."""
        return len(self) > 0

    def __len__(self) -> int:
        """How many transitions or sequences can be sampled."""
        return int(self._up_to[-1])

    @property
    def steps(self) -> int:
        """How many steps are in the buffer."""
        return int((self.added - self.kept).sum())

    def add(self, fragment: Fragment, rewards: Array | None = None, over: Array | None = None) -> None:
        """Add a Fragment, overwriting the oldest steps. `rewards` and `over` (terminated) replace its own."""
        lanes, steps = self._lanes_of[fragment.group], len(fragment.rewards)
        assert steps + self.span + self.stack <= self.slots
        before = int(self.added[lanes.start])
        if self.undo.is_on:
            self._keep_for_undo(fragment.group, steps)
        times = np.arange(before, before + steps)
        starts = fragment.episode_start.copy()
        starts[0] |= self._seal(fragment, lanes, before)
        started = np.where(starts, times[:, None], -1)
        started[0] = np.maximum(started[0], self.began[(before - 1) % self.slots, lanes])
        columns = (
            fragment.actions,
            fragment.rewards if rewards is None else rewards,
            fragment.terminated if over is None else over,
            fragment.truncated,
            np.maximum.accumulate(started),
        )
        for begin, end in _pieces(before, before + steps, self.slots):
            slots, piece = (
                slice(begin % self.slots, begin % self.slots + end - begin),
                slice(begin - before, end - before),
            )
            for store, stacked, values in zip(self.observations, self._stacked, fragment.observations, strict=True):
                store[slots, lanes] = values[piece, :, -1] if stacked else values[piece]
            for name, column in zip(_COLUMNS, columns, strict=True):
                getattr(self, name)[slots, lanes] = column[piece]
        for step, lane in np.argwhere(starts).tolist() if self.stack > 1 else []:
            first = tuple(leaf[step, lane].copy() for leaf in fragment.observations)
            self.firsts[lanes.start + lane][before + step] = first
        for i, (step, lane) in enumerate(zip(fragment.final_steps, fragment.final_lanes, strict=True)):
            final = tuple(leaf[i].copy() for leaf in fragment.final_observations)
            self.finals[lanes.start + int(lane)][before + int(step)] = final
        for step, state in () if self.recurrence is None else self.recurrence.recorded(fragment):
            for lane in range(lanes.stop - lanes.start):
                self.states[lanes.start + lane][before + step] = tuple(array[lane].copy() for array in state)
        for kept_last, values in zip(self.last, fragment.last_observations, strict=True):
            kept_last[lanes] = values
        self.added[lanes] += steps
        self._next[fragment.group] = fragment.number + 1
        self._count()
        overwritten = before + steps - self.slots
        for by_lane, _ in self._kept.values() if overwritten > 0 else ():
            for kept in by_lane[lanes]:
                while kept and next(iter(kept)) < overwritten:
                    kept.popitem(last=False)

    def remember(self) -> Callable[[], None]:
        """A function that undoes all additions and priority updates from now on."""
        self.undo.begin()
        self.undo.keep(functools.partial(setattr, self, "highest", self.highest))
        return self.undo.all

    def _keep_for_undo(self, group: int, steps: int) -> None:
        """Save what the next Fragment, with this many steps, will overwrite."""
        lanes = self._lanes_of[group]
        added = int(self.added[lanes.start])
        slots = np.arange(added - 1, added + steps) % self.slots  # the last step, too: it may be sealed
        stores = (*self.observations, *(getattr(self, name) for name in _COLUMNS))
        self.undo.keep(self._count)  # done last
        self.undo.keep_parts([(store, (slots, lanes)) for store in stores])
        self.undo.keep_parts([(array, lanes) for array in (*self.last, self.added)])
        self.undo.keep(functools.partial(self._next.__setitem__, group, self._next[group]))
        for kept, _ in self._kept.values():
            self.undo.keep(functools.partial(kept.__setitem__, lanes, [by_step.copy() for by_step in kept[lanes]]))

    def _seal(self, fragment: Fragment, lanes: slice, before: int) -> Array:
        """Mark the last step as truncated where this Fragment does not continue it. Returns the lanes that start anew.

        That happens if environments were restarted, could not be rebuilt exactly, or a Fragment was lost in a failure.
        """
        slot = (before - 1) % self.slots
        elsewhere = np.full(lanes.stop - lanes.start, fragment.number != self._next[fragment.group])
        for last, seen in zip(self.last, fragment.observations, strict=True) if before > 0 else ():
            differs = last[lanes] != seen[0]
            if differs.any():
                elsewhere |= differs.reshape(len(elsewhere), -1).any(1)
        anew = fragment.episode_start[0] | elsewhere
        if not anew.any():
            return elsewhere
        open_ended = ~(self.terminated[slot, lanes] | self.truncated[slot, lanes]) & (before > self.first[lanes])
        for lane in (lanes.start + np.flatnonzero(open_ended & anew)).tolist():
            self.truncated[slot, lane] = True
            self.finals[lane][before - 1] = tuple(leaf[lane].copy() for leaf in self.last)
        return elsewhere

    # Sampling.

    def draw(self, number: int, rngs: Iterable[np.random.Generator], beta: float = 1.0) -> Iterator[Sample]:
        """One minibatch for each random generator."""
        for block, count in self.blocks(number, rngs, beta):
            if isinstance(block, Transitions) and count > 1:
                yield from (block.rows(slice(i * number, (i + 1) * number)) for i in range(count))
            else:
                yield block

    def blocks(
        self, number: int, rngs: Iterable[np.random.Generator], beta: float = 1.0
    ) -> Iterator[tuple[Sample, int]]:
        """The minibatches of `draw`, several in one sample, and how many they are. They are read at a time."""
        if not self.reads_ahead:
            for rng in rngs:
                yield self.sample(number, rng, beta), 1
            return
        left, ahead = iter(rngs), max(1, _AHEAD_BYTES // (number * self._transition_bytes))
        while chosen := list(itertools.islice(left, min(ahead, _AHEAD))):
            drawn = np.concatenate([rng.integers(0, len(self), number) for rng in chosen])
            yield self._starting(drawn), len(chosen)

    @property
    def reads_ahead(self) -> bool:
        """Whether minibatches do not depend on what is learned from those before."""
        return self.recurrence is None

    @functools.cached_property
    def _transition_bytes(self) -> int:
        return 2 * sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in self.leaves)

    def sample(self, number: int, rng: np.random.Generator, beta: float = 1.0) -> Sample:  # noqa: ARG002
        """Sample `number` transitions or sequences; `beta` matters with prioritized replay only."""
        return self._starting(rng.integers(0, len(self), number))

    def _starting(self, drawn: Array) -> Sample:
        """The transitions or sequences with these numbers, of 0 to `len(self)` − 1."""
        lanes = np.searchsorted(self._up_to, drawn, "right")
        back = self._up_to[lanes] - drawn  # counted from the newest
        if self.recurrence is None:
            times = self.newest[lanes] - back
        else:
            times = np.array([self._starts[lane][-n] for lane, n in zip(lanes, back, strict=True)])
        return self.starting_at(times, lanes, np.ones(len(drawn), np.float32))

    def holdings(self) -> tuple[int, float]:
        """(number of transitions or sequences, sum of their priorities); without priorities each counts 1."""
        return len(self), float(len(self))

    def part(self, number: int, rng: np.random.Generator, beta: float, share: float, steps: int) -> Sample:  # noqa: ARG002
        """The part of a minibatch that comes from this shard.

        `share` is this shard's share of the minibatch, `steps` the number of transitions or sequences in all shards.
        Importance weights are not normalised yet.
        """
        return self.sample(number, rng)

    def starting_at(self, times: Array, lanes: Array, weights: Array) -> Sample:
        """The transitions or sequences that start at these steps."""
        if self.recurrence is None:
            return self.transitions(times, lanes, weights)
        return sequences(self, self.recurrence, times, lanes, weights)

    def transitions(self, times: Array, lanes: Array, weights: Array) -> Transitions:
        """The transitions that start at these steps."""
        rows = self._rows(times, lanes)
        if self.n_step == 1:
            rewards, last, discount = self.rewards.take(rows), times, np.float32(self.gamma)
            terminated, truncated = self.terminated.take(rows), self.truncated.take(rows)
        else:
            ahead = self._rows(times[:, None] + np.arange(self.n_step), lanes[:, None])
            over, cut = self.terminated.take(ahead), self.truncated.take(ahead)
            counts = np.ones(ahead.shape, bool)
            counts[:, 1:] = ~np.logical_or.accumulate((over | cut)[:, :-1], 1)
            powers = (self.gamma ** np.arange(self.n_step)).astype(np.float32)
            rewards = (self.rewards.take(ahead) * counts * powers).sum(1, dtype=np.float32)
            taken = counts.sum(1)
            last, discount = times + taken - 1, self.gamma**taken
            ends = (np.arange(len(times)), taken - 1)
            terminated, truncated = over[ends], cut[ends]
        # After a termination any observation will do: its discount is 0. One gather for both, in one array.
        after = last + ~(terminated | truncated)
        seen = self.observations_at(np.concatenate([times, after]), np.concatenate([lanes, lanes]))
        observations, following = (
            tuple(leaf[part] for leaf in seen) for part in (slice(len(times)), slice(len(times), None))
        )
        for row in np.flatnonzero(truncated & ~terminated).tolist():
            for leaf, value in zip(following, self.finals[int(lanes[row])][int(last[row])], strict=True):
                leaf[row] = value
        return Transitions(
            observations,
            self.actions.take(rows)
            if self.actions.ndim == 2
            else self.actions.reshape(-1, *self.actions.shape[2:])[rows],
            rewards,
            following,
            (discount * ~terminated).astype(np.float32, copy=False),
            weights,
            rows,
        )

    def _rows(self, times: Array, lanes: Array) -> Array:
        """Flat indices of steps."""
        rows: Array = times % self.slots * self.lanes + lanes
        return rows

    def observations_at(self, times: Array, lanes: Array) -> Leaves:
        found = []
        rows = self._rows(times, lanes)
        for i, store in enumerate(self.observations):
            flat = store.reshape(-1, *store.shape[2:])
            if not self._stacked[i]:
                found.append(flat[rows])
                continue
            stacked = flat[self._rows(times[:, None] + np.arange(1 - self.stack, 1), lanes[:, None])]
            age = times - self.began.take(rows)
            for row in np.flatnonzero(age < self.stack - 1).tolist():  # with frames from before the episode
                first = self.firsts[int(lanes[row])][int(times[row] - age[row])][i]
                missing = self.stack - 1 - int(age[row])
                stacked[row, :missing] = first[self.stack - 1 - missing : self.stack - 1]
            found.append(stacked)
        return tuple(found)

    def update(self, places: Array, errors: Array) -> None:
        """Update priorities by TD errors; uniform sampling ignores them."""

    # Saving.

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """(what is written as JSON, arrays) beside the segments."""
        state: dict[str, Any] = {"highest": self.highest, "next": {str(g): n for g, n in self._next.items()}}
        for name in ("added", "kept", "oldest"):
            state[name] = {str(g): int(getattr(self, name)[at.start]) for g, at in self._lanes_of.items()}
        last = {f"last.{g}.{i}": leaf[at] for g, at in self._lanes_of.items() for i, leaf in enumerate(self.last)}
        return state, last

    def segments(self, known: Container[str]) -> dict[str, Callable[[], dict[str, Array]]]:
        """All stored steps as segments: by name, a function that reads one. `known` are on disk already.

        Segments on disk keep their names, even if their oldest steps have been overwritten here.
        """
        return {segment.name: functools.partial(self.read, segment.name) for segment in self._segments(known)}

    def _segments(self, known: Container[str]) -> list[Segment]:
        found = []
        length = self._segment_length
        for group, lanes in self._lanes_of.items():
            added = int(self.added[lanes.start])
            kept = int(self.kept[lanes.start])
            for begin in range(kept // length * length, added, length):
                whole = Segment(group, begin, min(begin + length, added), begin + length >= added)
                found.append(whole if begin >= kept or whole.name in known else whole._replace(begin=kept))
        return found

    @property
    def _segment_length(self) -> int:
        """In steps. The open segment, which is written with every checkpoint, is then at most a few megabytes."""
        step = sum(store.nbytes for store in self.observations) // self.slots
        return max(1, min(_SEGMENT_BYTES // max(1, step), self.slots))

    def read(self, name: str) -> dict[str, Array]:
        """The steps of a segment, as arrays."""
        segment = Segment.named(name)
        lanes = self._lanes_of[segment.group]
        slots = np.arange(segment.begin, segment.end) % self.slots
        stores = {f"observations.{i}": store for i, store in enumerate(self.observations)}
        stores |= {name: getattr(self, name) for name in _COLUMNS}
        arrays = {name: store[slots, lanes] for name, store in stores.items()}
        for name, (by_lane, parts) in self._kept.items():
            kept = by_lane[lanes]
            keys = [(t, lane) for lane, by_step in enumerate(kept) for t in by_step if segment.begin <= t < segment.end]
            arrays[f"{name}.keys"] = np.array(keys, np.int64).reshape(-1, 2)
            for i in range(parts if keys else 0):
                arrays[f"{name}.{i}"] = np.stack([kept[lane][t][i] for t, lane in keys])
        return arrays

    def load(self, state: dict[str, Any], arrays: Mapping[str, Array]) -> None:
        """Restore saved counters; `write` then restores the segments. Of a larger buffer the newest steps are kept."""
        self.highest = float(state["highest"])
        for group, lanes in self._lanes_of.items():
            self.added[lanes], self.first[lanes] = int(state["added"][str(group)]), int(state["kept"][str(group)])
            self._next[group] = int(state["next"][str(group)])
            for i, leaf in enumerate(self.last):
                leaf[lanes] = arrays[f"last.{group}.{i}"]
        self._count()

    def write(self, name: str, arrays: dict[str, Array]) -> None:
        """Restore the steps of a segment; older segments first."""
        segment = Segment.named(name)
        lanes = self._lanes_of[segment.group]
        begin = max(segment.begin, int(self.kept[lanes.start]))
        if begin >= segment.end:
            return
        slots, since = np.arange(begin, segment.end) % self.slots, begin - segment.begin
        for i, store in enumerate(self.observations):
            store[slots, lanes] = arrays[f"observations.{i}"][since:]
        for name in _COLUMNS:
            getattr(self, name)[slots, lanes] = arrays[name][since:]
        for name, (kept, parts) in self._kept.items():
            for row, (step, lane) in enumerate(arrays[f"{name}.keys"].tolist()):
                kept[lanes.start + lane][step] = tuple(arrays[f"{name}.{i}"][row].copy() for i in range(parts))
        self._count()


def _pieces(begin: int, end: int, slots: int) -> Iterable[tuple[int, int]]:
    """The range begin … end, split where the ring buffer wraps around."""
    while begin < end:
        edge = min(end, (begin // slots + 1) * slots)
        yield begin, edge
        begin = edge
