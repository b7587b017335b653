"""From what a user writes as `env` to something that makes environments.

A name registered with `register_env`, a Gymnasium id, an import path (`custom_env.CustomEnv`, `package.module:Class`),
a class or a function.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from outplay.envs.deadline import TimedEnv
from outplay.envs.oldstyle import adapt_old_style
from outplay.errors import CheckpointError, ConfigError, EnvError, nearest

log = logging.getLogger("outplay")

Factory = Callable[..., Any]

_registered: dict[str, Factory] = {}
_SHIPPED = {"PongDifference": "outplay.envs.pong"}  # environments that ship, by the module that they are in
_IMPORT_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*$")


def register_env(name: str, factory: Factory) -> None:
    """Give an environment a name, for `env: name` in a config or an experiment file.

    `factory` is a class or a function. If it has a parameter `env_config` (or `config`), it gets the dict; otherwise
    the items of `env_config` are its keyword arguments.

    >>> outplay.register_env("maze", lambda env_config: Maze(size=env_config.get("size", 5)))
    >>> PPO(env="maze", config={"env_config": {"size": 9}})
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_env() takes a name first, not {name!r}")
    if not callable(factory):
        raise ConfigError(f"register_env({name!r}, …) takes a class or a function, not {factory!r}")
    _registered[name] = factory


