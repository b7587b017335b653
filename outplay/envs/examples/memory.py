"""Environments that need memory: one observation is not enough to choose the best action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Array = np.ndarray


class RepeatAfterMe(gymnasium.Env[Any, Any]):
    """Repeat the observation of `repeat_delay` steps ago: +1 if the action is equal to it, else -1.

    An episode has 100 steps. The best return is 100 - repeat_delay. Without memory it is 0 on average.

    >>> trainer = PPO("outplay.envs.examples:RepeatAfterMe", env_config={"repeat_delay": 2}, model={"use_lstm": True})
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        settings = dict(config or {})
        settings = settings.get("config", settings)  # as RLlib's tuned example nests it
        self.delay = int(settings.get("repeat_delay", 1))
        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.Discrete(2)
        self.seen: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:  # noqa: ARG002
        super().reset(seed=seed)
        self.seen = []
        return self._observe(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        steps = len(self.seen)
        reward = 0.0
        if steps > self.delay:
            reward = 1.0 if action == self.seen[-1 - self.delay] else -1.0
        return self._observe(), reward, steps >= 100, False, {}

    def _observe(self) -> int:
        self.seen.append(int(self.np_random.integers(2)))
        return self.seen[-1]


class TMaze(gymnasium.Env[Array, Any]):
    """Remember a sign to the end of a corridor, and turn that way (Bakker 2002).

    The first observation shows the sign. Actions: forward, left, right. At the junction, the right turn gives 1 and the
    wrong one -1; both end the episode. In the corridor a turn gives -0.1 and does not move.

    >>> trainer = PPO("outplay.envs.examples:TMaze", env_config={"length": 20}, model={"use_lstm": True})
    """

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)  # the sign; whether this is the junction
        self.action_space = spaces.Discrete(3)
        self.place, self.sign, self.steps = 0, 1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:  # noqa: ARG002
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        self.sign = 1 if self.np_random.integers(2) else -1
        return self._observe(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        too_long = self.steps >= 5 * (self.length + 1)
        if action == 0:
            self.place = min(self.place + 1, self.length)
            return self._observe(), 0.0, False, too_long, {}
        if self.place < self.length:
            return self._observe(), -0.1, False, too_long, {}
        is_right = (action == 1) == (self.sign == 1)
        return self._observe(), 1.0 if is_right else -1.0, True, False, {}

    def _observe(self) -> Array:
        return np.array([self.sign if self.steps == 0 else 0, self.place == self.length], np.float32)


class CartPoleWithoutVelocities(gymnasium.ObservationWrapper[Array, int, Array]):
    """CartPole-v1 that shows position and angle only. A policy must infer the velocities from earlier observations."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        box = self.env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Box(box.low[[0, 2]], box.high[[0, 2]])

    def observation(self, observation: Array) -> Array:
        return observation[[0, 2]]
