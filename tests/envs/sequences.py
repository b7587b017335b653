"""Environments whose observations vary in length."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ELEMENTS: dict[str, spaces.Space[Any]] = {
    "boxes": spaces.Box(-1, 1, (2,), np.float32),
    "choices": spaces.Discrete(5, start=1),
}


class Objects(gymnasium.Env[Any, Any]):
    """Sees a number of objects, none at times. Action 1 is right if one of them is a goal (its first number is 1)."""

    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, kind: str = "boxes", stacked: bool = False, alone: bool = True, most: int = 6) -> None:
        self.stacked, self.alone, self.most = stacked, alone, most
        self.element = ELEMENTS[kind]
        inner = spaces.Sequence(self.element, stack=stacked)
        pair = spaces.Dict({"objects": inner, "own": spaces.Tuple((spaces.Box(-1, 1, (1,)), inner))})
        self.observation_space: spaces.Space[Any] = inner if alone else pair

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        right = self.has_goal
        return self._observe(), float(action == right), True, False, {}

    def _observe(self) -> Any:
        number = int(self.np_random.integers(0, self.most + 1))
        self.has_goal = bool(number and self.np_random.random() < 0.5)
        goal = self.np_random.integers(number) if self.has_goal else -1
        if isinstance(self.element, spaces.Discrete):
            objects = [np.int64(5 if i == goal else self.np_random.integers(1, 5)) for i in range(number)]
        else:
            objects = [np.array([i == goal, self.np_random.random()], np.float32) for i in range(number)]
        shape = (0, *(self.element.shape or ()))
        seen = (
            (np.stack(objects) if objects else np.zeros(shape, self.element.dtype)) if self.stacked else tuple(objects)
        )
        return seen if self.alone else {"objects": seen, "own": (np.zeros(1, np.float32), seen)}


class Told(gymnasium.Env[Any, Any]):
    """A text says which action is right: "go left" or "go right"."""

    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, alone: bool = False) -> None:
        text = spaces.Text(20)
        self.alone = alone
        self.observation_space = text if alone else spaces.Dict({"image": spaces.Box(0, 1, (2,)), "mission": text})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        right = self.right
        return self._observe(), float(action == right), True, False, {}

    def _observe(self) -> Any:
        self.right = bool(self.np_random.random() < 0.5)
        text = "go right" if self.right else "go left"
        return text if self.alone else {"image": np.zeros(2, np.float32), "mission": text}
