"""Environments as others write them: global random streams, unusual actions, text in observations."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from tests import probes


class SeedsGlobals(gymnasium.Env[Any, Any]):
    """Seeds the streams of the whole process in `reset`, and draws from them."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed_globals(seed)
        self.place, self.steps = self.drawn(), 0
        return self.place, {}

    def seed_globals(self, seed: int | None) -> None:
        np.random.seed(seed)
        random.seed(seed)

    def drawn(self) -> np.ndarray:
        return np.array([np.random.randn(), random.gauss(0, 1), random.random()], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place = 0.5 * self.place + self.drawn() * (1 + int(action))
        return self.place, float(self.place[0] > 0), bool(self.place[2] > 2.2), self.steps == 25, {}


class DrawsFromGlobals(SeedsGlobals):
    """Draws from the streams of the whole process, and never seeds them."""

    def __init__(self) -> None:
        self.size = float(np.random.rand())

    def seed_globals(self, seed: int | None) -> None:
        pass

    def drawn(self) -> np.ndarray:
        return super().drawn() + np.float32(self.size) + torch.rand(3).numpy()

    def set_task(self, task: float) -> None:
        self.size = task * random.random()


class SharesGenerator(SeedsGlobals):
    """All environments have one generator, which each episode seeds: alone it repeats itself, beside others not."""

    generator = np.random.default_rng()

    def seed_globals(self, seed: int | None) -> None:
        SharesGenerator.generator = np.random.default_rng(seed)

    def drawn(self) -> np.ndarray:
        return self.generator.normal(size=3).astype(np.float32)


PARTS: dict[str, spaces.Space[Any]] = {
    "Box of integers": spaces.Box(-3, 4, (2,), np.int32),
    "MultiDiscrete of two dimensions": spaces.MultiDiscrete(
        np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [0, -1]])
    ),
    "MultiBinary of two dimensions": spaces.MultiBinary((2, 2)),
    "Tuple": spaces.Tuple((spaces.Discrete(3, start=5), spaces.Box(-2, 2, (2,)), spaces.MultiBinary(2))),
    "Dict": spaces.Dict(
        {
            "gear": spaces.Discrete(4),
            "arm": spaces.Dict({"turn": spaces.Box(-1.0, 3.0, (1, 2)), "grip": spaces.MultiDiscrete([2, 2])}),
            "steps": spaces.Box(0, 9, (1,), np.uint8),
        }
    ),
}


class Acts(probes.Walk):
    """Takes actions of any space, refuses all others, and pays for the sum of their numbers."""

    def __init__(self, kind: str) -> None:
        super().__init__(length=30)
        self.action_space = PARTS[kind]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        total = sum(float(np.sum(part)) for part in leaves_of(action))
        observation, _, terminated, truncated, info = super().step(1 + (total > 3))
        return observation + np.array([0.01 * total, 0.0], np.float32), total, terminated, truncated, info


def leaves_of(action: Any) -> list[Any]:
    if isinstance(action, dict):
        return [leaf for part in action.values() for leaf in leaves_of(part)]
    if isinstance(action, tuple):
        return [leaf for part in action for leaf in leaves_of(part)]
    return [action]


class Mission(probes.Walk):
    """Observes a text beside numbers, as MiniGrid does."""

    def __init__(self) -> None:
        super().__init__()
        text = spaces.Text(20)
        numbers = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"mission": text, "pair": spaces.Tuple((text, numbers))})

    def _observe(self) -> Any:
        return {"mission": "right", "pair": ("now", super()._observe())}
