"""Trials that share a GPU. These tests need one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import outplay
from outplay import tune

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@pytest.fixture(params=["inline", "process"], autouse=True)
def engine(request: pytest.FixtureRequest) -> Any:
    outplay.shutdown()
    outplay.init(request.param, num_cpus=8)
    yield request.param
    outplay.shutdown()


def multiply(config: dict[str, Any]) -> dict[str, Any]:
    """A computation on the GPU, and how many trials run meanwhile."""
    mark = Path(config["folder"], f"running{config['x']}")
    mark.touch()
    most, deadline = 0, time.monotonic() + 1
    x = torch.full((64, 64), float(config["x"]), device="cuda")
    while time.monotonic() < deadline:
        most = max(most, len(list(Path(config["folder"]).glob("running*"))))
        time.sleep(0.01)
    mark.unlink()
    return {"value": float((x @ x)[0, 0]), "most": most, "gpus": torch.cuda.device_count(), "pid": os.getpid()}


def test_trials_share_a_gpu_by_fractions(engine: str, tmp_path: Path) -> None:
    config = {"x": tune.grid_search(list(range(8))), "folder": str(tmp_path)}
    result = tune.run(
        multiply, config=config, resources_per_trial={"cpu": 1, "gpu": 0.25}, storage_path=tmp_path, verbose=0
    )
    found = [trial.last_result for trial in result.trials]
    assert [last["value"] for last in found] == [64.0 * x**2 for x in range(8)]
    assert {last["gpus"] for last in found} == {1}
    assert max(last["most"] for last in found) == (1 if engine == "inline" else 4)


def test_trials_of_algorithms_share_a_gpu(engine: str, tmp_path: Path) -> None:
    config = {
        "env": "CartPole-v1", "num_gpus": 1, "num_workers": 0, "lr": tune.grid_search([1e-3, 1e-4]), "seed": 3,
    }  # fmt: skip
    result = tune.run(
        "PPO", config=config, stop={"training_iteration": 3}, resources_per_trial={"cpu": 1, "gpu": 0.5},
        storage_path=tmp_path / engine, verbose=0, metric="episode_return_mean", mode="max",
    )  # fmt: skip
    assert [trial.last_result["training_iteration"] for trial in result.trials] == [3, 3]
    assert not result.errors


def test_more_than_the_gpu_is_refused(engine: str, tmp_path: Path) -> None:
    del engine
    with pytest.raises(outplay.OutplayError, match="num_gpus=64, but this machine has at most"):
        tune.run(multiply, resources_per_trial={"gpu": 64}, storage_path=tmp_path, verbose=0)
