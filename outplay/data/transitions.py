"""The columns of recorded experience: one row per environment step. Fragments as rows.

observation             the leaf of a plain space; of a Dict or Tuple space observation.KEY for every leaf
action                  as the environment got it
reward                  of the environment, neither scaled nor clipped
terminated, truncated
next_observation        after the step; of a truncated episode its final one. Where an episode terminated, nothing
                        follows: in the experience of a training run it repeats the observation
episode_id, step        a number for each episode; steps since its start
action_mask, next_action_mask    if the environment has action masks
action_logp, action_dist         log-probability of the action, and the parameters of its distribution: of
                                 policies that sample their actions from a distribution
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from outplay.data.columns import Array, Column, Rows
from outplay.errors import DataError
from outplay.fragments import Fragment
from outplay.spaces import Leaf, Leaves, joined

OBSERVATION, NEXT_OBSERVATION = "observation", "next_observation"
ACTION, REWARD, TERMINATED, TRUNCATED = "action", "reward", "terminated", "truncated"
EPISODE, STEP = "episode_id", "step"
MASK, NEXT_MASK = "action_mask", "next_action_mask"
LOGP, DIST = "action_logp", "action_dist"

_LANE_BITS, _EPISODE_BITS = 12, 24
_NARROW, NUMBERING = 1, 2  # how numbers of runs are made: before, and now


def leaf_columns(leaves: Sequence[Leaf], prefix: str = OBSERVATION) -> list[str]:
    """The column of each leaf of the observations.

    >>> leaf_columns(leaves(Dict({"a": Discrete(2), "b": Discrete(3)})))
    ['observation.a', 'observation.b']
    """
    return [prefix + "".join(f".{key}" for key in leaf.path) for leaf in leaves]


def rows_of(
    fragment: Fragment, leaves: Sequence[Leaf], env_actions: Array, complete: bool, log_probs: Array | None
) -> Rows:
    """The valid steps of a Fragment as rows, lane by lane. `env_actions` (T, E, …) are the environment's actions.

    `complete`: the Fragment consists of whole episodes. `log_probs` (T, E): of the actions; then the parameters of
    their distribution are recorded, too.
    """
    episodes, steps = _positions(fragment, complete)
    followers = next_observations(fragment)
    found: Rows = dict(zip(leaf_columns(leaves), fragment.observations, strict=True))
    found |= {ACTION: env_actions, REWARD: fragment.rewards}
    found |= {TERMINATED: fragment.terminated, TRUNCATED: fragment.truncated}
    found |= dict(zip(leaf_columns(leaves, NEXT_OBSERVATION), followers, strict=True))
    found |= {EPISODE: episodes, STEP: steps}
    if fragment.action_mask is not None:
        assert fragment.last_action_mask is not None
        assert fragment.final_action_mask is not None
        after = _after(fragment, fragment.action_mask, fragment.last_action_mask, fragment.final_action_mask)
        found |= {MASK: fragment.action_mask, NEXT_MASK: after}
    if log_probs is not None:
        found |= {LOGP: log_probs, DIST: fragment.extras["dist"]}
    valid = fragment.valid.T
    return {name: np.swapaxes(array, 0, 1)[valid] for name, array in found.items()}


def run_number(name: str, numbering: int = NUMBERING) -> int:
    """A number below 2⁶² that is added to `episode_id`, to keep the episodes of different runs apart.

    It is a hash of the run's name: the numbers of two runs may be near each other, but it is very unlikely that their
    episodes, of which each run has few in a range of 2⁴⁸, meet. `numbering`: that of the recording.
    """
    if numbering == _NARROW:
        return (zlib.crc32(name.encode()) & 0x7FFF) << 48
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 2


def next_observations(fragment: Fragment) -> Leaves:
    """The observations after each step, (T, E, …): see `next_observation` above."""
    parts = zip(fragment.observations, fragment.last_observations, fragment.final_observations, strict=True)
    return tuple(_after(fragment, *part) for part in parts)


def _after(fragment: Fragment, each: Array, last: Array, final: Array) -> Array:
    after = np.concatenate([each[1:], last[None]])
    after[fragment.final_steps, fragment.final_lanes] = final
    after[fragment.terminated] = each[fragment.terminated]
    return after


def _positions(fragment: Fragment, complete: bool) -> tuple[Array, Array]:
    """(number of the episode, steps since its start) of every step, (T, E) each."""
    ended = (fragment.terminated | fragment.truncated) & fragment.valid
    number, lanes = ended.shape
    before = np.cumsum(ended, 0) - ended  # episodes that ended before each step
    # A lane that waits for others has not started its next episode yet.
    first = fragment.episodes - ended.sum(0) + int(complete)
    group = fragment.group << (_LANE_BITS + _EPISODE_BITS)
    episodes = group + (np.arange(lanes) << _EPISODE_BITS) + first + before
    steps = np.empty((number, lanes), np.int64)
    ends = np.argwhere(ended)  # in the order of fragment.episode_lengths
    for lane in range(lanes):
        own = np.flatnonzero(ends[:, 1] == lane)
        since = fragment.running_lengths[lane] - number
        if len(own):
            since = fragment.episode_lengths[own[0]] - ends[own[0], 0] - 1
        steps[:, lane] = np.arange(number) + since
        for end in ends[own, 0]:
            steps[end + 1 :, lane] = np.arange(number - end - 1)
    return episodes.astype(np.int64), steps


def metadata_of(env: str, algorithm: str, leaves: tuple[Leaf, ...], actions: Any, settings: Mapping[str, Any]) -> Any:
    """The metadata of recorded files: strings by name, most of them JSON."""
    return {
        "outplay": "experience",
        "env": env,
        "algorithm": algorithm,
        "observation_space": json.dumps(space_to_json(joined(leaves))),
        "action_space": json.dumps(space_to_json(actions)),
        "settings": json.dumps(settings, sort_keys=True),
    }


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as JSON. Parts of variable length, which were padded, are written as a Box of their shape.

    >>> space_to_json(gymnasium.spaces.Discrete(3))
    {'type': 'Discrete', 'n': 3, 'start': 0}
    """
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "parts": {str(key): space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "parts": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    shape, dtype = list(space.shape or ()), str(np.dtype(space.dtype))
    low, high = getattr(space, "low", np.array(-np.inf)), getattr(space, "high", np.array(np.inf))
    return {"type": "Box", "shape": shape, "dtype": dtype, "low": _bound(low), "high": _bound(high)}


def _bound(values: Array) -> Any:
    """One number if all are equal; infinity as a string, since JSON has no word for it."""
    flat = values.ravel().tolist()
    texts = [number if np.isfinite(number) else str(number) for number in flat]
    return texts[0] if len(set(flat)) == 1 else texts


def space_from_json(found: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The inverse of `space_to_json`."""
    spaces = gymnasium.spaces
    match found["type"]:
        case "Dict":
            return spaces.Dict({key: space_from_json(part) for key, part in found["parts"].items()})
        case "Tuple":
            return spaces.Tuple([space_from_json(part) for part in found["parts"]])
        case "Discrete":
            return spaces.Discrete(found["n"], start=found["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(found["nvec"]), start=np.array(found["start"]))
        case "MultiBinary":
            return spaces.MultiBinary(found["n"])
        case "Box":
            shape, dtype = tuple(found["shape"]), np.dtype(found["dtype"]).type
            low, high = (np.array(found[name], np.float64) for name in ("low", "high"))
            full = [(np.full(shape, b) if b.ndim == 0 else b.reshape(shape)).astype(dtype) for b in (low, high)]
            return spaces.Box(full[0], full[1], shape, dtype)
    raise DataError(f"the metadata names an unknown space {found['type']!r}")


def check_transitions(columns: Mapping[str, Column], leaves: Sequence[Leaf], needed: Sequence[str], where: str) -> None:
    """Raise DataError unless a data set has the observations of an environment, and the columns that are needed."""
    prefixes = [OBSERVATION, *([NEXT_OBSERVATION] if NEXT_OBSERVATION in needed else [])]
    expected = {name: leaf for p in prefixes for name, leaf in zip(leaf_columns(leaves, p), leaves, strict=True)}
    for name in [*expected, *(name for name in needed if name != NEXT_OBSERVATION)]:
        if name not in columns:
            raise DataError(f"{where} has no column {name!r}, which is needed; it has {', '.join(columns)}")
    for name, leaf in expected.items():
        if columns[name].shape != leaf.shape:
            raise DataError(
                f"{where}: column {name!r} has rows of shape {list(columns[name].shape)}, but the environment's "
                f"{leaf.name} has shape {list(leaf.shape)}; it was recorded in another environment"
            )


def check_steps(episodes: Array, steps: Array, where: str) -> None:
    """Raise DataError if there are negative steps, or steps twice."""
    if len(steps) and steps.min() < 0:
        raise DataError(f"{where}: column {STEP!r} has negative values; steps are counted from 0")
    order = np.lexsort((steps, episodes))
    same = (np.diff(steps[order]) == 0) & (episodes[order][1:] == episodes[order][:-1])
    if same.any():
        raise DataError(f"{where} has steps twice (equal episode_id and step); was a folder copied into it?")
