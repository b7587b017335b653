"""Shows one episode of a policy in a window: Gymnasium's render mode `human`."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import Any

from outplay.collect.episodes import EpisodeLimits, play_episodes
from outplay.collect.video import has_display
from outplay.envs import EnvSpec
from outplay.envs.group import interleave
from outplay.envs.vector import PythonVector
from outplay.errors import ConfigError, EnvError
from outplay.policies import Policy
from outplay.streams import seed_for, stream

_MODE = "human"


def check_window(spec: EnvSpec) -> None:
    """Raise if no window can show this environment. Opens none: environments do so when they are reset."""
    if sys.platform == "linux" and not has_display() and not os.environ.get("SDL_VIDEODRIVER"):
        raise ConfigError(
            "render_env: there is no display for a window (DISPLAY and WAYLAND_DISPLAY are not set); use record_env: "
            "true, which records videos, or render_env: false"
        )
    remedy = "use record_env: true, which records videos"
    if spec.is_atari or spec.is_envpool:
        library = "ale-py's vector environment" if spec.is_atari else "EnvPool"
        raise EnvError(f"render_env: environment {spec.name!r} runs in {library}, which has no window; {remedy}")
    with closing(spec.make()) as env:
        modes = (env.metadata or {}).get("render_modes") or []
    if _MODE not in modes:
        raise EnvError(
            f"render_env: environment {spec.name!r} has no render mode {_MODE!r} (its metadata['render_modes'] is "
            f"{list(modes)}); {remedy}"
        )
    with closing(spec.make(render_mode=_MODE)) as env:
        if env.unwrapped.render_mode != _MODE:
            raise EnvError(f"render_env: environment {spec.name!r} takes no argument render_mode; {remedy}")


def show_episode(
    spec: EnvSpec, policy: Policy, seed: int, explore: bool = False, longest: int | None = None, task: Any = None
) -> float:
    """Play one episode of at most `longest` steps in a window. Returns the episode's return."""
    limits = EpisodeLimits(total_steps=longest)
    with closing(PythonVector(spec, 1, render_mode=_MODE)) as vector:
        seeds, rng = [seed_for(seed, "video")], stream(seed, "video")
        (results,) = interleave([play_episodes(vector, policy, seeds, rng, explore, limits, task)])
    return float(results.returns[0])
