"""Helpers for training loops with PyTorch, with the names of Ray Train's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from outplay.arguments import integer
from outplay.errors import ConfigError
from outplay.train.configs import TorchConfig
from outplay.train.session import get_context
from outplay.train.trainer import TorchTrainer

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]


def get_device() -> torch.device:
    """The device of this worker: its GPU, or the CPU."""
    return get_devices()[0]


def get_devices() -> list[torch.device]:
    """All devices of this worker. A worker sees only the GPUs that it was assigned."""
    if _uses_cuda():
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [torch.device("cpu")]


def _uses_cuda() -> bool:
    """Whether the trainer has given this worker a GPU."""
    return get_context().resources.get("gpu", 0) > 0 and torch.cuda.is_available()


def prepare_model(
    model: nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: dict[str, Any] | None = None,
) -> nn.Module:
    """Move a model to this worker's device. With several workers, it averages gradients (DistributedDataParallel), and
    starts on all of them with the weights of rank 0.

    parallel_strategy         "ddp", "fsdp" (needs GPUs), or None: the model stays as it is
    parallel_strategy_kwargs  for DistributedDataParallel or FullyShardedDataParallel
    """
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ConfigError(f"parallel_strategy must be 'ddp', 'fsdp' or None, not {parallel_strategy!r}")
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if move_to_device:
        model = model.to(device)
    if parallel_strategy is None or get_context().get_world_size() == 1:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        if device.type != "cuda":
            raise ConfigError("parallel_strategy='fsdp' needs GPUs: ScalingConfig(use_gpu=True); on CPUs, use 'ddp'")
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, **options)
    if device.type == "cuda" and move_to_device:
        options = {"device_ids": [device], "output_device": device, **options}
    return nn.parallel.DistributedDataParallel(model, **options)


class _OnDevice:
    """A DataLoader whose batches are on a device."""

    def __init__(self, loader: DataLoader[Any], device: torch.device | None) -> None:
        self.loader, self._device = loader, device

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield batch if self._device is None else _moved(batch, self._device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    return value


def prepare_data_loader(
    data_loader: DataLoader[Any], add_dist_sampler: bool = True, move_to_device: bool = True
) -> _OnDevice:
    """The loader for this worker: with several workers, each gets its part of the rows, and batches are on the device.

    The loader is made anew with a DistributedSampler, which shuffles if the loader did. Call
    `loader.sampler.set_epoch(epoch)` before each epoch for another order.
    """
    size, rank = get_context().get_world_size(), get_context().get_world_rank()
    is_plain = isinstance(data_loader.sampler, RandomSampler | SequentialSampler)
    if add_dist_sampler and size > 1 and is_plain and not isinstance(data_loader.dataset, IterableDataset):
        sampler: DistributedSampler[Any] = DistributedSampler(
            data_loader.dataset, size, rank, shuffle=isinstance(data_loader.sampler, RandomSampler)
        )
        data_loader = DataLoader(
            data_loader.dataset,
            batch_size=data_loader.batch_size,
            sampler=sampler,
            num_workers=data_loader.num_workers,
            collate_fn=data_loader.collate_fn,
            pin_memory=data_loader.pin_memory,
            drop_last=data_loader.drop_last,
            timeout=data_loader.timeout,
            worker_init_fn=data_loader.worker_init_fn,
            multiprocessing_context=data_loader.multiprocessing_context,
            generator=data_loader.generator,
        )
    return _OnDevice(data_loader, get_device() if move_to_device else None)


def backward(tensor: torch.Tensor) -> None:
    """`tensor.backward()`, as Ray Train has it."""
    tensor.backward()  # type: ignore[no-untyped-call]


def enable_reproducibility(seed: int = 0) -> None:
    """Seed torch, numpy and random, and choose deterministic algorithms. Call it at the start of the loop."""
    seed = integer(seed, "enable_reproducibility: seed", 0, 2**32 - 1)  # as numpy takes it
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
