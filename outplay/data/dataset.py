"""Dataset: rows in columns, in files or in memory. Files are read block by block, never all of them at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from outplay.arguments import integer, shown
from outplay.data.columns import Array, Column, Rows, checked, checked_names, columns_of, concatenated, count, take
from outplay.errors import DataError, nearest
from outplay.streams import stream

if TYPE_CHECKING:
    import pandas

_WINDOW_ROWS = 65_536  # rows that are shuffled together, at most …
_WINDOW_BYTES = 64 * 2**20  # … and at most this size
_LARGE_BLOCK = 4 * _WINDOW_BYTES
_BLOCK_ROWS = 16_384  # of data in memory

Function = Callable[[Rows], Mapping[str, Any]]
log = logging.getLogger("outplay")


class Block(Protocol):
    """Consecutive rows in one place, read together: a row group of a Parquet file, a part of an array."""

    @property
    def rows(self) -> int: ...

    def read(self) -> Rows: ...

    def pieces(self) -> Iterator[Rows]:
        """The same rows in order, in pieces of a size that fits into memory."""
        ...


@dataclass(frozen=True)
class MemoryBlock:
    """Arrays in memory."""

    arrays: Rows = field(repr=False)

    @property
    def rows(self) -> int:
        return count(self.arrays)

    def read(self) -> Rows:
        return self.arrays

    def pieces(self) -> Iterator[Rows]:
        yield self.arrays


@dataclass(frozen=True)
class Part:
    """Rows start … stop of a block; `more` are columns of these rows in memory."""

    block: Block
    start: int
    stop: int
    more: Rows = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def read(self) -> Rows:
        return {**take(self.block.read(), slice(self.start, self.stop)), **self.more}

    def pieces(self) -> Iterator[Rows]:
        """The same rows in order, in the pieces of the block."""
        first = 0  # number of the piece's first row in the block
        for rows in self.block.pieces():
            low, high = max(self.start, first), min(self.stop, first + count(rows))
            if low < high:
                more = take(self.more, slice(low - self.start, high - self.start))
                yield {**take(rows, slice(low - first, high - first)), **more}
            first += count(rows)
            if first >= self.stop:
                return

    def part(self, start: int, stop: int) -> Part:
        """The rows start … stop of this part."""
        return Part(self.block, self.start + start, self.start + stop, take(self.more, slice(start, stop)))


class Dataset:
    """Rows in columns. Made by `read_parquet`, `read_csv`, `from_arrays`, `from_pandas`, `from_items`, `read_minari`.

    `len(dataset)` and `dataset.columns` come from metadata. A Dataset of files pickles as paths. `metadata` has the
    entries of the files' own metadata, which are strings.

    >>> dataset = data.from_arrays({"x": np.arange(6), "y": np.arange(6) ** 2})
    >>> [batch["x"].tolist() for batch in dataset.iter_batches(batch_size=4)]
    [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(
        self,
        parts: Sequence[Part],
        columns: Mapping[str, Column],
        metadata: Mapping[str, str] | None = None,
        functions: tuple[Function, ...] = (),
    ) -> None:
        self._parts = tuple(part for part in parts if part.rows)
        self._columns = dict(columns)  # before the functions
        self._functions = functions
        self._mapped: dict[str, Column] | None = None
        self._has_warned = False  # of large blocks
        self.metadata = dict(metadata or {})

    def __len__(self) -> int:
        return sum(part.rows for part in self._parts)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.columns.items())
        return f"Dataset({len(self):,} rows; {columns})"

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by name. After `map_batches`, those that the function returns for the first row."""
        if self._functions and self._parts:
            if self._mapped is None:
                self._mapped = columns_of(self._apply(take(self._parts[0].read(), slice(0, 1))))
            return dict(self._mapped)
        return dict(self._columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return sum(column.row_bytes for column in self.columns.values())

    def blocks(self) -> Iterator[Rows]:
        """The rows in order, block by block."""
        for part in self._parts:
            yield from map(self._apply, part.pieces())

    def iter_batches(
        self,
        batch_size: int = 256,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
        skip: int = 0,
    ) -> Iterator[Rows]:
        """Batches of `batch_size` rows: dicts of arrays. The last one may be smaller, unless `drop_last`.

        `shuffle` puts the blocks in random order, and shuffles the rows within a window of blocks; the order is a
        function of (seed, epoch). `skip` leaves out the first batches, without reading the blocks that they consist of.
        """
        integer(batch_size, "batch_size", 1, error=DataError)
        for name, value in (("seed", seed), ("epoch", epoch), ("skip", skip)):
            integer(value, name, 0, error=DataError)
        return self._batches(batch_size, shuffle, seed, epoch, drop_last, skip)

    def _batches(
        self, batch_size: int, shuffle: bool, seed: int, epoch: int, drop_last: bool, skip: int
    ) -> Iterator[Rows]:
        order = self._shuffled(batch_size, seed, epoch) if shuffle else [([part], None) for part in self._parts]
        waiting: Rows | None = None  # rows that do not fill a batch yet
        left_out = skip * batch_size
        for parts, generator in order:
            rows = sum(part.rows for part in parts)
            if left_out >= rows:
                left_out -= rows
                continue
            for found in self._window(parts, generator):
                if left_out >= count(found):
                    left_out -= count(found)
                    continue
                found, left_out = take(found, slice(left_out, None)), 0
                waiting = found if waiting is None else concatenated([waiting, found])
                full = count(waiting) // batch_size * batch_size
                for start in range(0, full, batch_size):
                    yield take(waiting, slice(start, start + batch_size))
                waiting = take(waiting, slice(full, None)) if full < count(waiting) else None
        if waiting is not None and not drop_last:
            yield waiting

    def _window(self, parts: Sequence[Part], generator: np.random.Generator | None) -> Iterator[Rows]:
        """The rows of parts: in order, piece by piece; or shuffled, all at once."""
        if generator is None:
            for part in parts:
                yield from map(self._apply, part.pieces())
        else:
            found = concatenated([self._apply(part.read()) for part in parts])
            yield take(found, generator.permutation(count(found)))

    def _shuffled(self, batch_size: int, seed: int, epoch: int) -> list[tuple[list[Part], np.random.Generator | None]]:
        """Windows of parts in random order, each with the generator that shuffles its rows."""
        limit = max(4 * batch_size, min(_WINDOW_ROWS, _WINDOW_BYTES // max(1, self.row_bytes)))
        self._warn_of_large_blocks()
        windows: list[list[Part]] = []
        rows = limit
        for index in stream(seed, "shuffled blocks", epoch).permutation(len(self._parts)):
            part = self._parts[index]
            if rows + part.rows > limit:
                windows.append([])
                rows = 0
            windows[-1].append(part)
            rows += part.rows
        return [(window, stream(seed, "shuffled rows", epoch, i)) for i, window in enumerate(windows)]

    def _warn_of_large_blocks(self) -> None:
        """Once: a block from which rows are shuffled is read as a whole."""
        files = [part for part in self._parts if not isinstance(part.block, MemoryBlock)]
        largest = max((part.block.rows for part in files), default=0) * self.row_bytes
        if largest > _LARGE_BLOCK and not self._has_warned:
            log.warning(
                "shuffling reads row groups of up to %d MB at once, and puts only them in random order; write the data "
                "anew with small ones: data.read_parquet(folder).write_parquet(new_folder)",
                largest // 10**6,
            )
        self._has_warned = True

    def shard(self, index: int, number: int) -> Dataset:
        """Part `index` of `number` disjoint parts, which together are the whole and differ by at most one row."""
        integer(number, "shard: number", 1, error=DataError)
        if not 0 <= integer(index, "shard: index", error=DataError) < number:
            raise DataError(f"shard {index} of {number} does not exist: the index goes from 0 to {number - 1}")
        size = len(self)
        return self.rows(size * index // number, size * (index + 1) // number)

    def rows(self, start: int, stop: int) -> Dataset:
        """The rows start … stop (not included), in order."""
        start, stop = (integer(value, "rows: start and stop", error=DataError) for value in (start, stop))
        ends = list(accumulate(part.rows for part in self._parts))
        parts = []
        for part, end in zip(self._parts, ends, strict=True):
            first = end - part.rows  # number of the part's first row
            if (low := max(start, first)) < (high := min(stop, end)):
                parts.append(part.part(low - first, high - first))
        return self._with(parts)

    def map_batches(self, function: Function) -> Dataset:
        """The data set with `function` applied to every block when it is read. It returns as many rows as it gets."""
        if not callable(function):
            raise DataError(f"map_batches takes a function of a dict of arrays, not {shown(function)}")
        return Dataset(self._parts, self._columns, self.metadata, (*self._functions, function))

    def select(self, names: str | Sequence[str]) -> Dataset:
        """The data set with these columns only (one, or a list); of Parquet files, only these are read."""
        names = checked_names(names, "select")
        self.check_columns(names)
        if self._functions:
            return self.map_batches(_Selection(tuple(names)))
        parts = []
        for part in self._parts:
            more = {name: array for name, array in part.more.items() if name in names}
            parts.append(
                Part(_selected(part.block, tuple(n for n in names if n not in more)), part.start, part.stop, more)
            )
        return Dataset(parts, {name: self._columns[name] for name in names}, self.metadata)

    def with_columns(self, columns: Mapping[str, Any]) -> Dataset:
        """The data set with more columns, which are arrays in memory with one entry per row, in order."""
        arrays = checked(columns, "with_columns")
        if count(arrays) != len(self):
            raise DataError(f"with_columns: there are {count(arrays)} values for {len(self)} rows")
        if self._functions:
            raise DataError("with_columns: add columns before map_batches")
        parts, first = [], 0
        for part in self._parts:
            more = take(arrays, slice(first, first + part.rows))
            parts.append(replace(part, more={**part.more, **more}))
            first += part.rows
        return Dataset(parts, {**self._columns, **columns_of(arrays)}, self.metadata)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise DataError if a column is missing."""
        for name in names:
            if name not in self.columns:
                raise DataError(f"the data set has no column {name!r}{nearest(name, self.columns)}")

    def in_memory(self) -> Dataset:
        """The same data set with all blocks read. It gives the same batches in the same order."""
        return self._with([Part(MemoryBlock(part.read()), 0, part.rows) for part in self._parts])

    def to_arrays(self) -> Rows:
        """All rows."""
        if not self._parts:
            return {n: np.zeros((0, *c.shape), c.dtype) for n, c in self.columns.items()}
        return concatenated(list(self.blocks()))

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame; a column of arrays becomes one of lists."""
        import pandas

        return pandas.DataFrame({n: list(a) if a.ndim > 1 else a for n, a in self.to_arrays().items()})

    def write_parquet(self, folder: str | Path, rows_per_file: int = 1_000_000) -> None:
        """Write the rows into a folder of Parquet files, block by block. See `data.write_parquet`."""
        from outplay.data.parquet import write_parquet

        write_parquet(self, folder, rows_per_file)

    def _with(self, parts: Sequence[Part]) -> Dataset:
        return Dataset(parts, self._columns, self.metadata, self._functions)

    def _apply(self, rows: Rows) -> Rows:
        before = count(rows)
        for function in self._functions:
            rows = checked(function(rows), "map_batches")
            if count(rows) != before:
                raise DataError(f"the function of map_batches returned {count(rows)} rows for {before}")
        return rows


@dataclass(frozen=True)
class _Selection:
    names: tuple[str, ...]

    def __call__(self, rows: Rows) -> Rows:
        return {name: rows[name] for name in self.names}


def _selected(block: Block, names: tuple[str, ...]) -> Block:
    if isinstance(block, MemoryBlock):
        return MemoryBlock({name: block.arrays[name] for name in names})
    return replace(block, columns=names)  # type: ignore[type-var]  # blocks of files are dataclasses with columns


def from_arrays(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Dataset:
    """A Dataset of arrays in memory: one per column, each (rows, …).

    >>> data.from_arrays({"x": np.zeros((10, 4), np.float32), "label": np.arange(10)})
    Dataset(10 rows; x: float32[4], label: int64)
    """
    rows = checked(arrays, "from_arrays")
    starts = range(0, count(rows), _BLOCK_ROWS)
    blocks = [MemoryBlock(take(rows, slice(start, start + _BLOCK_ROWS))) for start in starts]
    return Dataset([Part(block, 0, block.rows) for block in blocks], columns_of(rows), metadata)


def from_items(items: Sequence[Mapping[str, Any]]) -> Dataset:
    """A Dataset of rows: dictionaries with the same keys.

    >>> data.from_items([{"x": 1.0, "name": "a"}, {"x": 2.0, "name": "b"}])
    Dataset(2 rows; x: float64, name: str)
    """
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise DataError(f"from_items takes a list of dicts, one per row, not {shown(items)}")
    items = list(items)
    if not items:
        raise DataError("from_items: there are no rows")
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise DataError(f"from_items: row {number} must be a dict of values by column, not {shown(item)}")
        if item.keys() != items[0].keys():
            raise DataError(f"from_items: row {number} has the keys {sorted(item)}, and row 0 {sorted(items[0])}")
    return from_arrays({name: _column(name, [item[name] for item in items]) for name in items[0]})


def from_pandas(frame: pandas.DataFrame) -> Dataset:
    """A Dataset of a pandas DataFrame. Missing numbers become NaN, missing strings ""."""
    if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
        raise DataError(f"from_pandas takes a pandas DataFrame, not {shown(frame)}")
    return from_arrays({str(name): _from_series(str(name), frame[name]) for name in frame.columns})


def _from_series(name: str, series: Any) -> Array:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if is_numeric_dtype(series) and (series.isna().any() or not is_bool_dtype(series)):
        return np.asarray(series.to_numpy(np.float64, na_value=np.nan) if series.isna().any() else series.to_numpy())
    if (values := series.to_numpy()).dtype.kind in "bM":
        return np.asarray(values)
    missing = series.isna().to_numpy()
    return _column(name, ["" if gone else value for value, gone in zip(values, missing, strict=True)])


def _column(name: str, values: list[Any]) -> Array:
    """One column of Python values: strings, or numbers and arrays; np.asarray would turn a mixture into strings."""
    if 0 < sum(isinstance(value, str) for value in values) < len(values):
        raise DataError(f"column {name!r} has strings and other values; convert them to one type")
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"column {name!r} has rows of different shapes") from error
