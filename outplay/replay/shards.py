"""A replay buffer sharded over actors: each stores the steps of some EnvGroups and samples its part of a minibatch."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from outplay.engine import api as engine
from outplay.engine.base import Ref
from outplay.engine.remote import ActorHandle, remote
from outplay.errors import ActorDiedError, RunError
from outplay.fragments import Fragment
from outplay.replay.priorities import ReplaySpec, relative
from outplay.replay.ring import Sample, Segment, drawable

Array = np.ndarray

_MOST_TOLD = 32
_BY_GROUP = ("added", "kept", "oldest", "next")  # counters per EnvGroup


class ReplayShard:
    """An actor with a Replay of some EnvGroups."""

    def __init__(self, spec: ReplaySpec, groups: dict[int, int]) -> None:
        self.replay = spec.make(groups)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.replay, method)(*arguments)

    def part(self, *arguments: Any) -> tuple[Sample, float]:
        """As `Replay.part`, with the sum of all priorities."""
        return self.replay.part(*arguments), self.replay.holdings()[1]

    def remember(self) -> None:
        self.replay.remember()

    def take_back(self) -> None:
        self.replay.undo.all()

    def names(self, known: Container[str]) -> list[str]:
        return list(self.replay.segments(known))


class ShardedReplay:
    """A `Replay` over several actors: EnvGroup g is stored in shard g % n.

    >>> replay = ShardedReplay(spec, groups={0: 8, 1: 8}, number=2)

    Of each minibatch, a shard samples a part in proportion to its number of steps, or the sum of their priorities. So
    sampling probabilities and importance weights are those of one buffer. The next minibatch is requested while the
    learner uses the present one. Results do not depend on timing: calls reach an actor in the order in which they were
    made.
    """

    def __init__(self, spec: ReplaySpec, groups: Mapping[int, int], number: int) -> None:
        self._spec = spec
        self._sizes = dict(groups)
        self._added = dict.fromkeys(groups, 0)
        self._first = dict.fromkeys(groups, 0)  # the oldest step loaded from a checkpoint
        shares = [{g: size for g, size in groups.items() if g % number == i} for i in range(number)]
        lanes = sum(groups.values())
        self._shards: list[ActorHandle] = []
        self._slots: dict[int, int] = {}
        for share in shares:
            size = sum(share.values())
            capacity = -(-spec.capacity * size // lanes)
            self._shards.append(remote(ReplayShard).remote(replace(spec, capacity=capacity), share))
            self._slots |= dict.fromkeys(share, -(-capacity // size))
        self._told: deque[Ref] = deque()

    def _shard_of(self, group: int) -> ActorHandle:
        return self._shards[group % len(self._shards)]

    @property
    def steps(self) -> int:
        return sum(size * min(self._added[g] - self._first[g], self._slots[g]) for g, size in self._sizes.items())

    @property
    def is_ready(self) -> bool:
        groups = list(self._added)
        first, added, slots = (np.array([of[g] for g in groups]) for of in (self._first, self._added, self._slots))
        _, oldest, newest = drawable(first, added, slots, self._spec.stack, self._spec.span)
        # Of so many steps, at least one has a recurrent state.
        enough = 1 if self._spec.recurrence is None else self._spec.recurrence.length
        return bool((newest - oldest >= enough).any())

    def remember(self) -> Callable[[], None]:
        """As `Replay.remember`. Calls reach an actor in order, so pending ones are undone, too."""
        added, first = dict(self._added), dict(self._first)
        self._told.extend(shard.remember.remote() for shard in self._shards)

        def back() -> None:
            self._told.clear()
            self._added, self._first = dict(added), dict(first)
            for done in [shard.take_back.remote() for shard in self._shards]:
                _result(done)

        return back

    def add(self, fragment: Fragment, rewards: Array | None = None, over: Array | None = None) -> None:
        self._tell(self._shard_of(fragment.group), "add", fragment, rewards, over)
        self._added[fragment.group] += len(fragment.rewards)

    def draw(self, number: int, rngs: Iterable[np.random.Generator], beta: float = 1.0) -> Iterator[Sample]:
        steps, masses = 0, np.zeros(len(self._shards))
        asked: deque[dict[int, Ref]] = deque()
        for rng in rngs:
            if not steps:
                held = [_result(call) for call in [_call(shard, "holdings") for shard in self._shards]]
                steps, masses[:] = sum(count for count, _ in held), [mass for _, mass in held]
            asked.append(self._ask(number, rng, beta, steps, masses))
            if len(asked) > 1:
                yield self._received(asked.popleft(), masses)
        if asked:
            yield self._received(asked.popleft(), masses)

    def blocks(
        self, number: int, rngs: Iterable[np.random.Generator], beta: float = 1.0
    ) -> Iterator[tuple[Sample, int]]:
        """As those of `Replay`, with one minibatch in each."""
        return ((drawn, 1) for drawn in self.draw(number, rngs, beta))

    def _ask(self, number: int, rng: np.random.Generator, beta: float, steps: int, masses: Array) -> dict[int, Ref]:
        """Request a minibatch: the number of rows from each shard is drawn by stratified sampling."""
        up_to = masses.cumsum()
        points = (np.arange(number) + rng.random(number)) / number * up_to[-1]
        shards = np.searchsorted(up_to, np.minimum(points, np.nextafter(up_to[-1], 0)), "right")
        counts, shares, streams = np.bincount(shards), masses / up_to[-1], rng.spawn(len(masses))
        return {
            shard: self._shards[shard].part.remote(int(counts[shard]), streams[shard], beta, shares[shard], steps)
            for shard in np.flatnonzero(counts).tolist()
        }

    def _received(self, parts: dict[int, Ref], masses: Array) -> Sample:
        """Join the parts of a minibatch, and update `masses`: the sum of priorities in each shard."""
        drawn = []
        for shard, ref in parts.items():
            part, masses[shard] = _result(ref)
            drawn.append(replace(part, places=part.places * len(self._shards) + shard))
        return relative(joined(drawn))

    def update(self, places: Array, errors: Array) -> None:
        number = len(self._shards)
        for shard in np.unique(places % number).tolist():
            own = places % number == shard
            self._tell(self._shards[shard], "update", places[own] // number, errors[own])

    def _tell(self, shard: ActorHandle, method: str, *arguments: Any) -> None:
        """A call whose result matters only if it fails. If many are pending, wait for the first."""
        self._told.append(_call(shard, method, *arguments))
        if len(self._told) > _MOST_TOLD:
            _result(self._told.popleft())

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        while self._told:
            _result(self._told.popleft())
        found = [_result(_call(shard, "state")) for shard in self._shards]
        by_group = {name: {g: n for state, _ in found for g, n in state[name].items()} for name in _BY_GROUP}
        highest = [state["highest"] for state, _ in found]
        arrays = {name: array for _, part in found for name, array in part.items()}
        return {**by_group, "highest": max(highest), "highests": highest}, arrays

    def segments(self, known: Container[str]) -> dict[str, Callable[[], dict[str, Array]]]:
        return {
            name: functools.partial(_read, shard, name)
            for shard in self._shards
            for name in _result(shard.names.remote(known))
        }

    def load(self, state: dict[str, Any], arrays: Mapping[str, Array]) -> None:
        self._added = {group: int(state["added"][str(group)]) for group in self._added}
        self._first = {group: int(state["kept"][str(group)]) for group in self._added}
        highests = state.get("highests", [])
        for i, shard in enumerate(self._shards):
            highest = highests[i] if len(highests) == len(self._shards) else state["highest"]
            _result(_call(shard, "load", {**state, "highest": highest}, dict(arrays)))

    def write(self, name: str, arrays: dict[str, Array]) -> None:
        _result(_call(self._shard_of(Segment.named(name).group), "write", name, arrays))


def joined(parts: list[Sample]) -> Sample:
    """Concatenate the parts of a minibatch."""
    if len(parts) == 1:
        return parts[0]

    def together(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], tuple):
            return tuple(np.concatenate(leaves) for leaves in zip(*values, strict=True))
        return np.concatenate(values)

    return type(parts[0])(**{field.name: together(field.name) for field in fields(parts[0])})


def _call(shard: ActorHandle, method: str, *arguments: Any) -> Ref:
    called: Ref = shard.call.remote(method, *arguments)
    return called


def _read(shard: ActorHandle, name: str) -> dict[str, Array]:
    arrays: dict[str, Array] = _result(_call(shard, "read", name))
    return arrays


def _result(ref: Ref) -> Any:
    try:
        return engine.get(ref)
    except ActorDiedError as error:
        raise RunError(
            f"a replay actor died, and what it kept is lost: {error}; resume the run from its last checkpoint"
        ) from error
