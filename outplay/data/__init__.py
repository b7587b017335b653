"""Data sets: rows in columns, in files or in memory, larger than memory if need be.

>>> from outplay import data
>>> dataset = data.read_parquet("recorded/")
>>> for batch in dataset.iter_batches(batch_size=256, shuffle=True, seed=0, epoch=0):
...     batch["observation"], batch["action"]  # arrays of 256 rows

pyarrow (pip install 'outplay[data]') is needed for files; it is imported when it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from outplay.data.columns import Column
from outplay.data.dataset import Dataset, from_arrays, from_items, from_pandas

if TYPE_CHECKING:
    from outplay.data.parquet import Paths
    from outplay.spaces import Leaf

MINARI = "minari:"  # before the name of a data set in the setting `input`

__all__ = [
    "MINARI",
    "Column",
    "Dataset",
    "from_arrays",
    "from_items",
    "from_pandas",
    "read_csv",
    "read_minari",
    "read_parquet",
    "write_minari",
    "write_parquet",
]


def read_parquet(paths: Paths) -> Dataset:
    """A Dataset of Parquet files: a file, files, or folders with files. Only their metadata is read now.

    >>> len(data.read_parquet("recorded/"))
    20480
    """
    from outplay.data import parquet

    return parquet.read_parquet(paths)


def write_parquet(dataset: Dataset, folder: str | Path, rows_per_file: int = 1_000_000) -> None:
    """Write a Dataset into a folder as Parquet files of `rows_per_file` rows, block by block."""
    from outplay.data import parquet

    parquet.write_parquet(dataset, folder, rows_per_file)


def read_csv(path: str | Path) -> Dataset:
    """A Dataset of a CSV file with a header. The file is scanned once, for its types and number of rows.

    Missing numbers are NaN, missing strings "". Values must not contain line breaks.
    """
    from outplay.data import csvfiles

    return csvfiles.read_csv(path)


def read_minari(name: str, leaves: tuple[Leaf, ...] | None = None) -> Dataset:
    """A Dataset of a local Minari data set (MINARI_DATASETS_PATH), with the columns of recorded experience.

    Nothing is downloaded. `leaves`: of the environment's observations; default: of the data set's observation space.

    >>> data.read_minari("cartpole/expert-v0")
    """
    from outplay.data import minarifiles

    return minarifiles.read_minari(name, leaves)


def write_minari(
    dataset: Dataset,
    name: str,
    env: str | None = None,
    algorithm: str | None = None,
    data_format: Literal["arrow", "hdf5"] = "arrow",
) -> None:
    """Write experience that Outplay recorded as a local Minari data set. `env` and `algorithm` are written beside it.

    >>> data.write_minari(data.read_parquet("recorded/"), "cartpole/expert-v0")
    """
    from outplay.data import minarifiles

    minarifiles.write_minari(dataset, name, env, algorithm, data_format)
