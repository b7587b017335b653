"""Probes an environment before a run: its spaces, its speed, and whether its episodes are reproducible."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from outplay.envs.global_streams import detect_global_streams
from outplay.envs.lookup import EnvSpec
from outplay.envs.making import has_native_vector, make_vector
from outplay.envs.tasks import task_layer
from outplay.envs.vector import PythonVector, Vector
from outplay.envs.wrappers import statistics_in
from outplay.masks import sample_allowed
from outplay.spaces import Leaf, flat_action, left_out
from outplay.streams import seed_for, stream

_STEPS = 500
_SECONDS = 0.1  # time limit of one probe episode


@dataclass(frozen=True)
class Inexact:
    """Why a resumed run would not be exact, and the remedy."""

    reason: str
    remedy: str = ""


_DIFFERENT = Inexact(
    "it gave two different episodes for one seed and the same actions",
    "draw all random numbers from self.np_random, after super().reset(seed=seed)",
)
_SHARED = Inexact(
    "its environments influence each other if several run in one process, so results depend on num_workers",
    "do not change state that environments share: class attributes, global variables, a generator of the module",
)


@dataclass(frozen=True)
class Probe:
    """Result of `probe_env`."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    leaves: tuple[Leaf, ...]
    is_native: bool
    inexact: str  # why a resumed run would not be exact; empty if it will be
    remedy: str  # how to make it exact
    step_seconds: float  # of one environment; a native vector is faster per environment
    reset_seconds: float
    pace_seconds: float  # of a step, including its share of the resets
    mask_sources: tuple[str, ...] = ()  # where the environment has action masks; the first one is used
    not_a_mask: str = ""  # why a part of the observation or the info that is called action_mask is not used as one
    has_tasks: bool = False  # whether it has set_task(task)
    global_streams: tuple[str, ...] = ()  # global random generators that the environment uses: see OwnStreams
    renders: bool | None = None  # whether it can render images; None if only trying tells

    @property
    def has_action_masks(self) -> bool:
        return bool(self.mask_sources)

    @property
    def mask_warning(self) -> str:
        return unused_masks(self.mask_sources, self.not_a_mask)

    @property
    def left_out(self) -> list[str]:
        """The names of the text parts of an observation that are ignored."""
        return left_out(self.observation_space)


@dataclass
class _Episodes:
    """The outputs of the reset and of each step, as bytes, and the time they took."""

    outputs: list[bytes]
    steps: int = 0
    resets: int = 0
    step_seconds: float = 0.0
    reset_seconds: float = 0.0


def probe_env(spec: EnvSpec, seed: int = 0) -> Probe:
    """Play the first steps of two episodes with the same seed and actions, and compare their outputs."""
    native = has_native_vector(spec)
    # Lane 1 repeats the episode while lane 0 plays another one. This shows whether environments influence each other.
    lanes = 1 if native else 2
    with detect_global_streams() as used:
        vector, first = _begin(spec, lanes, seed)
    if used and not native:
        vector.close()
        spec = replace(spec, global_streams=tuple(used))
        vector, first = _begin(spec, lanes, seed)
    try:
        inexact = _why_inexact(vector, first, seed)
        return Probe(
            observation_space=vector.observation_space,
            action_space=vector.action_space,
            leaves=vector.leaves,
            is_native=native,
            inexact=inexact.reason,
            remedy=inexact.remedy,
            step_seconds=first.step_seconds / first.steps,
            reset_seconds=first.reset_seconds / first.resets,
            pace_seconds=(first.step_seconds + first.reset_seconds) / first.steps,
            mask_sources=tuple(vector.masks.sources) if isinstance(vector, PythonVector) else (),
            not_a_mask=vector.masks.unused if isinstance(vector, PythonVector) else "",
            has_tasks=isinstance(vector, PythonVector) and task_layer(vector.envs[0]) is not None,
            global_streams=spec.global_streams,
            renders=_renders(spec, vector),
        )
    finally:
        vector.close()


def try_task(spec: EnvSpec, task: Any, seed: int = 0) -> None:
    """Start an episode of a task, as the first one of a run. Raises EnvError if `set_task` or `reset` fails."""
    vector = make_vector(spec, 1)
    try:
        vector.reset(np.ones(1, bool), [seed_for(seed, "probe")], [task])
    finally:
        vector.close()


