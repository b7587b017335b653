"""Error messages for environments that are unknown or lack a package: the most similar name, or what to install."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from outplay.errors import nearest
from outplay.registry import atari_games

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
# Families of Gymnasium's own environments: (their modules, what they need, the extra that has it).
_EXTRAS = (
    ("gymnasium.envs.box2d.", "Box2D", "box2d"),
    ("gymnasium.envs.mujoco.", "MuJoCo", "mujoco"),
)
# Parts of Atari's ids before version 5: PongNoFrameskip-v4, Pong-ramDeterministic-v4 …
_ATARI_KINDS = re.compile(r"(ram)?(noframeskip|deterministic)?$")


def unknown_env_message(env: str, others: Iterable[str]) -> str:
    """The error message for an unregistered id. `others` are known names that are not Gymnasium ids."""
    for pattern, package, module in _FAMILIES:
        if re.match(pattern, env):
            install = "" if importlib.util.find_spec(module.split(".")[0]) else f"pip install {package}, and "
            return f"no environment {env!r} before {module!r} is imported: {install}name it {module + ':' + env!r}"
    if meant := _other_version(env) or _same_letters(env):
        return f"no environment {env!r}. Did you mean {meant!r}?"
    hint = nearest(env, [*gymnasium.registry, *others])
    if "Did you mean" not in hint:
        hint = "; give a Gymnasium id, an import path (module:Class) or a name registered with register_env()"
    return f"no environment {env!r}{hint}"


def missing_package(env_id: str, error: BaseException) -> str:
    """The end of an error message: what an environment needs that is not installed, and how to install it."""
    made_by = str(gymnasium.registry[env_id].entry_point) if env_id in gymnasium.registry else ""
    for module, package, extra in _EXTRAS:
        if made_by.startswith(module):
            return f" needs {package}: pip install 'outplay[{extra}]'"
    return f": {error}"


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
    newest = f"{namespace + '/' if namespace else ''}{name}-v{version}"
    return None if version is None or _is_old_atari(newest) else newest


def _is_old_atari(env: str) -> bool:
    """Whether this is an id that ale-py registers beside ALE/…-v5: Pong-v4, PongNoFrameskip-v4 …"""
    return "/" not in env and str(gymnasium.registry[env].entry_point).startswith("ale_py")


def _same_letters(env: str) -> str | None:
    """The id with the same letters: of `cartpole` CartPole-v1, of `pong` and `PongNoFrameskip-v4` ALE/Pong-v5."""
    plain = [known for known in gymnasium.registry if "/" not in known and not _is_old_atari(known)]
    known = {_letters(known): known for known in sorted(plain, key=_version)}
    games = {_letters(game): f"ALE/{game}-v5" for game in atari_games()}
    wanted = _letters(env)
    return known.get(wanted) or games.get(_ATARI_KINDS.sub("", wanted))


def _letters(env: str) -> str:
    """The letters and digits of an id, without namespace and version."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-v\d+$", "", env.rpartition("/")[2]).lower())


def _version(env: str) -> int:
    return parse_env_id(env)[2] or 0
