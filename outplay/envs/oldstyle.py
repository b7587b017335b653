"""Environments written for Gym before 0.26: `reset()` returns only the observation, `step()` four values."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import gymnasium
from gymnasium import spaces

from outplay.envs.deadline import is_worker_process
from outplay.envs.wrappers import layers
from outplay.errors import EnvError, type_name

log = logging.getLogger("outplay")

_WRAPPERS_OF_MAKE = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "StepAPICompatibility"}
_warned: set[str] = set()


def adapt_old_style(env: Any, name: str) -> gymnasium.Env[Any, Any]:
    """Return `env` unchanged if it follows Gymnasium's API, else wrapped in an OldStyleEnv."""
    if hasattr(env, "possible_agents") and (hasattr(env, "observation_spaces") or callable(env.observation_space)):
        raise EnvError(
            f"environment {name!r} is PettingZoo's {type(env).__name__}, which has several agents; make it a "
            "gymnasium.Env in which one agent acts and the others belong to the environment"
        )
    for part in ("reset", "step", "observation_space", "action_space"):
        if not hasattr(env, part):
            raise EnvError(f"environment {name!r} ({type_name(env)}) has no {part}; see docs/environments.md")
    if isinstance(env, gymnasium.Env) and _accepts_seed(env):
        return env
    if name not in _warned and not is_worker_process():  # workers do not repeat the warning
        _warned.add(name)
        log.warning(
            "environment %r is written for an older Gym and is adapted by a wrapper; to update it, derive it from "
            "gymnasium.Env, let reset(seed=None, options=None) return (observation, info), and let step() return "
            "(observation, reward, terminated, truncated, info)",
            name,
        )
    inner, limit = _without_wrappers_of_make(env)
    adapted = OldStyleEnv(inner, name)
    return adapted if limit is None else gymnasium.wrappers.TimeLimit(adapted, limit)


def _accepts_seed(env: Any) -> bool:
    """Whether `reset` has a parameter `seed`. A wrapper with `**kwargs` passes the seed on to the wrapped layer."""
    for layer in layers(env):
        try:
            parameters = inspect.signature(layer.reset).parameters
        except (TypeError, ValueError):
            return True
        if "seed" in parameters:
            return True
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return False
    return True


def _without_wrappers_of_make(env: Any) -> tuple[Any, int | None]:
    """The environment without the wrappers of `gym.make`, and the step limit of its TimeLimit (or None).

    These wrappers expect the `step` API of their own Gym version, and the checker uses names that numpy 2 removed.
    """
    limit = None
    while not isinstance(env, gymnasium.Env) and type(env).__name__ in _WRAPPERS_OF_MAKE:
        if type(env).__name__ == "TimeLimit":
            limit = env._max_episode_steps
        env = env.env
    return env, limit


class OldStyleEnv(gymnasium.Env[Any, Any]):
    """Adapts an old environment to Gymnasium's API. `done` means terminated, unless `info` reports a time limit."""

    def __init__(self, env: Any, name: str) -> None:
        self.old = env
        self.name = name
        self.observation_space = _modern_space(env.observation_space)
        self.action_space = _modern_space(env.action_space)
        self.metadata = getattr(env, "metadata", {}) or {}
        self.render_mode = getattr(env, "render_mode", "rgb_array")

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - the old API has none
    ) -> tuple[Any, dict[str, Any]]:
        if _accepts_seed(self.old):
            result = self.old.reset(seed=seed)
        else:
            if seed is not None and callable(getattr(self.old, "seed", None)):
                self.old.seed(seed)
            result = self.old.reset()
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.old.step(action)
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise EnvError(
                f"environment {self.name!r}: step() must return (observation, reward, terminated, truncated, info), "
                f"not {len(result) if isinstance(result, tuple) else type(result).__name__} values"
            )
        if len(result) == 5:
            return result
        observation, reward, done, info = result
        truncated = bool(done and isinstance(info, dict) and info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        try:
            return self.old.render(mode="rgb_array")
        except TypeError:  # render() has no parameter `mode`
            return self.old.render()

    def close(self) -> None:
        if hasattr(self.old, "close"):
            self.old.close()


def _modern_space(space: Any) -> spaces.Space[Any]:
    """Convert a Gym space to Gymnasium's. Names and attributes are the same; only the classes differ."""
    if isinstance(space, spaces.Space):
        return space
    match type(space).__name__:
        case "Box":
            return spaces.Box(space.low, space.high, space.shape, space.dtype)
        case "Discrete":
            return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(space.nvec)
        case "MultiBinary":
            return spaces.MultiBinary(space.n)
        case "Dict":
            return spaces.Dict({key: _modern_space(part) for key, part in space.spaces.items()})
        case "Tuple":
            return spaces.Tuple([_modern_space(part) for part in space.spaces])
    raise EnvError(f"the space {type(space).__name__} is not a Gymnasium space")
