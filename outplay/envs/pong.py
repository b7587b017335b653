"""Pong as Andrej Karpathy's "Pong from Pixels" (2016) sees it: what has moved on the field, and two actions.

An observation is the difference of two frames of 80 × 80 pixels, each 1 where a paddle or the ball is and 0 elsewhere;
the first one of a game is empty. The action is whether to move up; the paddle moves down otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from outplay import spaces
from outplay.envs.lookup import EnvSpec
from outplay.envs.native import AtariVector
from outplay.envs.vector import Array, State
from outplay.errors import EnvError, nearest
from outplay.spaces import Leaves

_GAME = "ALE/Pong-v5"
_SIDE = 80
_PIXELS = _SIDE * _SIDE
_EMPTY = (0, 87, 107)  # black, and the greys of the field
_UP, _DOWN = 2, 3
_OPTIONS = {"frameskip": 4, "repeat_action_probability": 0.0}
# Frames as the emulator shows them; no random start, no fire button: the game begins as it begins.
_AS_IT_IS = {
    "img_height": 210,
    "img_width": 160,
    "stack_num": 1,
    "maxpool": False,
    "noop_max": 0,
    "use_fire_reset": False,
}


class PongDifference(gymnasium.Env[Array, Array]):
    """One game; `vector` plays many.

    >>> PG(env="PongDifference", config={"env_config": {"frameskip": 4, "repeat_action_probability": 0.25}})
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - as Gymnasium has it
    observation_space = gymnasium.spaces.Box(-1, 1, (_PIXELS,), np.int8)
    action_space = gymnasium.spaces.MultiBinary(1)

    def __init__(self, render_mode: str | None = None, **options: Any) -> None:
        import ale_py

        gymnasium.register_envs(ale_py)
        self.render_mode = render_mode
        self._game = gymnasium.make(_GAME, obs_type="grayscale", render_mode=render_mode, **_checked(options))
        self._before = np.zeros((1, _PIXELS), np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        frame, info = self._game.reset(seed=seed, options=options)
        self._before = _things(frame[None])
        return np.zeros(_PIXELS, np.int8), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self._game.step(int(_moves(action[None])[0]))
        now = _things(frame[None])
        moved, self._before = now - self._before, now
        return moved[0], float(reward), terminated, truncated, info

    def render(self) -> Any:
        return self._game.render()

    def close(self) -> None:
        self._game.close()

    @staticmethod
    def vector(spec: EnvSpec, num_envs: int, num_threads: int, apart: bool) -> PongDifferenceVector:
        return PongDifferenceVector(spec, num_envs, num_threads, apart)


class PongDifferenceVector:
    """Many games, on ale-py's vector."""

    inexact = ""

    def __init__(self, spec: EnvSpec, num_envs: int, num_threads: int, apart: bool) -> None:
        options = {**_checked(spec.env_config), **_AS_IT_IS}
        self._games = AtariVector(
            replace(spec, name=_GAME, factory=None, env_config=options), num_envs, num_threads, apart
        )
        self.num_envs = num_envs
        self.episodes_per_seed = self._games.episodes_per_seed
        self.observation_space: gymnasium.Space[Any] = PongDifference.observation_space
        self.action_space: gymnasium.Space[Any] = PongDifference.action_space
        self.leaves = spaces.leaves(self.observation_space)
        self._before = np.zeros((num_envs, _PIXELS), np.int8)
        self._moved = np.zeros((num_envs, _PIXELS), np.int8)

    def reset(self, lanes: Array, seeds: Sequence[int | None], tasks: Sequence[Any] | None = None) -> Leaves:
        (frames,) = self._games.reset(lanes, seeds, tasks)
        self._before[lanes] = _things(frames[lanes, 0])
        self._moved = np.where(lanes[:, None], np.int8(0), self._moved)
        return (self._moved,)

    def begin(self, actions: Array, lanes: Array | None = None) -> None:
        self._games.begin(_moves(actions), lanes)

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:
        (frames,), rewards, terminated, truncated = self._games.step(_moves(actions), lanes)
        now = _things(frames[:, 0])
        self._moved, self._before = now - self._before, now
        return (self._moved,), rewards, terminated, truncated

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> Leaves:
        return self._games.set_state(state)

    def close(self) -> None:
        self._games.close()


def _things(frames: Array) -> Array:
    """1 where something is, on the field without its frame, every second pixel: (E, 210, 160) to (E, 6400)."""
    field = np.ascontiguousarray(frames[:, 35:195:2, ::2]).reshape(len(frames), _PIXELS)
    empty = field == _EMPTY[0]
    for grey in _EMPTY[1:]:
        empty |= field == grey
    things: Array = (~empty).view(np.int8)
    return things


def _moves(actions: Array) -> Array:
    return np.where(actions[:, 0], _UP, _DOWN)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _OPTIONS:
            raise EnvError(f"PongDifference: env_config has no {name!r}{nearest(name, _OPTIONS)}")
    return {**_OPTIONS, **options}
