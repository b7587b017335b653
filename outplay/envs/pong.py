"""Pong as Andrej Karpathy's "Pong from Pixels" (2016) sees it: what has moved on the field, and two actions.

An observation is the difference of two frames of 80 × 80 pixels, each 1 where a paddle or the ball is and 0 elsewhere;
the first one of a game is empty. The action is whether to move up; the paddle moves down otherwise.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms

Array = np.ndarray

_PIXELS = 80 * 80
_EMPTY = (0, 34, 228)  # black and the field's two colours, by their numbers in the console's palette
_DOWN, _UP = ale_py.Action.LEFT, ale_py.Action.RIGHT


class PongDifference(gymnasium.Env[Array, Array]):
    """One game, on the emulator itself: a step takes hardly longer than the emulator's.

    >>> PG(env="PongDifference", config={"env_config": {"frameskip": 4, "repeat_action_probability": 0.25}})
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - as Gymnasium has it
    observation_space = gymnasium.spaces.Box(-1, 1, (_PIXELS,), np.int8)
    action_space = gymnasium.spaces.MultiBinary(1)

    def __init__(
        self, frameskip: int = 4, repeat_action_probability: float = 0.0, render_mode: str | None = None
    ) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.render_mode = render_mode
        self._game = ale_py.ALEInterface()
        self._game.setInt("frame_skip", frameskip)
        self._game.setFloat("repeat_action_probability", repeat_action_probability)
        self._draws_lots = repeat_action_probability > 0
        self._game.loadROM(roms.get_rom_path("pong"))
        self._screen = np.empty((210, 160), np.uint8)
        self._before = np.zeros(_PIXELS, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None and self._draws_lots:  # a new seed takes effect when the game is loaded, which takes long
            self._game.setInt("random_seed", seed)
            self._game.loadROM(roms.get_rom_path("pong"))
        self._game.reset_game()
        self._before = self._things()
        return np.zeros(_PIXELS, np.int8), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(self._game.act(_UP if action[0] else _DOWN))
        now = self._things()
        moved, self._before = now - self._before, now
        truncated = self._game.game_truncated()
        return moved, reward, self._game.game_over() and not truncated, truncated, {}

    def _things(self) -> Array:
        """1 where something is, on the field without its frame, every second pixel."""
        self._game.getScreen(self._screen)
        field = self._screen[35:195:2, ::2].ravel()
        black, *others = _EMPTY
        things = field != black
        for colour in others:
            things &= field != colour
        seen: Array = things.view(np.int8)
        return seen

    def render(self) -> Any:
        return self._game.getScreenRGB()
