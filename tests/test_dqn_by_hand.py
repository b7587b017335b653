"""The DQN program on every engine: its parts, a few rounds of it, and that it learns."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

PROGRAM = Path(__file__).parent.parent / "examples" / "dqn_by_hand.py"


def run(*arguments: str, seconds: int = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )


def program() -> Any:
    """The program as a module, with the seed that it begins with."""
    spec = importlib.util.spec_from_file_location("dqn_by_hand", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module


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
    first = program().DQN().weights()
    with np.load(weights) as saved:
        assert {name: array.shape for name, array in saved.items()} == {n: a.shape for n, a in first.items()}
        assert not any(np.array_equal(saved[name], first[name]) for name in first)  # it has learned
    assert "leaked" not in result.stderr


def test_a_trainer_that_fails_ends_the_program(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        PROGRAM.read_text().replace("    drawn = ", '    raise RuntimeError("no training")\n    drawn = ')
    )
    result = subprocess.run(
        [sys.executable, str(broken), "--engine", "inline", "--most-steps", "2600"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "no training" in result.stderr


def test_somebody_has_to_play() -> None:
    result = run("--agents", "0")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith("--agents is 0: at least one has to play")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "process"])
@pytest.mark.timeout(400)
def test_it_solves_cartpole(engine: str) -> None:
    result = run("--engine", engine, seconds=390)
    assert "solved after" in result.stdout.splitlines()[-1], result.stdout[-300:]
