"""Registered algorithms, environments, callbacks and loggers: built-in ones, and those of installed packages.

A package registers its own with entry points, which are loaded on first use:

    [project.entry-points."outplay.algorithms"]
    MyPPO = "my_package.my_ppo:MyPPO"

    [project.entry-points."outplay.envs"]
    Maze = "my_package.maze:Maze"

    [project.entry-points."outplay.callbacks"]
    slack = "my_package.slack:SlackCallback"

    [project.entry-points."outplay.loggers"]
    sqlite = "my_package.sqlite:SqliteSink"

This is the only list of algorithms.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.errors import ConfigError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # slow to import

    # For type checkers: `outplay` and `outplay.algorithms` load these on first use.
    from outplay.algorithms.a2c import A2C, A2CConfig
    from outplay.algorithms.appo import APPO, APPOConfig
    from outplay.algorithms.bc import BC, BCConfig
    from outplay.algorithms.cql import CQL, CQLConfig
    from outplay.algorithms.ddpg import DDPG, DDPGConfig
    from outplay.algorithms.dqn import DQN, DQNConfig
    from outplay.algorithms.impala import IMPALA, IMPALAConfig
    from outplay.algorithms.iql import IQL, IQLConfig
    from outplay.algorithms.marwil import MARWIL, MARWILConfig
    from outplay.algorithms.pg import PG, PGConfig
    from outplay.algorithms.ppo import PPO, PPOConfig
    from outplay.algorithms.pqn import PQN, PQNConfig
    from outplay.algorithms.sac import SAC, SACConfig
    from outplay.algorithms.td3 import TD3, TD3Config

__all__ = [
    "A2C",
    "APPO",
    "BC",
    "CQL",
    "DDPG",
    "DQN",
    "IMPALA",
    "IQL",
    "MARWIL",
    "PG",
    "PPO",
    "PQN",
    "SAC",
    "TD3",
    "A2CConfig",
    "APPOConfig",
    "BCConfig",
    "CQLConfig",
    "DDPGConfig",
    "DQNConfig",
    "IMPALAConfig",
    "IQLConfig",
    "MARWILConfig",
    "PGConfig",
    "PPOConfig",
    "PQNConfig",
    "SACConfig",
    "TD3Config",
]


@dataclass(frozen=True)
class Registry:
    """Objects of one kind, by name. A package cannot replace a built-in name.

    >>> algorithms.load("PPO")
    <class 'outplay.algorithms.ppo.PPO'>
    """

    kind: str  # in error messages
    group: str  # of entry points
    shipped: dict[str, str] = field(default_factory=dict)  # name: "module:attribute"

    def __contains__(self, name: object) -> bool:
        return name in self.shipped or name in _installed(self.group)

    def names(self) -> list[str]:
        """All names that `load` accepts. Imports nothing."""
        return [*self.shipped, *(name for name in _installed(self.group) if name not in self.shipped)]

    def load(self, name: str) -> Any:
        """Import and return the object with this name."""
        if name in self.shipped:
            module, _, attribute = self.shipped[name].partition(":")
            return getattr(import_module(module), attribute)
        if name not in self:
            raise ConfigError(f"no {self.kind} {name!r}{self._hint(name)}")
        return self._load_installed(name)

    def _hint(self, name: str) -> str:
        if not self.names():
            return "; no installed package registers one"
        hints = [nearest(spelling, self.names()) for spelling in (name, name.upper())]
        return next((hint for hint in hints if "Did you mean" in hint), hints[0])

    def _load_installed(self, name: str) -> Any:
        claims = _installed(self.group)[name]
        if len(claims) > 1:
            packages = ", ".join(sorted(_package(claim) for claim in claims))
            raise ConfigError(
                f"the {self.kind} {name!r} is registered by several packages ({packages}): uninstall all but one"
            )
        try:
            return claims[0].load()
        except Exception as error:
            package = _package(claims[0])
            raise ConfigError(
                f"the package {package} registers the {self.kind} {name!r} as {claims[0].value!r}, which cannot be "
                f"loaded: {type(error).__name__}: {error}; update or uninstall {package}"
            ) from error


algorithms = Registry(
    "algorithm",
    "outplay.algorithms",
    {
        "PG": "outplay.algorithms.pg:PG",
        "A2C": "outplay.algorithms.a2c:A2C",
        "PPO": "outplay.algorithms.ppo:PPO",
        "DQN": "outplay.algorithms.dqn:DQN",
        "PQN": "outplay.algorithms.pqn:PQN",
        "SAC": "outplay.algorithms.sac:SAC",
        "TD3": "outplay.algorithms.td3:TD3",
        "DDPG": "outplay.algorithms.ddpg:DDPG",
        "IMPALA": "outplay.algorithms.impala:IMPALA",
        "APPO": "outplay.algorithms.appo:APPO",
        "BC": "outplay.algorithms.bc:BC",
        "MARWIL": "outplay.algorithms.marwil:MARWIL",
        "CQL": "outplay.algorithms.cql:CQL",
        "IQL": "outplay.algorithms.iql:IQL",
    },
)
envs = Registry("environment", "outplay.envs", {"PongDifference": "outplay.envs.pong:PongDifference"})
callbacks = Registry("callback", "outplay.callbacks")
loggers = Registry(
    "logger",
    "outplay.loggers",
    {
        "csv": "outplay.runs.sinks:Csv",
        "tensorboard": "outplay.runs.sinks:TensorBoard",
        "wandb": "outplay.runs.tracking:Wandb",
        "mlflow": "outplay.runs.tracking:Mlflow",
    },
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'outplay.registry' has no attribute {name!r}")
    algorithm = algorithms.load(name.removesuffix("Config"))
    return algorithm.Config if name.endswith("Config") else algorithm


_TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}  # ale-py registers no id for them


@lru_cache(maxsize=1)
def atari_games() -> list[str]:
    """The games of ale-py, as in ALE/<game>-v5. Read from its files: importing ale-py would register ids."""
    games = {rom.stem for folder in _folders("ale_py") for rom in (folder / "roms").glob("*.bin")}
    return sorted(game.title().replace("_", "") for game in games - _TWO_PLAYERS)


def env_ids() -> list[str]:
    """The ids that Gymnasium, ale-py and packages for Outplay register. Read from files: it imports none of them."""
    files = [folder / "envs" / "__init__.py" for folder in _folders("gymnasium")]
    ids = [name for file in files if file.exists() for name in re.findall(r'\bid="([^"]+)"', file.read_text())]
    return [*ids, *(f"ALE/{game}-v5" for game in atari_games()), *envs.names()]


def _folders(package: str) -> list[Path]:
    """The folders of an installed package, which is not imported."""
    found = find_spec(package)
    return [] if found is None else [Path(folder) for folder in found.submodule_search_locations or ()]


def _installed(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of installed packages, by name."""
    return _entry_points(group, tuple(sys.path))


@lru_cache(maxsize=16)
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:  # noqa: ARG001 - part of the cache key
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=group):
        claims = found.setdefault(entry_point.name, [])
        if entry_point not in claims:  # a package may be on the path twice
            claims.append(entry_point)
    return found


def _package(entry_point: EntryPoint) -> str:
    return repr(entry_point.dist.name if entry_point.dist is not None else entry_point.module.split(".")[0])
