"""Data sets in Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outplay.arguments import file_path, integer
from outplay.data.arrow import column_of_field, pa, pq, rows_of, schema_of, table_of
from outplay.data.columns import Column, Rows, count, take
from outplay.data.dataset import Dataset, Part
from outplay.errors import DataError
from outplay.files import remove, sync_folder, writing

_GROUP_BYTES = 8 * 2**20  # of a row group: what is read at once
_GROUP_ROWS = 16_384
_READ_BYTES = 2**20  # at once, of a column of a large row group

Paths = str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class ParquetBlock:
    """A row group of a Parquet file."""

    path: Path
    group: int
    rows: int
    types: Mapping[str, Column] = field(repr=False)
    columns: tuple[str, ...]  # those that are read

    def read(self) -> Rows:
        with self._file() as file:
            table = file.read_row_group(self.group, columns=list(self.columns), use_threads=False)
        self._check(table.num_rows)
        return self._rows(table)

    def pieces(self) -> Iterator[Rows]:
        """Row groups of other programs may be larger than memory."""
        row_bytes = sum(self.types[name].row_bytes for name in self.columns)
        size = max(1, min(_GROUP_ROWS, _GROUP_BYTES // max(1, row_bytes)))
        if self.rows <= 2 * size:
            yield self.read()
            return
        rows = 0
        with self._file(buffer_size=_READ_BYTES) as file:
            for batch in file.iter_batches(size, [self.group], list(self.columns), use_threads=False):
                rows += batch.num_rows
                yield self._rows(pa.Table.from_batches([batch]))
        self._check(rows)

    @contextmanager
    def _file(self, **options: Any) -> Iterator[Any]:
        try:
            with pq.ParquetFile(self.path, **options) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error

    def _check(self, rows: int) -> None:
        if rows != self.rows:
            raise DataError(f"{self.path} was replaced while it was read")

    def _rows(self, table: Any) -> Rows:
        return rows_of(table, {name: self.types[name] for name in self.columns})


def read_parquet(paths: Paths) -> Dataset:
    """A Dataset of Parquet files: a file, files, or folders with files. Only their metadata is read now.

    >>> dataset = data.read_parquet("recorded/")
    """
    files = parquet_files(paths)
    if not files:
        raise DataError(f"{paths} has no Parquet files")
    types: dict[str, Column] | None = None
    found: list[tuple[Path, Any]] = []
    for path in files:
        meta = _metadata(path)
        own = _columns(path, meta)
        if types is not None and (own.keys() != types.keys()):
            raise DataError(f"{path} has the columns {', '.join(own)}; the files before have {', '.join(types)}")
        types = own if types is None else {name: _common(path, name, types[name], own[name]) for name in types}
        found.append((path, meta))
    assert types is not None
    names = tuple(types)
    parts = []
    for path, meta in found:
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            parts.append(Part(ParquetBlock(path, group, rows, types, names), 0, rows))
    return Dataset(parts, types, _strings(found[0][1].metadata))


def parquet_files(paths: Paths) -> list[Path]:
    """The Parquet files that paths name, in order of their names; hidden files are left out."""
    files: list[Path] = []
    if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable):
        paths = [paths]
    for path in (file_path(each, "read_parquet: each of paths", DataError) for each in paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.parquet") if not p.name.startswith((".", "_")))
            files += [p for p in inside if p.is_file()]
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"{path} does not exist")
    return [path.resolve() for path in files]


def _metadata(path: Path) -> Any:
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is no Parquet file, or it is damaged: {error}") from error


def _columns(path: Path, meta: Any) -> dict[str, Column]:
    schema = meta.schema.to_arrow_schema()
    return {f.name: column_of_field(f, f.nullable and _has_nulls(meta, f.name), str(path)) for f in schema}


def _has_nulls(meta: Any, name: str) -> bool:
    """Whether a column has missing values; true if the file has no statistics of it."""
    for group in range(meta.num_row_groups):
        row_group = meta.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            if chunk.path_in_schema.split(".")[0] == name:
                statistics = chunk.statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    return True
    return False


def _common(path: Path, name: str, one: Column, other: Column) -> Column:
    if one == other:
        return one
    if one.shape == other.shape and {one.dtype.kind, other.dtype.kind} <= set("biuf"):
        return Column(np.promote_types(one.dtype, other.dtype), one.shape)  # missing values are in one of the files
    raise DataError(f"{path}: column {name!r} is {other}; in the files before it is {one}")


def _strings(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    own = {k: v for k, v in (metadata or {}).items() if k not in (b"ARROW:schema", b"pandas")}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in own.items()}


def write_file(path: Path, rows: Rows, columns: Mapping[str, Column], metadata: Mapping[str, str]) -> None:
    """Write one Parquet file: it appears complete, or not at all."""
    with FileWriter(path, columns, metadata) as file:
        file.write(rows)


class FileWriter:
    """Writes one Parquet file in parts. It gets its name when it is complete and on disk.

    >>> with FileWriter(path, dataset.columns, dataset.metadata) as file:
    ...     for rows in dataset.blocks():
    ...         file.write(rows)
    """

    def __init__(self, path: Path, columns: Mapping[str, Column], metadata: Mapping[str, str]) -> None:
        self.path, self.rows = path, 0
        self._part = path.with_name(f".{path.name}.part")
        self._schema = schema_of(columns, metadata)
        row_bytes = max(1, sum(column.row_bytes for column in columns.values()))
        self._group_rows = max(1, min(_GROUP_ROWS, _GROUP_BYTES // row_bytes))
        with writing(path):
            self._writer = pq.ParquetWriter(self._part, self._schema, compression="zstd")

    def write(self, rows: Rows) -> None:
        with writing(self.path):
            for start in range(0, count(rows), self._group_rows):
                piece = take(rows, slice(start, start + self._group_rows))
                self._writer.write_table(table_of(piece, self._schema))
                self.rows += count(piece)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            with writing(self.path):
                self._writer.close()
                if kind is None:
                    with self._part.open("rb") as file:
                        os.fsync(file.fileno())
                    self._part.replace(self.path)
                    sync_folder(self.path.parent)
        finally:
            remove(self._part)


def write_parquet(dataset: Dataset, folder: str | Path, rows_per_file: int = 1_000_000) -> None:
    """Write a Dataset into a folder as Parquet files of `rows_per_file` rows, block by block.

    The folder must not have Parquet files yet.
    """
    folder = file_path(folder, "write_parquet: folder", DataError)
    integer(rows_per_file, "write_parquet: rows_per_file", 1, error=DataError)
    if folder.is_file():
        raise DataError(f"{folder} is a file; name a folder, which gets files of {rows_per_file:,} rows")
    if folder.exists() and parquet_files(folder):
        raise DataError(f"{folder} already has data; choose another folder, or remove it")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    columns = dataset.columns
    for number, start in enumerate(range(0, len(dataset), rows_per_file)):
        with FileWriter(folder / f"part-{number:06d}.parquet", columns, dataset.metadata) as file:
            for rows in dataset.rows(start, start + rows_per_file).blocks():
                file.write(rows)
