"""A worker with a GPU: its device, NCCL, batches on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from outplay import PPO, preprocessors, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


def loop() -> None:
    device = train.torch.get_device()
    total = torch.ones(2, device=device)
    distributed.all_reduce(total)
    host = torch.ones(2)
    distributed.all_reduce(host)
    model = train.torch.prepare_model(nn.Linear(2, 1))
    batch = next(train.get_dataset_shard("train").iter_torch_batches(batch_size=4))
    loader = train.torch.prepare_data_loader(DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2))
    devices = [str(model.weight.device), str(batch["x"].device), str(next(iter(loader))[0].device)]
    train.report({"device": str(device), "devices": devices, "loss": float(model(batch["x"]).mean())})


def test_a_worker_has_its_gpu(tmp_path: Path, process_engine: None) -> None:
    result = train.TorchTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=1, use_gpu=True),
        run_config=train.RunConfig(storage_path=tmp_path, verbose=0),
        datasets={"train": {"x": np.ones((8, 2), np.float32)}},
    ).fit()
    assert result.error is None, result.error
    assert result.metrics["device"] == "cuda:0"
    assert result.metrics["devices"] == ["cuda:0"] * 3


def test_an_agent_on_a_gpu_has_a_preprocessor() -> None:
    scaler = preprocessors.StandardScaler().fit(np.random.default_rng(0).normal(size=(50, 4)))
    settings = {"num_workers": 0, "train_batch_size": 256, "sgd_minibatch_size": 128, "seed": 1, "preprocessor": scaler}
    on_gpu, on_cpu = PPO("CartPole-v1", num_gpus=1, **settings), PPO("CartPole-v1", **settings)
    on_gpu.train()
    on_cpu.train()
    for name, array in on_cpu.policy.get_weights().items():
        np.testing.assert_allclose(on_gpu.policy.get_weights()[name], array, rtol=1e-2, atol=1e-3)
