"""A look at an environment before a run: its spaces, its pace, and whether equal seeds give equal episodes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from outplay.envs.lookup import EnvSpec
from outplay.envs.making import has_native_vector, make_vector
from outplay.envs.vector import Vector
from outplay.spaces import Leaf
from outplay.streams import seed_for

_STEPS = 500
_SECONDS = 0.1  # that an episode may take of the probe's time
_DIFFERENT = "it gave two different episodes for one seed and the same actions"


@dataclass(frozen=True)
class Probe:
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    leaves: tuple[Leaf, ...]
    is_native: bool
    inexact: str  # why a resumed run would not be exact; empty if it will be
    step_seconds: float  # of one environment; native vectors take less


def probe_env(spec: EnvSpec, seed: int = 0) -> Probe:
    """Play the beginning of two episodes on one seed with the same actions, and compare them."""
    vector = make_vector(spec, 1)
    try:
        actions = _actions(vector, seed)
        started = time.perf_counter()
        first = _play(vector, actions, seed)
        seconds = (time.perf_counter() - started) / len(first)
        second = _play(vector, actions[: len(first) - 1], seed)
        saved = vector.get_state() is not None
        return Probe(
            observation_space=vector.observation_space,
            action_space=vector.action_space,
            leaves=vector.leaves,
            is_native=has_native_vector(spec),
            # What can be saved need not be played again; a shared stream goes on over the end of an episode.
            inexact=vector.inexact or ("" if saved or _agree(first, second) else _DIFFERENT),
            step_seconds=seconds,
        )
    finally:
        vector.close()


def _actions(vector: Vector, seed: int) -> list[np.ndarray]:
    space = gymnasium.vector.utils.batch_space(vector.action_space, 1)
    space.seed(seed_for(seed, "probe"))
    return [np.asarray(space.sample()) for _ in range(_STEPS)]


def _play(vector: Vector, actions: list[np.ndarray], seed: int) -> list[bytes]:
    """Everything the environment says in the beginning and after each step, as bytes; as far as time allows."""
    everyone = np.ones(1, bool)
    said = [_bytes(*vector.reset(everyone, [seed_for(seed, "probe", 0)]))]
    started = time.perf_counter()
    for number, action in enumerate(actions):
        observations, rewards, terminated, truncated = vector.step(action)
        said.append(_bytes(*observations, rewards, terminated, truncated))
        if terminated[0] or truncated[0]:
            said[-1] += _bytes(*vector.reset(everyone, [seed_for(seed, "probe", number + 1)]))
        if time.perf_counter() - started > _SECONDS:
            break
    return said


def _bytes(*arrays: np.ndarray) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


def _agree(first: list[bytes], second: list[bytes]) -> bool:
    """As far as both got."""
    return all(a == b for a, b in zip(first, second, strict=False))
