"""examples/train_classifier.py: several workers find the weights of one process, whoever is killed meanwhile."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import outplay
from outplay import train, tune

PROGRAM = Path(__file__).parents[2] / "examples" / "train_classifier.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("train_classifier", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loop(config: dict[str, Any]) -> None:
    """The example's, in a process that can be found."""
    rank = train.get_context().get_world_rank()
    with Path(config["pids"], str(rank)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    example().training_loop(config)


class Killer(tune.Callback):
    """Kills the worker with rank 1 after the second result."""

    def __init__(self, pids: Path) -> None:
        self.pids, self.kills = pids, 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if result["training_iteration"] == 2 and not self.kills:
            self.kills += 1
            os.kill(int((self.pids / "1").read_text()), signal.SIGKILL)


def trained(folder: Path, workers: int, name: str, kills: bool = False) -> tuple[train.Result, dict[str, Any]]:
    (pids := folder / f"pids-{name}").mkdir()
    result = train.TorchTrainer(
        loop,
        train_loop_config={"lr": 0.05, "epochs": 4, "pids": str(pids)},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name=name, storage_path=folder, verbose=0, callbacks=[Killer(pids)] if kills else []
        ),
        datasets={"valid": example().generated(1001, seed=2)},
    ).fit()
    assert result.error is None
    assert result.checkpoint is not None
    return result, torch.load(Path(result.checkpoint.path, "state.pt"), weights_only=True)


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed_find_the_weights_of_one_process(tmp_path: Path) -> None:
    outplay.shutdown()
    outplay.init("inline")
    try:
        alone, weights = trained(tmp_path, 1, "one")
    finally:
        outplay.shutdown()
    outplay.init("process", num_cpus=2)
    killed, others = trained(tmp_path, 2, "two", kills=True)
    assert len((tmp_path / "pids-two" / "0").read_text().split()) == 2  # the group was started twice
    for name, tensor in weights["network"].items():
        torch.testing.assert_close(others["network"][name], tensor, rtol=1e-4, atol=1e-5)
    assert killed.metrics["accuracy"] == alone.metrics["accuracy"] > 0.9
    assert killed.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-4)
    history = killed.metrics_dataframe
    assert list(history["epoch"]) == [0, 1, 2, 3]  # no result is missing, and none is there twice


@pytest.mark.slow
def test_the_weights_do_not_depend_on_a_kill(process_engine: None, tmp_path: Path) -> None:
    _, weights = trained(tmp_path, 2, "calm")
    _, others = trained(tmp_path, 2, "killed", kills=True)
    for name, tensor in weights["network"].items():
        assert torch.equal(others["network"][name], tensor)


@pytest.mark.slow
def test_the_program(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--epochs", "3"]
    environment = {**os.environ, "OUTPLAY_RESULTS": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy 0.9" in done.stdout
