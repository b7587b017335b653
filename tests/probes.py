"""The probes of outplay.testing, and environments with a flaw."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.testing.probes import (  # noqa: F401 - tests find them all here
    Aim,
    Endless,
    Failing,
    LastStep,
    Match,
    Nested,
    OneStep,
    Over,
    Patience,
    Probe,
    TwoSteps,
    Walk,
)


class Frames(Walk):
    """The same walk, seen as a small picture."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 255, (8, 8), np.uint8)

    def _observe(self) -> np.ndarray:
        picture = np.full((8, 8), self.steps, np.uint8)
        picture[:, int(self.place) % 8] = 255
        return picture


class Stuck(Walk):
    """Once there is a file `armed`, the first environment to see it stands still until there is a file `go`.

    Then it goes on; or it raises, if there is a file `fail`.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.stuck = False

    def step(self, action: Any) -> Any:
        if not self.stuck and (self.folder / "armed").exists():
            with contextlib.suppress(FileExistsError):
                (self.folder / "taken").touch(exist_ok=False)
                self.stuck = True
        while self.stuck and not (self.folder / "go").exists():
            time.sleep(0.01)
        if self.stuck and (self.folder / "fail").exists():
            raise RuntimeError("the gripper is stuck")
        return super().step(action)


class Crashing(Walk):
    """Ends its process without a word once there is a file `crash`, as a fault in native code would."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def step(self, action: Any) -> Any:
        if (self.folder / "crash").exists():
            os._exit(7)
        return super().step(action)


class Noisy(Walk):
    """Prints and warns whenever it is made, reset or stepped: from Python, and past it as native code does."""

    def __init__(self, length: int = 40, sleep: float = 0.0) -> None:
        super().__init__(length, sleep)
        print("made, says Python")
        os.write(1, b"compiled, says C\n")
        os.write(2, b"no window, says C\n")
        warnings.warn("this is old", stacklevel=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        print("reset, says Python")
        return super().reset(seed=seed)


class Drawn(Walk):
    """Draws as highway-env does, black with SDL_VIDEODRIVER=dummy; and notes how MuJoCo would have been told to."""

    notes: list[str | None] = []  # of all of them

    def __init__(self, flaw: str = "", render_mode: str | None = None) -> None:
        super().__init__()
        self.flaw, self.render_mode = flaw, render_mode

    def render(self) -> Any:
        self.notes.append(os.environ.get("MUJOCO_GL"))
        if self.flaw == "raises":
            raise RuntimeError("no pencil")
        if self.flaw == "draws nothing":
            return None
        return np.full((64, 64, 3), 0 if os.environ.get("SDL_VIDEODRIVER") == "dummy" else 200, np.uint8)


class Restless(Walk):
    """Draws from a stream of its own: equal seeds do not give equal episodes."""

    stream = np.random.default_rng()

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return (observation + self.stream.normal(size=2)).astype(np.float32), *rest


class Old:
    """An environment as it was written before Gym 0.26."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, env_config: Any = None) -> None:
        self.env_config = env_config or {}
        self.rng = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> Any:
        self.steps = 0
        return np.array([self.rng.uniform(-1, 1)], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        done = self.steps == 5
        cut = done and self.env_config.get("cut", False)
        return np.array([0.0], np.float32), float(action), done, {"TimeLimit.truncated": True} if cut else {}


class Flawed(Walk):
    """Does something wrong after a while: `flaw` says what."""

    def __init__(self, flaw: str, after: int = 5) -> None:
        super().__init__()
        self.flaw, self.after, self.count = flaw, after, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        return observation if self.flaw == "reset returns the observation alone" else (observation, info)

    def step(self, action: Any) -> Any:
        self.count += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.count < self.after:
            return observation, reward, terminated, truncated, info
        match self.flaw:
            case "raises":
                raise RuntimeError("the gripper is stuck")
            case "observation is nan":
                observation[0] = np.nan
            case "reward is nan":
                reward = np.nan
            case "reward is infinite":
                reward = np.inf
            case "observation has another shape":
                observation = np.zeros(3, np.float32)
            case "four values":
                return observation, reward, terminated, info
            case "reward is a list":
                reward = [1.0, 2.0]
            case "done is a number":
                terminated = 1.5
            case "done is a text":
                terminated = "no"
            case "observation is None":
                observation = None
            case "observation is ragged":
                observation = [[1.0], [1.0, 2.0]]
        return observation, reward, terminated, truncated, info


class OutOfRange(Nested):
    """Observes a choice that its space does not have."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        return {**observation, "switch": 2}, info
