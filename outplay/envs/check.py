"""`outplay check-env`: checks an environment and reports each problem with its remedy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
import numpy as np

from outplay import spaces
from outplay.envs.lookup import EnvSpec, find_env
from outplay.envs.making import has_native_vector
from outplay.envs.masking import MaskReader
from outplay.envs.oldstyle import OldStyleEnv
from outplay.envs.probe import probe_env, unused_masks
from outplay.envs.tasks import task_layer
from outplay.errors import OutplayError, type_name
from outplay.masks import sample_allowed

_STEPS = 1000


def check_env(env: Any, env_config: dict[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    """Check that an environment follows the Gymnasium API and is deterministic.

    `env` is an id, a class, an import path or an EnvSpec. Yields (kind, message) for each finding. `kind` is "ok",
    "note" or "problem".

    >>> problems = [message for kind, message in outplay.check_env(MyEnv) if kind == "problem"]
    """
    if isinstance(env, EnvSpec):
        return _findings(env)
    name, factory = find_env(env)
    return _findings(EnvSpec(name, factory, env_config or {}))


def _findings(spec: EnvSpec) -> Iterator[tuple[str, str]]:
    if spec.is_atari or spec.is_envpool:
        inexact = probe_env(spec).inexact
        yield "ok", f"it runs in the native vector of {'EnvPool' if spec.is_envpool else 'ale-py'}"
        if inexact:
            yield "note", f"{inexact}: runs can be resumed, but not exactly"
        return
    with _warnings_off(), closing(spec.make()) as env:
        try:
            yield from _check_instance(spec, env)
        except OutplayError as error:
            yield "problem", str(error)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            yield "problem", f"it raised {type(error).__name__}: {error}"


@contextmanager
def _warnings_off() -> Iterator[None]:
    """Warnings are reported as findings instead."""
    log = logging.getLogger("outplay")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _check_instance(spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(env.unwrapped, OldStyleEnv):
        yield (
            "problem",
            "it is written for an older Gym and is adapted by a wrapper: derive it from gymnasium.Env, let "
            "reset(seed=None, options=None) return (observation, info), and let step() return (observation, reward, "
            "terminated, truncated, info)",
        )
    masks = MaskReader(spec.name, [env], spec.frame_stack)
    leaves = spaces.leaves(spaces.readable(masks.observation_space, spec.reading))
    spaces.check_action_space(env.action_space)
    in_one_line = spaces.in_one_line
    yield "ok", f"observation space {in_one_line(env.observation_space)}, action space {in_one_line(env.action_space)}"

    env.action_space.seed(0)
    result = env.reset(seed=0)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        yield "problem", f"reset() must return (observation, info) with info a dict, not {type(result).__name__}"
        return
    masks.after_reset(0, *result)
    rng = np.random.default_rng(0)
    problems: dict[str, str] = {}  # the first message of each kind
    ended = 0
    for kind, problem in _observation_problems(env, leaves, result[0]):
        problems.setdefault(kind, f"reset() returned {problem}")
    for number in range(1, _STEPS + 1):
        action = env.action_space.sample()
        if masks.rows is not None:
            action = sample_allowed(env.action_space, masks.rows[0], rng)
        step = env.step(action)
        if not isinstance(step, tuple) or len(step) != 5:
            yield "problem", "step() must return (observation, reward, terminated, truncated, info)"
            return
        observation, reward, terminated, truncated, info = step
        for kind, problem in _observation_problems(env, leaves, observation):
            problems.setdefault(kind, f"step() returned {problem} (step {number})")
        for kind, problem in _step_problems(reward, terminated, truncated, info):
            problems.setdefault(kind, f"{problem} (step {number})")
        if masks.rows is not None:
            masks.after_step(0, observation, info, bool(terminated), bool(truncated))
        if terminated or truncated:
            ended += 1
            masks.after_reset(0, *env.reset(seed=ended))
    yield from (("problem", sentence) for sentence in problems.values())
    if not problems:
        yield "ok", f"{_STEPS:,} random steps in {ended} episodes follow the Gymnasium API"
    if not ended:
        yield (
            "note",
            f"no episode ended within {_STEPS:,} random steps; if this is not intended, set max_episode_steps",
        )
    if masks.sources:
        yield "ok", f"it has {masks.sources[0]}: the policy takes only allowed actions"
    if problem := unused_masks(masks.sources, masks.unused):
        yield "note", problem
    if task_layer(env) is not None:
        yield "ok", "it has set_task(task): it can have a curriculum"
    if has_native_vector(spec):
        yield "ok", "it runs in a native vector"
    probe = probe_env(spec)
    if probe.left_out:
        yield "note", f"text is left out of its observations: {', '.join(probe.left_out)}"
    yield "note", f"a step takes {probe.step_seconds * 1e6:,.0f} µs, a reset {probe.reset_seconds * 1e6:,.0f} µs"
    if probe.global_streams:
        yield (
            "note",
            f"it uses the global random generators of the process ({', '.join(probe.global_streams)}); each "
            "environment gets its own copy, seeded at every episode; self.np_random is faster",
        )
    if not probe.inexact:
        yield "ok", "equal seeds and actions give equal episodes: runs can be resumed exactly"
    else:
        yield "problem", f"{probe.inexact}, so runs cannot be resumed exactly: {probe.remedy}"


def _observation_problems(
    env: gymnasium.Env[Any, Any], leaves: tuple[spaces.Leaf, ...], observation: Any
) -> Iterator[tuple[str, str]]:
    """Yield (kind, problem). The caller puts "reset() returned" or "step() returned" before the problem."""
    into = spaces.empty(leaves, 1)
    try:
        spaces.write(observation, leaves, into, 0, source="")
    except OutplayError as error:
        yield "form", str(error).strip()
        return
    for leaf, array in zip(leaves, into, strict=True):
        if (wrong := spaces.invalid_value(leaf, array)) is not None:
            yield leaf.name, f"an {spaces.element(leaf, wrong[0][1:])} that {wrong[1]}"
            return
        if (at := spaces.out_of_bounds(leaf, array[0])) is not None:
            low, high = leaf.space.low[at], leaf.space.high[at]  # type: ignore[attr-defined]
            name = spaces.element(leaf, at)
            yield leaf.name, f"an {name} that is {array[0][at]}, outside its bounds {low} to {high}"
            return
    if not env.observation_space.contains(observation):
        kind = f"{type(observation).__name__} {getattr(observation, 'dtype', '')}".strip()
        yield (
            "type",
            f"an observation that is not in its space {spaces.in_one_line(env.observation_space)} (its type: {kind})",
        )


def _step_problems(reward: Any, terminated: Any, truncated: Any, info: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(reward, (int, float, np.number, np.bool_)) and not (
        isinstance(reward, np.ndarray) and reward.ndim == 0
    ):
        yield "reward", f"a reward must be a number, not {'None' if reward is None else type(reward).__name__}"
    elif not np.isfinite(float(reward)):
        yield "reward", f"a reward is {reward}"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            yield name, f"{name} must be True or False, not {type_name(flag)}"
    if not isinstance(info, dict):
        yield "info", f"info must be a dict, not {type_name(info)}"
