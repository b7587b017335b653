"""DatasetShard: the part of a data set that one worker reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.arguments import shown
from outplay.errors import ConfigError, nearest, shortened

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
        # Checks the arguments: an iterator of its own would do so when the first batch is asked for.
        batches = self.dataset.iter_batches(batch_size, shuffle, seed, epoch, drop_last)
        return self._equal(batches, batch_size, drop_last)

    def _equal(self, batches: Iterator[Batch], batch_size: int, drop_last: bool) -> Iterator[Batch]:
        """As many batches as the smallest shard has."""
        total = self._least // batch_size if drop_last else -(-self._least // batch_size)
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

        where = _checked_device(device) if device is not None else get_device()
        _check_dtypes(dtypes, self.columns)
        batches = self.iter_batches(batch_size=batch_size, shuffle=shuffle, seed=seed, epoch=epoch, drop_last=drop_last)
        dtype_of: Callable[[str], Any] = dtypes.get if isinstance(dtypes, Mapping) else lambda _: dtypes
        return (
            {
                name: torch.from_numpy(np.array(column)).to(where, dtype_of(name))
                for name, column in batch.items()
                if column.dtype.kind in "biuf"
            }
            for batch in batches
        )

    def materialize(self) -> Batch:
        """All rows of this worker, in memory."""
        return self.dataset.to_arrays()


def _checked_device(given: Any) -> torch.device:
    """A device of torch on which tensors can be made."""
    import torch

    if not isinstance(given, str | int | torch.device):
        raise ConfigError(f"device must be a device of torch, as 'cpu' or 'cuda:0', not {shown(given)}")
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = shortened(str(error).partition("\n")[0].rstrip(".:"), 100)
        raise ConfigError(f"device: {given!r} cannot be used here ({reason}); use 'cpu', or leave it out") from error
    return device


def _check_dtypes(given: Any, columns: Mapping[str, Column]) -> None:
    import torch

    for name, dtype in given.items() if isinstance(given, Mapping) else [(None, given)]:
        if name is not None and name not in columns:
            raise ConfigError(f"dtypes: there is no column {name!r}{nearest(str(name), columns)}")
        if not isinstance(dtype, torch.dtype | None):
            raise ConfigError(
                f"dtypes must be a dtype as torch.float32, or a dict of them by column, not {shown(dtype)}"
            )
