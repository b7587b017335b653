"""A trainer on every engine that has processes: the same weights, whoever dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from outplay import train
from tests.train.conftest import saved

pytestmark = pytest.mark.slow


def loop(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    rank = train.get_context().get_world_rank()
    network = nn.Linear(3, 1)
    model = train.torch.prepare_model(network)
    first = 0
    if checkpoint := train.get_checkpoint():
        network.load_state_dict(torch.load(Path(checkpoint.path) / "w.pt", weights_only=True))
        first = int(Path(checkpoint.path, "step").read_text()) + 1
    for step in range(first, 4):
        if rank == 1 and step == 2 and not (mark := Path(config["folder"]) / "died").exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.arange(3.0) + rank + step
        loss = (model(x) - 1.0).square().mean()
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.01 * parameter.grad
        folder = Path(saved(step=step).path)
        torch.save(network.state_dict(), folder / "w.pt")
        train.report(
            {"step": step, "size": distributed.get_world_size()}, train.Checkpoint(folder) if rank == 0 else None
        )


def test_training_survives_a_kill(engine: str, tmp_path: Path) -> None:
    if engine == "inline":
        pytest.skip("it has one process")
    result = train.TorchTrainer(
        loop,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.error is None, result.error
    assert (tmp_path / "died").exists()
    assert (result.metrics["step"], result.metrics["size"]) == (3, 2)
    assert result.checkpoint is not None
    weights = torch.load(Path(result.checkpoint.path, "w.pt"), weights_only=True)
    torch.manual_seed(0)
    expected = nn.Linear(3, 1)
    for step in range(4):  # both workers' rows in one process
        x = torch.stack([torch.arange(3.0) + rank + step for rank in range(2)])
        loss = (expected(x) - 1.0).square().mean()
        expected.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in expected.parameters():
                parameter -= 0.01 * parameter.grad  # type: ignore[operator]
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-6)
