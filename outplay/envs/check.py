"""`outplay check-env`: what is wrong with an environment, in sentences that say what to change."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from outplay import spaces
from outplay.envs.lookup import EnvSpec
from outplay.envs.making import has_native_vector
from outplay.envs.oldstyle import OldStyleEnv
from outplay.envs.probe import probe_env
from outplay.errors import OutplayError

_STEPS = 1000


def check_env(spec: EnvSpec) -> Iterator[tuple[str, str]]:
    """(kind, sentence) of all that was found; the kinds are "ok", "note" and "problem"."""
    if spec.is_atari or spec.is_envpool:
        inexact = probe_env(spec).inexact
        yield "ok", f"{'EnvPool' if spec.is_envpool else 'ale-py'} steps it natively"
        if inexact:
            yield "note", f"{inexact}: resumed runs will go on, but not exactly"
        return
    logging.getLogger("outplay").setLevel(logging.ERROR)  # what would be a warning is told below
    env = spec.make()
    try:
        yield from _check_made(spec, env)
    except OutplayError as error:
        yield "problem", str(error)
    except Exception as error:  # noqa: BLE001 - the environment is the user's: anything may come out of it
        yield "problem", f"it raised {type(error).__name__}: {error}"
    finally:
        env.close()


def _check_made(spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(env.unwrapped, OldStyleEnv):
        yield (
            "problem",
            "it is written for an older Gym and has to be adapted: derive it from gymnasium.Env, let reset(seed=None, "
            "options=None) return (observation, info), and step() (observation, reward, terminated, truncated, info)",
        )
    leaves = spaces.leaves(env.observation_space)
    spaces.check_action_space(env.action_space)
    yield "ok", f"observation space {env.observation_space}, action space {env.action_space}"

    env.action_space.seed(0)
    result = env.reset(seed=0)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        yield "problem", f"reset() must return (observation, info) with info a dict, not {type(result).__name__}"
        return
    said: set[str] = set()
    ended = 0
    for problem in _observation_problems(env, leaves, result[0], "reset()"):
        said.add(problem)
    for _ in range(_STEPS):
        step = env.step(env.action_space.sample())
        if not isinstance(step, tuple) or len(step) != 5:
            yield "problem", "step() must return (observation, reward, terminated, truncated, info)"
            return
        observation, reward, terminated, truncated, info = step
        said.update(_observation_problems(env, leaves, observation, "step()"))
        said.update(_step_problems(reward, terminated, truncated, info))
        if terminated or truncated:
            ended += 1
            env.reset(seed=ended)
    yield from (("problem", sentence) for sentence in sorted(said))
    if not said:
        yield "ok", f"{_STEPS:,} random steps in {ended} episodes follow the Gymnasium API"
    if not ended:
        yield (
            "note",
            f"no episode ended within {_STEPS:,} random steps; if that is not meant, set max_episode_steps",
        )
    if has_native_vector(spec):
        yield "ok", "a native vector steps it"
    probe = probe_env(spec)
    yield "note", f"a step takes {probe.step_seconds * 1e6:,.0f} µs"
    if not probe.inexact:
        yield "ok", "equal seeds and actions give equal episodes: runs can be resumed exactly"
    else:
        yield (
            "problem",
            "equal seeds and actions give different episodes, so runs cannot be resumed exactly: draw all random "
            "numbers from self.np_random, after super().reset(seed=seed)",
        )


def _observation_problems(
    env: gymnasium.Env[Any, Any], leaves: tuple[spaces.Leaf, ...], observation: Any, call: str
) -> Iterator[str]:
    into = spaces.empty(leaves, 1)
    try:
        spaces.write(observation, leaves, into, 0)
    except OutplayError as error:
        yield f"{call}: {error}"
        return
    for leaf, array in zip(leaves, into, strict=True):
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            yield f"{call} returned an {leaf.name} that is not finite"
            return
    if not env.observation_space.contains(observation):
        yield (
            f"{call} returned an observation that is not in its space {env.observation_space} (outside of its bounds, "
            f"or of another type: {type(observation).__name__} {getattr(observation, 'dtype', '')})"
        )


def _step_problems(reward: Any, terminated: Any, truncated: Any, info: Any) -> Iterator[str]:
    if not np.isscalar(reward) and np.ndim(reward) != 0:
        yield f"a reward must be a number, not {type(reward).__name__}"
    elif not np.isfinite(float(reward)):
        yield f"a reward is {reward}"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            yield f"{name} must be True or False, not a {type(flag).__name__}"
    if not isinstance(info, dict):
        yield f"info must be a dict, not a {type(info).__name__}"
