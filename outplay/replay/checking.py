"""Checks of a replay buffer from a checkpoint, before anything in it is used as a size or as an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from outplay.replay.priorities import ReplaySpec
from outplay.replay.ring import Segment, is_stacked
from outplay.schema import Counter, Part, check_array

Array = np.ndarray
_Priority = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ReplayState(Part):
    """The JSON part; dicts are by EnvGroup."""

    highest: _Priority
    highests: list[_Priority] = Field(default_factory=list)  # of the shards
    next: dict[str, Counter]
    added: dict[str, Counter]
    kept: dict[str, Counter]
    oldest: dict[str, Counter]


def check_counters(
    spec: ReplaySpec, groups: Mapping[int, int], state: ReplayState, arrays: Mapping[str, Array], names: Iterable[str]
) -> None:
    """Raise ValueError unless counters, arrays and the names of the segments fit together. `groups` are their sizes."""
    segments = sorted(Segment.named(name) for name in names)
    for group, lanes in groups.items():
        key = str(group)
        if not all(key in counters for counters in (state.next, state.added, state.kept, state.oldest)):
            raise ValueError(f"replay: no counters of EnvGroup {group}")
        added, kept, oldest = state.added[key], state.kept[key], state.oldest[key]
        if not kept <= oldest <= added:
            raise ValueError(f"replay: EnvGroup {group} keeps steps from {kept}, drawn from {oldest}, of {added}")
        for i, leaf in enumerate(spec.leaves):
            check_array(arrays, f"last.{group}.{i}", (lanes, *leaf.shape), leaf.dtype)
        _check_cover([segment for segment in segments if segment.group == group], group, kept, added)
        priorities = arrays.get(f"priorities.{group}")
        if priorities is not None:
            rows = priorities.size // lanes
            check_array(arrays, f"priorities.{group}", (rows * lanes,), np.dtype(np.float64))
            # Where no sequence starts, priorities are 0.
            positive = priorities > 0 if spec.recurrence is None else priorities >= 0
            if not (np.isfinite(priorities) & positive).all():
                raise ValueError(f"replay: priorities.{group} must be finite and more than 0")
    if unknown := [segment.name for segment in segments if segment.group not in groups]:
        raise ValueError(f"replay: the segment {unknown[0]} belongs to no EnvGroup")


def _check_cover(segments: list[Segment], group: int, kept: int, added: int) -> None:
    """All kept steps are in one segment each."""
    if not segments and kept == added:
        return
    gap = any(a.end != b.begin or a.is_open for a, b in pairwise(segments)) or any(s.begin >= s.end for s in segments)
    if gap or not segments or segments[0].begin > kept or segments[-1].end != added:
        raise ValueError(f"replay: the segments of EnvGroup {group} do not hold its steps from {kept} to {added}")


def check_segment(spec: ReplaySpec, lanes: int, name: str, arrays: Mapping[str, Array], before: Array | None) -> Array:
    """Raise ValueError unless this is a segment of an EnvGroup with so many lanes.

    `before` is where the episodes of the last step of the segment before began, (E,); returned is that of this one.
    """
    segment = Segment.named(name)
    steps = segment.end - segment.begin
    shape = (steps, lanes)
    for i, leaf in enumerate(spec.leaves):
        check_array(arrays, f"observations.{i}", (*shape, *leaf.shape[is_stacked(leaf, spec.stack) :]), leaf.dtype)
    check_array(arrays, "actions", (*shape, *spec.action_shape), np.dtype("f4" if spec.action_shape else "i8"))
    for column, dtype in _DTYPES.items():
        check_array(arrays, column, shape, np.dtype(dtype))
    actions, began = arrays["actions"], arrays["began"]
    if spec.num_actions is not None and not ((actions >= 0) & (actions < spec.num_actions)).all():
        raise ValueError(f"replay/{name}: an action is not one of {spec.num_actions}")
    if not np.isfinite(actions).all():
        raise ValueError(f"replay/{name}: an action is not finite")
    times = np.arange(segment.begin, segment.end)[:, None]
    earlier = began[:1] if before is None else before[None]
    starts = began == times
    follows = starts | (began == np.concatenate([earlier, began[:-1]]))
    if not (follows & (began >= 0) & (began <= times)).all():
        raise ValueError(f"replay/{name}: the beginnings of episodes do not follow from each other")
    seen = [(leaf.shape, leaf.dtype) for leaf in spec.leaves]
    _check_kept(name, arrays, "firsts", seen, starts if spec.stack > 1 else np.zeros(shape, bool))
    _check_kept(name, arrays, "finals", seen, arrays["truncated"] & ~arrays["terminated"])
    if spec.recurrence is not None:
        state = [(array.shape, array.dtype) for array in spec.recurrence.initial.values()]
        there = _check_kept(name, arrays, "states", state, np.zeros(shape, bool))
        if (there != there[:, :1]).any():
            raise ValueError(f"replay/{name}: states of some lanes are missing")
    last: Array = began[-1]
    return last


_DTYPES = {"rewards": np.float32, "terminated": bool, "truncated": bool, "began": np.int64}


def _check_kept(
    name: str,
    arrays: Mapping[str, Array],
    kind: str,
    parts: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
    needed: Array,
) -> Array:
    """What is kept apart has parts of these shapes. All `needed` steps (T, E) are there; returns which are."""
    segment = Segment.named(name)
    keys = arrays.get(f"{kind}.keys", np.zeros((0, 2)))
    check_array(arrays, f"{kind}.keys", (len(keys), 2), np.dtype(np.int64))
    at, lanes = keys[:, 0] - segment.begin, keys[:, 1]
    if ((at < 0) | (at >= len(needed)) | (lanes < 0) | (lanes >= needed.shape[1])).any():
        raise ValueError(f"replay/{name}: {kind} of a step that is not in it")
    there = np.zeros(needed.shape, bool)
    there[at, lanes] = True
    if (needed & ~there).any():
        raise ValueError(f"replay/{name}: {kind} are missing")
    for i, (shape, dtype) in enumerate(parts if len(keys) else ()):
        check_array(arrays, f"{kind}.{i}", (len(keys), *shape), dtype)
    return there
