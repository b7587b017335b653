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

PROGRAM = Path(__file__).parents[2] / "examples" / "dqn_by_hand.py"


def run(*arguments: str, seconds: int = 100, program: Path = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), *arguments], capture_output=True, text=True, timeout=seconds, check=False
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


@pytest.mark.parametrize(
    "engine", ["process", *(pytest.param(name, marks=pytest.mark.slow) for name in ("inline", "ray"))]
)
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


def changed(folder: Path, old: str, new: str) -> Path:
    """The program with one place changed."""
    text = PROGRAM.read_text()
    assert text.count(old) == 1
    (folder / "changed.py").write_text(text.replace(old, new))
    return folder / "changed.py"


@pytest.mark.slow
def test_a_trainer_that_fails_ends_the_program(tmp_path: Path) -> None:
    broken = changed(tmp_path, "    drawn = ", '    raise RuntimeError("no training")\n    drawn = ')
    result = run("--engine", "inline", "--most-steps", "2600", program=broken)
    assert result.returncode == 1
    assert "no training" in result.stderr


@pytest.mark.slow
def test_the_last_round_is_saved_too(tmp_path: Path) -> None:
    """With rounds that take long, so that one is under way when the agents have played enough."""
    gives = "    outplay.get(server.set_weights.remote(main.weights()))"
    noted = f"    open({str(tmp_path / 'rounds')!r}, 'a').write(f'{{done}} ')"
    slow = changed(tmp_path, gives, f"    __import__('time').sleep(2)\n{gives}\n{noted}")
    result = run("--engine", "process", "--most-steps", "2600", "--save", str(tmp_path / "w.npz"), program=slow)
    assert result.returncode == 0, result.stderr
    launched = [int(updates) for updates in re.findall(r"updates (\d+)", result.stdout)]
    assert int((tmp_path / "rounds").read_text().split()[-1]) >= launched[-1] > 0


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
