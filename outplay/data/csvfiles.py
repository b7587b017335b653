"""Data sets in CSV files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outplay.arguments import file_path
from outplay.data.arrow import column_of_field, pa, pc, rows_of
from outplay.data.columns import Column, Rows
from outplay.data.dataset import Dataset, Part
from outplay.errors import DataError

_BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class CsvBlock:
    """Lines of a CSV file: the bytes start … stop."""

    path: Path
    start: int
    stop: int
    rows: int
    names: tuple[str, ...] = field(repr=False)  # of all columns in the file
    types: Mapping[str, Column] = field(repr=False)
    columns: tuple[str, ...]  # those that are read

    def read(self) -> Rows:
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                table = _table(file.read(self.stop - self.start), self.names, self.types)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error
        if table.num_rows != self.rows:
            raise DataError(f"{self.path} was changed while it was read")
        return rows_of(table, {name: self.types[name] for name in self.columns})

    def pieces(self) -> Iterator[Rows]:
        yield self.read()


def read_csv(path: str | Path) -> Dataset:
    """A Dataset of a CSV file with a header. The file is scanned once, for its types and number of rows.

    Columns are integers, numbers, booleans, dates or strings. Missing numbers are NaN, missing strings "". Values must
    not contain line breaks.
    """
    path = file_path(path, "read_csv: path", DataError).resolve()
    try:
        blocks, names, types = _scanned(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a CSV file with a header: {error}") from error
    made = [CsvBlock(path, *span, names, types, names) for span in blocks]
    return Dataset([Part(block, 0, block.rows) for block in made], types)


def _scanned(path: Path) -> tuple[list[tuple[int, int, int]], tuple[str, ...], dict[str, Column]]:
    """(start, stop, rows) of every block, the names of the columns, and the types that fit all blocks."""
    with path.open("rb") as file:
        header = file.readline()
    names = tuple(pc.read_csv(io.BytesIO(header)).column_names) if header.strip() else ()
    if not names:
        raise DataError(f"{path} is empty: a CSV file has a header line")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two columns have the same name in the header {', '.join(names)}")
    blocks, types = [], dict[str, Column]()
    for start, data in _pieces(path, len(header)):
        table = _table(data, names, {})
        blocks.append((start, start + len(data), table.num_rows))
        for name in names:
            chunk = table.column(name)
            kind = None if pa.types.is_null(chunk.type) else chunk
            types[name] = _common(types.get(name), kind, str(path))
    return blocks, names, types or {name: Column(np.dtype(np.float64)) for name in names}


def _pieces(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of pieces of whole lines."""
    with path.open("rb") as file:
        file.seek(start)
        while data := file.read(_BLOCK_BYTES):
            data += file.readline()
            yield start, data
            start += len(data)


def _common(known: Column | None, chunk: Any, where: str) -> Column:
    """The type of a column in all blocks so far. `chunk` is None if it has no values in this block."""
    if chunk is None:  # missing: as a number
        return Column(np.dtype(np.float64)) if known is None or known.dtype.kind in "biuf" else known
    own = column_of_field(pa.field("", chunk.type), bool(chunk.null_count), where)
    if known is None or known == own:
        return own
    if {known.dtype.kind, own.dtype.kind} <= set("iuf"):
        return Column(np.promote_types(known.dtype, own.dtype))
    return Column(np.dtype("U"))


def _table(data: bytes, names: tuple[str, ...], types: Mapping[str, Column]) -> Any:
    kinds = {name: _arrow_type(column) for name, column in types.items()}
    return pc.read_csv(
        io.BytesIO(data),
        read_options=pc.ReadOptions(column_names=list(names), use_threads=False, block_size=max(1, len(data) + 1)),
        convert_options=pc.ConvertOptions(column_types=kinds, strings_can_be_null=False),
    )


def _arrow_type(column: Column) -> Any:
    if column.dtype.kind == "U":
        return pa.string()
    return pa.timestamp("us") if column.dtype.kind == "M" else pa.from_numpy_dtype(column.dtype)
