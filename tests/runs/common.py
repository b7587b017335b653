"""What tests of runs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outplay.runs.experiments import experiment
from outplay.runs.run import Run

CONFIG = {"num_envs": 4, "num_workers": 0, "train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 2}


def make(results: Path, **body: Any) -> Run:
    config = {**CONFIG, **body.pop("config", {})}
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 4}, **body, "config": config}
    return Run.create(experiment(data, "the test"), results)


def until(stop: dict[str, float]) -> Any:
    return lambda recorded: recorded.model_copy(update={"stop": stop})


def lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder.path / "metrics.jsonl").read_text().splitlines()]


def weights(run: Run) -> bytes:
    return (run.folder.checkpoints()[-1] / "weights.safetensors").read_bytes()
