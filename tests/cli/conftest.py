"""A command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.common import Outcome, exit_code

CUSTOM = """
import gymnasium
import numpy as np

class CustomEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action), self.steps == 10, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)
"""


FILE = """
custom_env:
    env: custom_env.CustomEnv
    run: PPO
    checkpoint_freq: 1
    stop:
        training_iteration: 3
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process, from an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> Outcome:
        code = exit_code(monkeypatch, *arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def custom(tmp_path: Path) -> None:
    (tmp_path / "custom_env.py").write_text(CUSTOM)
    (tmp_path / "custom.yml").write_text(FILE)
    sys.modules.pop("custom_env", None)