def unused_masks(sources: Sequence[str], not_a_mask: str) -> str:
    """A sentence about masks that are not used; empty if there are none."""
    if not_a_mask:
        return f"its actions are not masked: {not_a_mask}"
    others = " and ".join(sources[1:])
    return f"it has action masks in {sources[0]} and {others}; {sources[0]} is used" if others else ""


def _renders(spec: EnvSpec, vector: Vector) -> bool | None:
    if spec.is_atari or spec.is_envpool:
        return spec.is_atari
    env: Any = vector.envs[0] if isinstance(vector, PythonVector) else getattr(vector, "env", None)
    modes = dict(getattr(env, "metadata", None) or {}).get("render_modes") or []
    if "rgb_array" in modes:
        return True
    has_method = getattr(type(getattr(env, "unwrapped", env)), "render", None) is not gymnasium.Env.render
    return None if has_method and not modes else False


def _begin(spec: EnvSpec, lanes: int, seed: int) -> tuple[Vector, _Episodes]:
    vector = make_vector(spec, lanes)
    try:
        return vector, _play(vector, seed, 0)
    except BaseException:
        vector.close()
        raise


def _why_inexact(vector: Vector, first: _Episodes, seed: int) -> Inexact:
    if vector.inexact:
        return Inexact(vector.inexact)
    if isinstance(vector, PythonVector) and (wrapper := statistics_in(vector.envs[0])) is not None:
        return Inexact(*wrapper)
    if vector.get_state() is not None:  # restored from its state, not by replay
        return Inexact("")
    last = vector.num_envs - 1
    if _same_outputs(first, _play(vector, seed, last, first.steps)):
        return Inexact("")
    return _SHARED if last and _same_outputs(first, _play(vector, seed, 0, first.steps)) else _DIFFERENT


def _play(vector: Vector, seed: int, lane: int, most_steps: int = _STEPS) -> _Episodes:
    """Play steps in this lane until the time limit. Lower lanes play too, with other seeds."""
    playing = np.arange(vector.num_envs) <= lane
    played = _Episodes([])
    started = time.perf_counter()
    played.outputs.append(_bytes(*_reset(vector, playing, seed, 0, lane), lane=lane))
    played.reset_seconds, played.resets = time.perf_counter() - started, 1
    draw = _random_actions(vector, seed, lane)  # after the reset, which shows whether there are masks
    for number in range(1, most_steps + 1):
        actions = draw()
        clock = time.perf_counter()
        observations, rewards, terminated, truncated = vector.step(actions, playing)
        stepped = time.perf_counter()
        played.outputs.append(_bytes(*observations, rewards, terminated, truncated, lane=lane))
        if (ended := (terminated | truncated) & playing).any():
            observations = _reset(vector, ended, seed, number, lane)
            if ended[lane]:
                played.outputs[-1] += _bytes(*observations, lane=lane)
                played.reset_seconds += time.perf_counter() - stepped
                played.resets += 1
        played.steps, played.step_seconds = number, played.step_seconds + stepped - clock
        if time.perf_counter() - started > _SECONDS:
            break
    return played


def _random_actions(vector: Vector, seed: int, watched: int) -> Callable[[], np.ndarray]:
    """A function that draws actions for all lanes: in the lane `watched`, the same actions in every play.

    With action masks, only allowed actions are drawn.
    """
    space = copy.deepcopy(vector.action_space)  # a copy, since the environment may sample from the original
    space.seed(seed_for(seed, "probe"))
    if vector.action_masks is None:
        return lambda: np.stack([flat_action(space, space.sample())] * vector.num_envs)
    rngs = [stream(seed, "probe", abs(watched - lane)) for lane in range(vector.num_envs)]

    def draw() -> np.ndarray:
        assert vector.action_masks is not None
        return np.stack([sample_allowed(space, m, rng) for m, rng in zip(vector.action_masks, rngs, strict=True)])

    return draw


def _reset(vector: Vector, lanes: np.ndarray, seed: int, number: int, watched: int) -> tuple[np.ndarray, ...]:
    """Reset lanes. The lane `watched` gets the same seeds in every play."""
    distances = [abs(watched - lane) for lane in np.flatnonzero(lanes).tolist()]
    return vector.reset(lanes, [seed_for(seed, "probe", number, distance) for distance in distances])


def _bytes(*arrays: np.ndarray, lane: int) -> bytes:
    return b"".join(array[lane].tobytes() for array in arrays)


def _same_outputs(first: _Episodes, second: _Episodes) -> bool:
    """Whether the outputs are equal. Only steps that both played are compared."""
    return all(a == b for a, b in zip(first.outputs, second.outputs, strict=False))
