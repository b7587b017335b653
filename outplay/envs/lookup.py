"""Resolves the setting `env` to an EnvSpec that creates environments.

`env` is one of:
- a name registered with `register_env`, or by an installed package (`outplay.registry`);
- a Gymnasium id;
- an import path (`custom_env.CustomEnv`, `package.module:Class`);
- a class or a function.

If importing a module registers the name or id, it may be written `module:id`. `module:id` and `id` are the same
environment.
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
from outplay.envs.global_streams import OwnStreams
from outplay.envs.oldstyle import adapt_old_style
from outplay.envs.unfit import import_problem, instance_message
from outplay.envs.unknown import missing_package, newer_version_hint, unknown_env_message
from outplay.envs.wrappers import statistics_in
from outplay.errors import CheckpointError, ConfigError, EnvError, nearest, type_name
from outplay.imports import import_for
from outplay.registry import envs
from outplay.sequences import DEFAULT, Reading

log = logging.getLogger("outplay")

Factory = Callable[..., Any]

_registered: dict[str, Factory] = {}
_registered_by: dict[str, str] = {}  # the module that called register_env
_IMPORT_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*$")


def register_env(name: str, factory: Factory) -> None:
    """Register an environment under a name, for `env: name` in a config or an experiment file.

    `factory` is a class or a function. If it has a parameter `env_config` (or `config`), that parameter gets the whole
    dict. A function with exactly one parameter of any other name gets the dict, too. All other factories get the items
    of `env_config` as keyword arguments.

    >>> outplay.register_env("maze", lambda env_config: Maze(size=env_config.get("size", 5)))
    >>> PPO(env="maze", config={"env_config": {"size": 9}})
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_env() takes a string as its name, not {name!r}")
    if not callable(factory):
        raise ConfigError(f"register_env({name!r}, …) takes a class or a function, not {factory!r}")
    _registered[name] = factory
    caller = inspect.currentframe()
    assert caller is not None
    assert caller.f_back is not None
    _registered_by[name] = caller.f_back.f_globals.get("__name__", "")


def registrations(config: Any) -> tuple[dict[str, Factory], dict[str, Any]]:
    """What another process needs to find the environments that `config` may name, as (factories, Gymnasium's specs)."""
    found: dict[str, Any] = {}

    def visit(value: Any) -> None:
        if isinstance(value, str) and value in gymnasium.registry:
            found[value] = gymnasium.registry[value]
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
            visit(child)

    visit(config)
    return dict(_registered), found


def apply_registrations(given: tuple[dict[str, Factory], dict[str, Any]]) -> None:
    """Register what `registrations` returned in another process."""
    factories, specs = given
    _registered.update(factories)
    _registered_by.update(dict.fromkeys(factories, ""))
    for name, spec in specs.items():
        gymnasium.registry.setdefault(name, spec)


