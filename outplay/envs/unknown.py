"""Error messages for unknown environment names: the most similar name, or the package to install."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from outplay.errors import nearest

# Well-known packages that register ids on import: (pattern of their ids, package to install, module to import).
_FAMILIES = (
    (r"MiniGrid-|BabyAI-", "minigrid", "minigrid"),
    (r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)-", "highway-env",
     "highway_env"),
    (r"dm_control/", "'shimmy[dm-control]'", "shimmy"),
    (r"bsuite/", "'shimmy[bsuite]'", "shimmy"),
    (r"MiniWorld-", "miniworld", "miniworld"),
    (r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)", "panda-gym", "panda_gym"),
    (r"Fetch(Reach|Push|Slide|PickAndPlace)|HandReach|HandManipulate|(Ant|Point)Maze_|AdroitHand|FrankaKitchen",
     "gymnasium-robotics", "gymnasium_robotics"),
    (r"Meta-World/", "metaworld", "metaworld"),
    (r"popgym-", "popgym", "popgym"),
    (r"PyFlyt/", "pyflyt", "PyFlyt.gym_envs"),
    (r"FlappyBird-", "flappy-bird-gymnasium", "flappy_bird_gymnasium"),
    (r"(forex|stocks)-", "gym-anytrading", "gym_anytrading"),
)  # fmt: skip
# Atari's ids before version 5: Pong-v0, PongNoFrameskip-v4, Pong-ramDeterministic-v4 …
_OLD_ATARI = re.compile(r"^([A-Za-z]+?)(-ram)?(NoFrameskip|Deterministic)?-v[0-4]$")


def unknown_env_message(env: str, others: Iterable[str]) -> str:
    """The error message for an unregistered id. `others` are known names that are not Gymnasium ids."""
    for pattern, package, module in _FAMILIES:
        if re.match(pattern, env):
            install = "" if importlib.util.find_spec(module.split(".")[0]) else f"pip install {package}, and "
            return f"no environment {env!r} before {module!r} is imported: {install}name it {module + ':' + env!r}"
    if meant := _other_version(env) or _atari(env):
        return f"no environment {env!r}. Did you mean {meant!r}?"
    hint = nearest(env, [*gymnasium.registry, *others])
    if "Did you mean" not in hint:
        hint = "; give a Gymnasium id, an import path (module:Class) or a name registered with register_env()"
    return f"no environment {env!r}{hint}"


def newer_version_hint(env_id: str) -> str:
    """The end of an error message: the newest version of an environment. Empty if `env_id` is the newest."""
    newest = _other_version(env_id)
    return f"; the newest version is {newest!r}" if newest and newest != env_id else ""


def _other_version(env: str) -> str | None:
    try:
        namespace, name, _ = parse_env_id(env)
    except gymnasium.error.Error:
        return None
    version = find_highest_version(namespace, name)
    return None if version is None else f"{namespace + '/' if namespace else ''}{name}-v{version}"


def _atari(env: str) -> str | None:
    """The current id of a game. Looked up in the files of ale-py, because importing ale-py would register ids."""
    matched, package = _OLD_ATARI.match(env), importlib.util.find_spec("ale_py")
    if not matched or package is None:
        return None
    folders = [Path(folder) / "roms" for folder in package.submodule_search_locations or ()]
    games = {_capitalized(rom.stem) for folder in folders for rom in folder.glob("*.bin")}
    return f"ALE/{matched[1]}-v5" if matched[1] in games else None


def _capitalized(game: str) -> str:
    return "".join(word.capitalize() for word in game.split("_"))
