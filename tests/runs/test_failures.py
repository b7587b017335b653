"""What goes wrong during a run costs at most an iteration."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from outplay import EnvError, RunError
from outplay.runs import checkpoint
from outplay.runs.checkpoint import read_checkpoint
from outplay.runs.run import Run
from tests import probes
from tests.runs.common import lines, make, weights


def test_learning_that_runs_away_is_told_as_such(tmp_path: Path) -> None:
    run = make(tmp_path, env="Pendulum-v1", config={"lr": 1e30, "grad_clip": None})
    with pytest.raises(RunError, match="training diverged"):
        run.train()


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"the run folder .* cannot be created: Not a directory"):
        make(tmp_path / "file")


def full_disk(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """After `allowed` files the disk is full, as far as checkpoints can tell."""
    real, written = checkpoint.write_file, []

    def write(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) > allowed:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_file", write)


def test_a_full_disk_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, checkpoint_freq=1)
    full_disk(monkeypatch, allowed=7)  # one checkpoint of five files, and two files of the next
    with pytest.raises(RunError, match="checkpoint_000002 could not be written: No space left on device"):
        run.train()
    assert [path.name for path in run.folder.checkpoints_path.iterdir()] == [
        "checkpoint_000001"
    ]  # nothing half-written
    read_checkpoint(run.folder.checkpoints_path / "checkpoint_000001")
    assert json.loads((run.folder.path / "status.json").read_text())["state"] == "failed"
    monkeypatch.undo()
    assert Run.resume(run.folder).resumed_from == 1


def test_an_environment_that_raises_costs_only_the_iteration(tmp_path: Path) -> None:
    body = {"env": probes.Flawed, "config": {"env_config": {"flaw": "raises", "after": 1100}, "train_batch_size": 2000}}
    run = make(tmp_path, stop={"training_iteration": 100}, **body)
    with pytest.raises(EnvError, match="the gripper is stuck"):
        run.train()
    status = json.loads((run.folder.path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "the gripper is stuck" in status["error"]
    done = len(lines(run))
    assert done >= 1
    assert run.folder.checkpoints()[-1].name == f"checkpoint_{done:06d}"
    assert len(run.folder.metrics().results) == done


def test_a_learner_that_fails_costs_only_the_iteration(tmp_path: Path) -> None:
    """The learning rate explodes after the fourth iteration; what came before it is kept, and can be gone on from."""
    steady = {"lr": 1e-3, "grad_clip": None}
    whole = make(tmp_path / "whole", env="Pendulum-v1", stop={"training_iteration": 6}, config=steady)
    whole.train()
    run = make(
        tmp_path,
        env="Pendulum-v1",
        stop={"training_iteration": 6},
        config={**steady, "lr_schedule": [[0, 1e-3], [160, 1e-3], [161, 1e30]]},
    )
    with pytest.raises(RunError):
        run.train()
    status = json.loads((run.folder.path / "status.json").read_text())
    assert (status["state"], status["training_iteration"]) == ("failed", len(lines(run)))
    again = Run.resume(run.folder, lambda old: old.model_copy(update={"config": {**old.config, "lr_schedule": None}}))
    assert again.resumed_from == len(lines(run)) > 0
    again.train()
    assert weights(again) == weights(whole)


def test_whatever_goes_wrong_what_was_learned_is_kept(tmp_path: Path) -> None:
    run = make(tmp_path)

    def broken(result: dict[str, Any]) -> None:
        if result["training_iteration"] == 3:
            raise ZeroDivisionError("in the user's own code")

    with pytest.raises(ZeroDivisionError):
        run.train(broken)
    status = json.loads((run.folder.path / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", "ZeroDivisionError: in the user's own code")
    assert Run.resume(run.folder).resumed_from == 3
