"""Probes: tiny environments, each of which tests one property of an algorithm within seconds."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Probe(gymnasium.Env[Any, Any]):
    """Base class: observations are one number, actions are 0 and 1; with `continuous`, not positive and positive."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, continuous: bool = False) -> None:
        if continuous:
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def is_one(self, action: Any) -> bool:
        return bool(action[0] > 0 if isinstance(self.action_space, spaces.Box) else action == 1)

    def observe(self, value: float) -> np.ndarray:
        return np.array([value], np.float32)


class OneStep(Probe):
    """One step; action 1 has reward 1."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(0.0), {}

    def step(self, action: Any) -> Any:
        return self.observe(0.0), float(action == 1), True, False, {}


class TwoSteps(Probe):
    """The first of two actions determines the reward, which comes after the second."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.first: Any = None
        return self.observe(-1.0), {}

    def step(self, action: Any) -> Any:
        if self.first is None:
            self.first = action
            return self.observe(1.0), 0.0, False, False, {}
        return self.observe(1.0), float(self.first == 1), True, False, {}


class Match(Probe):
    """The action must match the sign of the observation."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.sign = 1.0 if self.np_random.random() < 0.5 else -1.0
        return self.observe(self.sign), {}

    def step(self, action: Any) -> Any:
        return self.observe(self.sign), float((action == 1) == (self.sign > 0)), True, False, {}


class Patience(Probe):
    """Action 0: reward 1 now. Action 1: reward 2 after two more steps.

    With γ = 0.5 action 0 is better (1 against 0.5), with γ = 0.99 action 1 (1.96 against 1).
    """

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.waited = 0
        return self.observe(0.0), {}

    def step(self, action: Any) -> Any:
        if self.waited == 0 and not self.is_one(action):
            return self.observe(-1.0), 1.0, True, False, {}
        self.waited += 1
        if self.waited == 3:
            return self.observe(1.0), 2.0, True, False, {}
        return self.observe(self.waited / 3), 0.0, False, False, {}


class Endless(Probe):
    """Reward 1 per step; truncated after four steps. With γ = 0.5 the value of every step is 2."""

    terminates = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(0.0), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == 4
        return self.observe(self.seen()), 1.0, over and self.terminates, over and not self.terminates, {}

    def seen(self) -> float:
        return 0.0


class Over(Endless):
    """Endless, but terminated after four steps: with γ = 0.5 the values are 1.875, 1.75, 1.5, 1; mean 1.53125."""

    terminates = True


class LastStep(Endless):
    """Endless, but the observation is the step, and it is terminated unless `truncated`.

    With γ = 0.5, the value of the last step is 1 if the episode is terminated, and 2 if it is truncated.
    """

    def __init__(self, truncated: bool, continuous: bool = False) -> None:
        super().__init__(continuous)
        self.terminates = not truncated

    def seen(self) -> float:
        return self.steps / 4


class Aim(gymnasium.Env[Any, Any]):
    """Continuous actions: the reward is the negative squared distance of the action to twice the observation."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.goal, {}

    def step(self, action: Any) -> Any:
        return self.goal, -float((action[0] - 2 * self.goal[0]) ** 2), True, False, {}


class Walk(gymnasium.Env[Any, Any]):
    """A stochastic random walk. Episodes vary in length, some are truncated. Replay needs the seed and all actions."""

    observation_space: spaces.Space[Any] = spaces.Box(
        np.array([-np.inf, 0], np.float32), np.array([np.inf, 1], np.float32)
    )
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self, length: int = 40, sleep: float = 0.0, continuous: bool = False) -> None:
        self.length = length
        self.sleep = sleep
        self.continuous = continuous
        if continuous:
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.task = 0.0

    def set_task(self, task: float) -> None:
        self.task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.normal()) + self.task, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.sleep)
        self.steps += 1
        move = float(action[0]) if self.continuous else int(action) - 1
        self.place += move * 0.3 + float(self.np_random.normal()) * 0.1
        over = abs(self.place) > 3
        return self._observe(), float(self.place > 1), over, self.steps >= self.length and not over, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.place, self.steps / self.length], np.float32)


class Failing(Walk):
    """Raises in one step, after `Failing.countdown` steps of all instances together."""

    countdown: ClassVar[int | None] = None

    def step(self, action: Any) -> Any:
        if Failing.countdown is not None:
            Failing.countdown -= 1
            if Failing.countdown < 0:
                Failing.countdown = None
                raise RuntimeError("the step failed")
        return super().step(action)


class Nested(gymnasium.Env[Any, Any]):
    """Nested observations, MultiDiscrete actions. Reward 1 if the first action matches the observed switch."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {"switch": spaces.Discrete(2), "pair": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.MultiBinary(2)))}
    )
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.seen: Any = self.observation_space.sample()
        return self.seen, {}

    def step(self, action: Any) -> Any:
        return self.seen, float(action[0] == self.seen["switch"]), True, False, {}


class Forbidding(gymnasium.Env[Any, Any]):
    """Random action masks. Reward 1 for the highest allowed action; a forbidden action raises. Four steps.

    `masks`: where the mask is: "observation", "info" or "method" (`action_masks()`). With `several`, the actions are
    MultiDiscrete, and the mask is a tuple with the mask of each part. With `truncates`, episodes end by truncation.
    """

    def __init__(self, masks: str = "observation", several: bool = False, truncates: bool = False) -> None:
        self.sizes = [3, 2] if several else [4]
        self.action_space: spaces.Space[Any] = spaces.MultiDiscrete([3, 2]) if several else spaces.Discrete(4)
        inner = spaces.Box(-1, 1, (1,), np.float32)
        mask = spaces.Tuple([spaces.MultiBinary(n) for n in self.sizes]) if several else spaces.MultiBinary(4)
        parts = spaces.Dict({"observation": inner, "action_mask": mask})
        self.observation_space: spaces.Space[Any] = parts if masks == "observation" else inner
        self.masks, self.truncates = masks, truncates
        if masks == "method":
            self.action_masks = lambda: self.allowed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        choices = np.atleast_1d(action).tolist()
        parts = self.allowed if len(self.sizes) > 1 else (self.allowed,)
        for choice, part in zip(choices, parts, strict=True):
            if not part[choice]:
                raise RuntimeError(f"action {choice} is forbidden, allowed are {np.flatnonzero(part)}")
        best = all(not part[choice + 1 :].any() for choice, part in zip(choices, parts, strict=True))
        self.steps += 1
        over = self.steps == 4
        observation, info = self._observe()
        return observation, float(best), over and not self.truncates, over and self.truncates, info

    def _observe(self) -> Any:
        masks = [(self.np_random.random(n) < 0.5).astype(np.int8) for n in self.sizes]
        for mask in masks:
            mask[self.np_random.integers(len(mask))] = 1
        self.allowed: Any = tuple(masks) if len(masks) > 1 else masks[0]
        seen = np.array([self.steps / 4], np.float32)
        observation = {"observation": seen, "action_mask": self.allowed} if self.masks == "observation" else seen
        return observation, {"action_mask": self.allowed} if self.masks == "info" else {}
