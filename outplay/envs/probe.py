"""A look at an environment before a run: its spaces, its pace, and whether equal seeds give equal episodes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from outplay.envs.global_streams import watching
from outplay.envs.lookup import EnvSpec
from outplay.envs.making import has_native_vector, make_vector
from outplay.envs.vector import PythonVector, Vector
from outplay.envs.wrappers import statistics_in
from outplay.spaces import Leaf, flat_action, sample_allowed, text_in
from outplay.streams import seed_for, stream

_STEPS = 500
_SECONDS = 0.1  # that an episode may take of the probe's time


@dataclass(frozen=True)
class Inexact:
    """Why a resumed run would not be exact, and what to change."""

    reason: str
    remedy: str = ""


_DIFFERENT = Inexact(
    "it gave two different episodes for one seed and the same actions",
    "draw all random numbers from self.np_random, after super().reset(seed=seed)",
)
_SHARED = Inexact(
    "its environments disturb each other where several run in one process, so results depend on num_workers",
    "let no environment change what others use: attributes of the class, global variables, a generator of the module",
)


@dataclass(frozen=True)
class Probe:
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    leaves: tuple[Leaf, ...]
    is_native: bool
    inexact: str  # why a resumed run would not be exact; empty if it will be
    remedy: str  # what to change then
    step_seconds: float  # of one environment; native vectors take less
    reset_seconds: float
    pace_seconds: float  # of a step, with its share of the resets
    has_action_masks: bool = False
    global_streams: tuple[str, ...] = ()  # of the process, that the environment draws from: each needs its own

    @property
    def left_out(self) -> list[str]:
        """The names of the parts of an observation that are text."""
        return text_in(self.observation_space)


@dataclass
class _Episodes:
    """What an environment said in the beginning and after each step, as bytes; how long that took."""

    said: list[bytes]
    steps: int = 0
    resets: int = 0
    step_seconds: float = 0.0
    reset_seconds: float = 0.0


def probe_env(spec: EnvSpec, seed: int = 0) -> Probe:
    """Play the beginning of two episodes on one seed with the same actions, and compare them."""
    native = has_native_vector(spec)
    # The second environment plays the same episode while the first one plays another.
    lanes = 1 if native else 2
    with watching() as used:
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
            has_action_masks=vector.action_masks is not None,
            global_streams=spec.global_streams,
        )
    finally:
        vector.close()


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
    if vector.get_state() is not None:  # what can be saved need not be played again
        return Inexact("")
    last = vector.num_envs - 1
    if _agree(first, _play(vector, seed, last, first.steps)):
        return Inexact("")
    return _SHARED if last and _agree(first, _play(vector, seed, 0, first.steps)) else _DIFFERENT


def _play(vector: Vector, seed: int, lane: int, most_steps: int = _STEPS) -> _Episodes:
    """As many steps in this lane as time allows. Lanes before it play as well, on other seeds."""
    playing = np.arange(vector.num_envs) <= lane
    draw = _random_actions(vector, seed, lane)
    played = _Episodes([])
    started = time.perf_counter()
    played.said.append(_bytes(*_reset(vector, playing, seed, 0, lane), lane=lane))
    played.reset_seconds, played.resets = time.perf_counter() - started, 1
    for number in range(1, most_steps + 1):
        actions = draw()
        clock = time.perf_counter()
        observations, rewards, terminated, truncated = vector.step(actions, playing)
        stepped = time.perf_counter()
        played.said.append(_bytes(*observations, rewards, terminated, truncated, lane=lane))
        if (ended := (terminated | truncated) & playing).any():
            observations = _reset(vector, ended, seed, number, lane)
            if ended[lane]:
                played.said[-1] += _bytes(*observations, lane=lane)
                played.reset_seconds += time.perf_counter() - stepped
                played.resets += 1
        played.steps, played.step_seconds = number, played.step_seconds + stepped - clock
        if time.perf_counter() - started > _SECONDS:
            break
    return played


def _random_actions(vector: Vector, seed: int, watched: int) -> Callable[[], np.ndarray]:
    """A function that draws actions, the same in all plays for the lane that is watched; allowed ones where masked."""
    space = copy.deepcopy(vector.action_space)  # the environment may draw from its own
    space.seed(seed_for(seed, "probe"))
    if vector.action_masks is None:
        return lambda: np.stack([flat_action(space, space.sample())] * vector.num_envs)
    rngs = [stream(seed, "probe", abs(watched - lane)) for lane in range(vector.num_envs)]

    def draw() -> np.ndarray:
        assert vector.action_masks is not None
        return np.stack([sample_allowed(space, m, rng) for m, rng in zip(vector.action_masks, rngs, strict=True)])

    return draw


def _reset(vector: Vector, lanes: np.ndarray, seed: int, number: int, watched: int) -> tuple[np.ndarray, ...]:
    """The lane that is watched has the same seeds in all plays."""
    distances = [abs(watched - lane) for lane in np.flatnonzero(lanes).tolist()]
    return vector.reset(lanes, [seed_for(seed, "probe", number, distance) for distance in distances])


def _bytes(*arrays: np.ndarray, lane: int) -> bytes:
    return b"".join(array[lane].tobytes() for array in arrays)


def _agree(first: _Episodes, second: _Episodes) -> bool:
    """As far as both got."""
    return all(a == b for a, b in zip(first.said, second.said, strict=False))