@dataclass(frozen=True)
class EnvSpec:
    """Everything needed to create one environment, in any process. `factory` is None for a Gymnasium id."""

    name: str
    factory: Factory | None = None
    env_config: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    frame_stack: int = 1
    atari_preprocessing: bool = True
    step_timeout_s: float | None = None
    fire_on_reset: bool = False
    reading: Reading = DEFAULT
    global_streams: tuple[str, ...] = ()  # global random generators that the environment uses: see OwnStreams

    # Gymnasium's registry entry of the id, for a process that has not imported the module that registers it.
    registration: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        needed = self.factory is None and self.registration is None and import_path(self.id) != self.id
        return {**vars(self), **({"registration": gymnasium.registry.get(self.id)} if needed else {})}

    def register(self) -> None:
        """Register the id with Gymnasium in this process."""
        if self.registration is None or self.id in gymnasium.registry:
            return
        if isinstance(entry_point := self.registration.entry_point, str):
            try:
                importlib.import_module(entry_point.split(":")[0])  # importing the package may register the id
            except Exception as error:
                raise EnvError(_creation_error(self, error)) from error
        gymnasium.registry.setdefault(self.id, self.registration)

    @property
    def id(self) -> str:
        """The name without `module:`."""
        return self.name.rsplit(":", 1)[-1]

    @property
    def is_atari(self) -> bool:
        """Whether this runs in ale-py's vector, with its preprocessing."""
        return self.factory is None and self.id.startswith("ALE/") and self.atari_preprocessing

    @property
    def is_envpool(self) -> bool:
        return self.factory is None and self.name.startswith("envpool/")

    @property
    def frame_skip(self) -> int:
        """Frames per step of ale-py's vector."""
        return int(self.env_config.get("frameskip", 4))

    @property
    def stacked_frames(self) -> int:
        """Number of frames stacked by Outplay: the first axis of an image, the newest frame last."""
        stacked = self.frame_stack
        if self.is_atari:
            stacked = int(self.env_config.get("stack_num", 4 if stacked == 1 else stacked))
        return 1 if self.is_envpool else stacked

    def make(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Create one environment with its wrappers, for the Python vector."""
        if self.global_streams:
            return OwnStreams(lambda: self._make(render_mode), self.global_streams)
        return self._make(render_mode)

    def _make(self, render_mode: str | None) -> gymnasium.Env[Any, Any]:
        extra = {} if render_mode is None else {"render_mode": render_mode}
        env = _make_by_id(self, extra) if self.factory is None else _make_by_factory(self, self.factory, extra)
        if self.frame_stack > 1:
            env = gymnasium.wrappers.FrameStackObservation(env, self.frame_stack)
        return env if self.step_timeout_s is None else TimedEnv(env, self.name, self.step_timeout_s)


def is_import_path(env: Any) -> bool:
    """Whether resolving this name would import a module that is not Outplay's own."""
    if not isinstance(env, str) or env in _registered or _is_example(env):
        return False
    if ":" in env:
        return True
    return bool(_IMPORT_PATH.match(env)) and env not in gymnasium.registry and env not in envs


def _is_example(path: str) -> bool:
    """Whether an import path names an example of Outplay.

    Other names in Outplay do not count: some of its functions import what their arguments name.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module.startswith("outplay.envs.examples"):
        return False
    from outplay.envs import examples  # they need this package

    return name in examples.__all__ and module in (examples.__name__, getattr(examples, name).__module__)


def check_trust(recorded: str, given: Any, trust: bool, where: str, remedy: str) -> None:
    """Raise CheckpointError if a name from disk would be imported, and the user neither repeated nor trusted it."""
    if given is not None and not _is_same_env(env_name(given), recorded):
        raise CheckpointError(f"{where} is of the environment {recorded!r}, not of {env_name(given)!r}")
    if given is None and (problem := import_problem(recorded)) is not None:
        raise CheckpointError(f"{where}: {problem}")
    # A plain id does not repeat the module that would be imported.
    is_repeated = given is not None and is_import_path(env_name(given))
    if is_import_path(recorded) and not (is_repeated or trust or _is_registered(recorded)):
        raise CheckpointError(
            f"{where} names the environment {recorded!r}, which would be imported; if you trust it, {remedy}"
        )


def _is_same_env(one: str, other: str) -> bool:
    """Whether two names mean the same environment. `module:id` and `id` do."""
    if one.replace(":", ".") == other.replace(":", "."):
        return True
    (module, name), (other_module, other_name) = (_with_module(text) for text in (one, other))
    if name != other_name:
        return False
    # Any module of a package may register an id. But classes in different modules are different.
    in_one_package = module.split(".")[0] == other_module.split(".")[0] and not name.isidentifier()
    return in_one_package or not module or not other_module


def _with_module(name: str) -> tuple[str, str]:
    """Split "module:id" into ("module", "id"). The module is empty for a plain id."""
    module, _, rest = name.rpartition(":")
    return module, rest


def _is_registered(name: str) -> bool:
    """Whether the id of `module:id` is registered already, so that nothing has to be imported."""
    module, env_id = _with_module(name)
    return bool(module) and import_path(env_id) != env_id


def import_path(name: str) -> str:
    """`module:name` if importing a module registered the name, so that a new process can resolve it; else the name."""
    if name in _registered:
        module = _registered_by[name]
    elif ":" in name or name.startswith("ALE/") or name not in gymnasium.registry:
        return name
    else:
        entry_point = gymnasium.registry[name].entry_point
        module = entry_point.split(":")[0] if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    if module == "__main__":
        module = _main_module()
    return name if not module or module.split(".")[0] == "gymnasium" else f"{module}:{name}"


def _main_module() -> str:
    """The name under which the main program can be imported. Empty if it is not a file."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else ""


def env_name(env: Any) -> str:
    """The name of an environment, for folders and checkpoints. `__main__` is replaced by the program's file name."""
    if isinstance(env, str):
        return env
    module = env.__module__
    name = getattr(env, "__qualname__", type(env).__qualname__)  # functools.partial has none
    return f"{(module == '__main__' and _main_module()) or module}:{name}"


def import_folders(name: str) -> list[Path]:
    """The folder that contains the module of an import path, for `sys.path` of a new process. Empty if the module is
    installed."""
    name = import_path(name)
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
    """Resolve `env` to (name, factory). The factory of a Gymnasium id is None. `folders` extend the import path."""
    if not isinstance(env, str):
        if (message := instance_message(env)) is not None:
            raise ConfigError(message)
        if not callable(env):
            raise ConfigError(f"env must be a string, a class or a function, not {env!r}")
        return env_name(env), env
    if env in _registered:
        return env, _registered[env]
    if env.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    if env in gymnasium.registry or env.startswith("envpool/"):
        return env, None
    if env in envs:
        return env, _load_registered(env)
    if _is_registered(env):
        return env, _registered.get(_with_module(env)[1])
    if _IMPORT_PATH.match(env) or ":" in env:
        return _import(env, folders)
    try:
        gymnasium.spec(env)  # an id without a version, or with an outdated version
    except gymnasium.error.Error as error:
        raise EnvError(unknown_env_message(env, [*_registered, *envs.names()])) from error
    return env, None


def _load_registered(env: str) -> Factory:
    """The class or function that Outplay or an installed package registers under this name."""
    factory = envs.load(env)
    if not callable(factory):
        raise EnvError(f"the environment {env!r} is {factory!r}, not a class or a function that returns an environment")
    return factory  # type: ignore[no-any-return]


def _import(env: str, folders: Iterable[Path]) -> tuple[str, Factory | None]:
    if (problem := import_problem(env)) is not None:
        raise EnvError(problem)
    module_name, name = env.split(":", 1) if ":" in env else env.rsplit(".", 1)
    module = import_for(f"the environment {env!r}", module_name, folders, EnvError)
    if ":" in env and (name in _registered or name in gymnasium.registry):  # registered by the import
        return env, _registered.get(name)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            if not part.isidentifier():  # an id, not a class
                raise EnvError(f"importing {module_name!r} registers no {name!r}{_nearest_id(name)}")
            raise EnvError(f"module {module_name!r} has no {part!r}{nearest(part, _classes(module))}")
        found = getattr(found, part)
    if not callable(found):
        raise EnvError(f"{env!r} is {type_name(found)}, not a class or a function that returns an environment")
    return env, found


def _nearest_id(name: str) -> str:
    hint = nearest(name, gymnasium.registry)
    return hint if "Did you mean" in hint else ""


def _classes(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, type)] or ["a class"]


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _make_by_id(spec: EnvSpec, extra: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    spec.register()
    if spec.id.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
    try:
        return gymnasium.make(spec.id, disable_env_checker=True, **limit, **spec.env_config, **extra)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {spec.name!r}{missing_package(spec.id, error)}") from error
    except ImportError as error:  # an old version may need a package that no longer exists
        raise EnvError(_creation_error(spec, error) + newer_version_hint(spec.id)) from error
    except Exception as error:
        raise EnvError(_creation_error(spec, error)) from error


def _make_by_factory(spec: EnvSpec, factory: Factory, extra: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    positional, by_name = _arguments(factory, spec.env_config, extra)
    try:
        made = factory(*positional, **by_name)
    except Exception as error:
        raise EnvError(_creation_error(spec, error)) from error
    if isinstance(made, gymnasium.vector.VectorEnv):
        mode = made.metadata.get("autoreset_mode", "unknown")
        statistics = statistics_in(made)
        raise EnvError(
            f"environment {spec.name!r} is a VectorEnv (autoreset mode {mode}); return a single environment instead: "
            "EnvGroups vectorise environments, and seed and reset each episode themselves"
            + ("" if statistics is None else f"; {statistics[0]}: {statistics[1]}")
        )
    env = adapt_old_style(made, spec.name)
    if spec.max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, spec.max_episode_steps)
    return env


def _creation_error(spec: EnvSpec, error: Exception) -> str:
    return f"environment {spec.name!r} could not be created with env_config {spec.env_config}: {_short(error)}"


def _arguments(factory: Factory, env_config: dict[str, Any], extra: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments for a factory."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return [], {**env_config, **extra}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    extra = {name: value for name, value in extra.items() if name in parameters or takes_any}
    for name in ("env_config", "config"):
        if name in parameters:
            return [], {name: dict(env_config), **extra}
    if not isinstance(factory, type) and _takes_one_dict(list(parameters.values()), env_config):
        return [dict(env_config)], {}
    return [], {**env_config, **extra}


def _takes_one_dict(parameters: list[inspect.Parameter], env_config: dict[str, Any]) -> bool:
    """Whether a function has exactly one parameter, not named like an item of `env_config`: it gets the whole dict."""
    if len(parameters) != 1 or parameters[0].name in (*env_config, "render_mode"):
        return False
    is_plain = parameters[0].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    default = parameters[0].default
    return is_plain and (default is inspect.Parameter.empty or default is None or isinstance(default, dict))
