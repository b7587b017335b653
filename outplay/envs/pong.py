"""Pong with the preprocessing of Andrej Karpathy's "Pong from Pixels" (2016): frame differences and two actions.

An observation is the difference of two consecutive binary frames of 80 × 80 pixels. A pixel is 1 where a paddle or the
ball is, else 0. The first observation of an episode is all zeros. Action 1 moves the paddle up, action 0 down.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms

Array = np.ndarray

_PIXELS = 80 * 80
_BACKGROUND = (0, 34, 228)  # palette indices: black and the two background colours
_FOREGROUND = bytes(int(index not in _BACKGROUND) for index in range(256))  # 1 for each other palette index
_DOWN, _UP = ale_py.Action.LEFT, ale_py.Action.RIGHT


class PongDifference(gymnasium.Env[Array, Array]):
    """One game, directly on the ALE emulator. A step has little overhead beyond the emulator's own.

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
        self._is_stochastic = repeat_action_probability > 0
        self._game.loadROM(roms.get_rom_path("pong"))
        self._screen = np.empty((210, 160), np.uint8)
        self._previous = np.zeros(_PIXELS, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None and self._is_stochastic:  # a new seed takes effect only when the ROM is loaded (slow)
            self._game.setInt("random_seed", seed)
            self._game.loadROM(roms.get_rom_path("pong"))
        self._game.reset_game()
        self._previous = self._binary_frame()
        return np.zeros(_PIXELS, np.int8), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(self._game.act(_UP if action[0] else _DOWN))
        now = self._binary_frame()
        moved, self._previous = now - self._previous, now
        truncated = self._game.game_truncated()
        return moved, reward, self._game.game_over() and not truncated, truncated, {}

    def _binary_frame(self) -> Array:
        """The binary frame: the cropped field, every second pixel, 1 where a paddle or the ball is."""
        self._game.getScreen(self._screen)
        # A table of bytes: one pass, where comparisons in numpy are several, whose calls cost more than the work.
        return np.frombuffer(self._screen[35:195:2, ::2].tobytes().translate(_FOREGROUND), np.int8)

    def render(self) -> Any:
        return self._game.getScreenRGB()
