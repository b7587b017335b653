"""Trainers of tests store their results in temporary folders, and print nothing."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay import train

Fit = Callable[..., train.Result]


def saved(**values: Any) -> train.Checkpoint:
    folder = Path(tempfile.mkdtemp())
    for name, value in values.items():
        (folder / name).write_text(str(value))
    return train.Checkpoint.from_directory(folder)


def resuming(config: dict[str, Any]) -> None:
    checkpoint = train.get_checkpoint()
    first = 0 if checkpoint is None else int(Path(checkpoint.path, "i").read_text()) + 1
    for i in range(first, 5):
        if i == config.get("fails_at") and not (mark := Path(config["folder"], "failed")).exists():
            mark.touch()
            raise ValueError("once")
        if i == config.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"i": i, "first": first, "score": -abs(i - 1)}, checkpoint=saved(i=i))


@pytest.fixture
def fit(tmp_path: Path, process_engine: None) -> Fit:
    """Fit a TorchTrainer with `workers` workers."""

    def fitted(loop: Any, workers: int = 1, run: dict[str, Any] | None = None, **settings: Any) -> train.Result:
        return train.TorchTrainer(
            loop,
            run_config=train.RunConfig(**{"storage_path": tmp_path, "verbose": 0, **(run or {})}),
            **{"scaling_config": train.ScalingConfig(num_workers=workers), **settings},
        ).fit()

    return fitted
