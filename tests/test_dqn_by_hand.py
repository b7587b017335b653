"""The DQN program on every engine: its parts, a few rounds of it, and that it learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parent.parent / "examples" / "dqn_by_hand.py"


def run(*arguments: str, seconds: int = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )


def test_it_is_short() -> None:
    assert len(PROGRAM.read_text().splitlines()) < 200


@pytest.mark.parametrize("engine", ["inline", "process", pytest.param("ray", marks=pytest.mark.slow)])
def test_agents_and_trainer_take_turns_on_every_engine(engine: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.npz"
    result = run("--engine", engine, "--agents", "2", "--most-steps", "2600", "--save", str(weights))
    assert result.returncode == 0, result.stderr
    lines = [re.findall(r"steps (\d+), episodes (\d+), updates (\d+)", line)[0] for line in result.stdout.splitlines()]
    steps, _, updates = (int(figure) for figure in lines[-1])
    assert steps >= 2600
    assert 0.5 * steps - 800 <= updates <= 0.5 * steps  # it keeps pace with the agents, and does not run ahead
    assert len({updates for _, _, updates in lines}) > 2
    with np.load(weights) as saved:
        assert saved["0.weight"].shape == (128, 4)
    assert "leaked" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "process"])
@pytest.mark.timeout(400)
def test_it_solves_cartpole(engine: str) -> None:
    result = run("--engine", engine, seconds=390)
    assert "solved after" in result.stdout.splitlines()[-1], result.stdout[-300:]
