"""DatasetShard: the part of a data set that one worker reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from outplay.data import Column, Dataset

Batch = dict[str, np.ndarray]


class DatasetShard:
    """Iterates over the rows of one worker. `dataset` is the shard itself, as an `outplay.data.Dataset`.

    All workers get the same number of batches: a worker with one more would wait for the others' gradients for ever.
    """

    def __init__(self, whole: Dataset, index: int, number: int) -> None:
        self.dataset = whole.shard(index, number)
        self._least = len(whole) // number  # rows of the smallest shard
        if self._least == 0:
            raise ConfigError(f"a data set of {len(whole)} rows is too small for {number} workers")

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.dataset.columns

    def iter_batches(
        self, *, batch_size: int = 256, shuffle: bool = False, seed: int = 0, epoch: int = 0, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Dicts of numpy arrays. With `shuffle`, the order follows from `seed` and `epoch`.

        Shards may differ by one row. Where that row would be a batch of its own, it is in the one before.
        """
        total = self._least // batch_size if drop_last else -(-self._least // batch_size)
        batches = self.dataset.iter_batches(batch_size, shuffle, seed, epoch, drop_last)
        for number, batch in enumerate(batches, 1):
            if number < total:
                yield batch
            elif number == total:
                rest = [] if drop_last else list(batches)
                yield {name: np.concatenate([b[name] for b in (batch, *rest)]) for name in batch} if rest else batch

    def iter_torch_batches(
        self,
        *,
        batch_size: int = 256,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: str | torch.device | None = None,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Dicts of tensors, on the worker's device unless `device` says otherwise. Strings are left out."""
        import torch

        from outplay.train.torch import get_device

        where = torch.device(device) if device is not None else get_device()
        batches = self.iter_batches(batch_size=batch_size, shuffle=shuffle, seed=seed, epoch=epoch, drop_last=drop_last)
        dtype_of: Callable[[str], Any] = dtypes.get if isinstance(dtypes, Mapping) else lambda _: dtypes
        for batch in batches:
            yield {
                name: torch.from_numpy(np.array(column)).to(where, dtype_of(name))
                for name, column in batch.items()
                if column.dtype.kind in "biuf"
            }

    def materialize(self) -> Batch:
        """All rows of this worker, in memory."""
        return self.dataset.to_arrays()
