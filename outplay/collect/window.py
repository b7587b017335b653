"""Shows one episode of a policy in a window: Gymnasium's render mode `human`, or frames of an Atari game."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import closing
from typing import Any

import numpy as np

from outplay.collect.episodes import EpisodeLimits, play_episodes
from outplay.collect.video import AtariFrames, has_display
from outplay.envs import EnvSpec
from outplay.envs.group import interleave
from outplay.envs.vector import PythonVector
from outplay.errors import ConfigError, EnvError
from outplay.policies import Policy
from outplay.streams import seed_for, stream

_MODE = "human"
_ATARI_SCALE = 3  # pixels of the window per pixel of the game


def check_window(spec: EnvSpec) -> None:
    """Raise if no window can show this environment. Opens none: environments do so when they are reset."""
    if sys.platform == "linux" and not has_display() and not os.environ.get("SDL_VIDEODRIVER"):
        raise ConfigError(
            "render_env: there is no display for a window (DISPLAY and WAYLAND_DISPLAY are not set); use record_env: "
            "true, which records videos, or render_env: false"
        )
    remedy = "use record_env: true, which records videos"
    if spec.is_envpool:
        raise EnvError(f"render_env: environment {spec.name!r} has no window: EnvPool does not render its environments")
    if spec.is_atari:
        if importlib.util.find_spec("pygame") is None:
            raise EnvError("render_env: the window of an Atari game needs pygame: pip install 'outplay[video]'")
        return
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
    seeds, rng = [seed_for(seed, "video")], stream(seed, "video")
    with closing(_AtariWindow(spec, seeds) if spec.is_atari else _Window(spec)) as window:
        limits = EpisodeLimits(total_steps=longest)
        player = play_episodes(window.vector, policy, seeds, rng, explore, limits, task, window.watch)
        (results,) = interleave([player])
    return float(results.returns[0])


class _Window:
    """An environment that draws itself."""

    def __init__(self, spec: EnvSpec) -> None:
        self.vector = PythonVector(spec, 1, render_mode=_MODE)

    def watch(self, actions: np.ndarray | None, rewards: np.ndarray) -> None:
        """In this render mode, reset() and step() draw."""

    def close(self) -> None:
        self.vector.close()


class _AtariWindow:
    """The frames of an Atari game. ale-py's vector, which the policy plays, has no window."""

    def __init__(self, spec: EnvSpec, seeds: list[int]) -> None:
        import pygame

        self._pygame, self._seeds = pygame, seeds
        self._frames = AtariFrames(spec)
        self.vector = self._frames.vector
        pygame.display.init()
        pygame.display.set_caption(spec.name)
        self._clock = pygame.time.Clock()

    def watch(self, actions: np.ndarray | None, _: np.ndarray) -> None:
        frame = self._frames.frame(self._seeds, actions)
        height, width = (size * _ATARI_SCALE for size in frame.shape[:2])
        screen = self._pygame.display.get_surface() or self._pygame.display.set_mode((width, height))
        drawn = self._pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        self._pygame.transform.scale(drawn, (width, height), screen)
        self._pygame.event.pump()  # the system asks the window whether it still lives
        self._pygame.display.flip()
        self._clock.tick(self._frames.fps)

    def close(self) -> None:
        self._frames.close()
        self._pygame.display.quit()
