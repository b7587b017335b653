"""A small classifier, trained with a loop of your own on several workers: the result is that of one process.

    python examples/train_classifier.py --num-workers 2

Each worker computes the gradients of its rows of every minibatch; `prepare_model` averages them. A worker that is
killed costs time only: training continues from the last checkpoint.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from outplay import train

FEATURES, CLASSES, ROWS, BATCH = 20, 4, 2048, 64


def generated(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Points around the centre of their class."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=rows)
    points = centres[labels] + rng.normal(scale=1.5, size=(rows, FEATURES))
    return {"x": points.astype(np.float32), "y": labels}


def training_loop(config: dict[str, Any]) -> None:
    """Runs in each worker."""
    workers = train.get_context().get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    model = train.torch.prepare_model(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    rows = generated(ROWS, seed=1)
    loader = train.torch.prepare_data_loader(
        DataLoader(TensorDataset(torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])), batch_size=BATCH // workers)
    )
    first = 0
    if checkpoint := train.get_checkpoint():  # after a failure
        saved = torch.load(Path(checkpoint.path) / "state.pt", weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1

    for epoch in range(first, config["epochs"]):
        losses = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.detach() / len(loader) / workers
        distributed.all_reduce(losses)  # the mean of all workers
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        report(state, {"epoch": epoch, "loss": losses.item(), "accuracy": accuracy(model)})


def accuracy(model: nn.Module) -> float:
    """On the data set "valid", of which each worker has a part."""
    counts = torch.zeros(2)
    with torch.no_grad():
        for batch in train.get_dataset_shard("valid").iter_torch_batches(batch_size=256):
            counts += torch.tensor([(model(batch["x"]).argmax(-1) == batch["y"]).sum(), len(batch["y"])])
    distributed.all_reduce(counts)
    return float(counts[0] / counts[1])


def report(state: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Report the metrics. The weights are equal on all workers, so rank 0 saves them."""
    if train.get_context().get_world_rank() != 0:
        train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args()
    trainer = train.TorchTrainer(
        training_loop,
        train_loop_config={"lr": 0.05, "epochs": chosen.epochs},
        scaling_config=train.ScalingConfig(num_workers=chosen.num_workers, use_gpu=chosen.use_gpu),
        run_config=train.RunConfig(
            checkpoint_config=train.CheckpointConfig(num_to_keep=1), failure_config=train.FailureConfig(max_failures=2)
        ),
        datasets={"valid": generated(1001, seed=2)},
    )
    result = trainer.fit()
    if result.error:
        raise result.error
    print(f"accuracy {result.metrics['accuracy']:.3f}, loss {result.metrics['loss']:.4f}, in {result.path}")


if __name__ == "__main__":
    main()