@dataclass(frozen=True)
class EnvSpec:
    """Everything needed to make one environment, in any process. `factory` is None for a Gymnasium id."""

    name: str
    factory: Factory | None = None
    env_config: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    frame_stack: int = 1
    atari_preprocessing: bool = True
    step_timeout_s: float | None = None
    fire_on_reset: bool = False

    @property
    def is_atari(self) -> bool:
        """Whether ale-py's own vector, with its preprocessing, plays this."""
        return self.factory is None and self.name.startswith("ALE/") and self.atari_preprocessing

    @property
    def is_envpool(self) -> bool:
        return self.factory is None and self.name.startswith("envpool/")

    @property
    def frame_skip(self) -> int:
        """Frames per step of ale-py's own vector."""
        return int(self.env_config.get("frameskip", 4))

    @property
    def stacked_frames(self) -> int:
        """How many frames an image holds that were stacked here: its first axis, the newest last."""
        stacked = self.frame_stack
        if self.is_atari:
            stacked = int(self.env_config.get("stack_num", 4 if stacked == 1 else stacked))
        return 1 if self.is_envpool else stacked

    def make(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """One environment with its wrappers, as the Python vector uses it."""
        extra = {} if render_mode is None else {"render_mode": render_mode}
        env = _make_by_id(self, extra) if self.factory is None else _make_by_factory(self, self.factory, extra)
        if self.frame_stack > 1:
            env = gymnasium.wrappers.FrameStackObservation(env, self.frame_stack)
        return env if self.step_timeout_s is None else TimedEnv(env, self.name, self.step_timeout_s)


def is_import_path(env: Any) -> bool:
    """Whether a name stands for code that would have to be imported."""
    if not isinstance(env, str) or env in _registered or env in _SHIPPED:
        return False
    if ":" in env:
        return True
    return bool(_IMPORT_PATH.match(env)) and env not in gymnasium.registry


def check_trust(recorded: str, given: Any, trust: bool, where: str, remedy: str) -> None:
    """Names on disk are not imported unless the user repeats or trusts them."""
    if given is None and is_import_path(recorded) and not trust:
        raise CheckpointError(
            f"{where} names the environment {recorded!r}, which would be imported; if you trust it, {remedy}"
        )
    if given is not None and env_name(given).replace(":", ".") != recorded.replace(":", "."):
        raise CheckpointError(f"{where} is of the environment {recorded!r}, not of {env_name(given)!r}")


def env_name(env: Any) -> str:
    """The name of an environment, for folders and checkpoints; a class of the main program has its file's name."""
    if isinstance(env, str):
        return env
    module = env.__module__
    file = getattr(sys.modules["__main__"], "__file__", None)
    return f"{Path(file).stem if module == '__main__' and file else module}:{env.__qualname__}"


def import_folders(name: str) -> list[Path]:
    """Where the module of an import path was found, unless it is installed: it will be needed there again."""
    if not is_import_path(name):
        return []
    module_name = name.split(":", 1)[0] if ":" in name else name.rsplit(".", 1)[0]
    module = sys.modules.get(module_name) or sys.modules["__main__"]
    file = getattr(module, "__file__", None)
    if file is None or "site-packages" in file:
        return []
    path = Path(file).resolve()
    return [(path.parent if path.name == "__init__.py" else path).parents[module_name.count(".")]]


def find_env(env: Any, folders: Iterable[Path] = ()) -> tuple[str, Factory | None]:
    """(name, factory) of what a user wrote; that of a Gymnasium id is None. Modules are looked up in `folders` too."""
    if not isinstance(env, str):
        if not callable(env):
            raise ConfigError(f"env: a name, a class or a function is needed, not {env!r}")
        return env_name(env), env
    if env in _registered:
        return env, _registered[env]
    if env in _SHIPPED:
        return env, getattr(importlib.import_module(_SHIPPED[env]), env)
    if env.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    if env in gymnasium.registry or env.startswith("envpool/"):
        return env, None
    if _IMPORT_PATH.match(env) or ":" in env:
        return _import(env, folders)
    try:
        gymnasium.spec(env)  # an id without its version, or with one that is outdated
    except gymnasium.error.Error as error:
        raise EnvError(_unknown(env)) from error
    return env, None


def _unknown(env: str) -> str:
    hint = nearest(env, [*gymnasium.registry, *_registered, *_SHIPPED])
    if "Did you mean" not in hint:
        hint = "; a Gymnasium id, an import path (module:Class) or a name given to register_env() is needed"
    return f"no environment {env!r}{hint}"


def _import(env: str, folders: Iterable[Path]) -> tuple[str, Factory | None]:
    module_name, name = env.split(":", 1) if ":" in env else env.rsplit(".", 1)
    for folder in (*folders, Path.cwd()):
        if (text := str(folder.resolve())) not in sys.path:
            sys.path.append(text)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise EnvError(f"{env!r} needs the module {error.name!r}, which is not installed") from error
        raise EnvError(
            f"no module {module_name!r} for the environment {env!r}; it is looked up beside the experiment file, in "
            "the working directory and among the installed packages (with --trust, or trust=True, also in the folders "
            "that the run or checkpoint names)"
        ) from error
    except Exception as error:
        raise EnvError(f"importing {module_name!r} for the environment {env!r} raised {_short(error)}") from error
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            if ":" in env and env in _with_module(module_name):
                return env, None
            raise EnvError(f"module {module_name!r} has no {part!r}{nearest(part, _classes(module))}")
        found = getattr(found, part)
    if not callable(found):
        raise EnvError(f"{env!r} is a {type(found).__name__}, not a class or a function that makes an environment")
    return env, found


def _with_module(module_name: str) -> set[str]:
    """Gymnasium's own form `module:Id-v0`: the import has registered the id."""
    return {f"{module_name}:{env_id}" for env_id in gymnasium.registry}


def _classes(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, type)] or ["a class"]


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _make_by_id(spec: EnvSpec, extra: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    if spec.name.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
    try:
        return gymnasium.make(spec.name, disable_env_checker=True, **limit, **spec.env_config, **extra)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {spec.name!r}: {error}") from error
    except Exception as error:
        raise EnvError(_not_made(spec, error)) from error


def _make_by_factory(spec: EnvSpec, factory: Factory, extra: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    arguments = _arguments(factory, spec.env_config, extra)
    try:
        made = factory(**arguments)
    except Exception as error:
        raise EnvError(_not_made(spec, error)) from error
    if isinstance(made, gymnasium.vector.VectorEnv):
        mode = made.metadata.get("autoreset_mode", "unknown")
        raise EnvError(
            f"environment {spec.name!r} made a VectorEnv (autoreset mode {mode}); make single environments instead: "
            "EnvGroups vectorise them, and seed and restart each episode themselves"
        )
    env = adapt_old_style(made, spec.name)
    if spec.max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, spec.max_episode_steps)
    return env


def _not_made(spec: EnvSpec, error: Exception) -> str:
    return f"environment {spec.name!r} could not be made with env_config {spec.env_config}: {_short(error)}"


def _arguments(factory: Factory, env_config: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return {**env_config, **extra}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    extra = {name: value for name, value in extra.items() if name in parameters or takes_any}
    for name in ("env_config", "config"):
        if name in parameters:
            return {name: dict(env_config), **extra}
    return {**env_config, **extra}
