"""Columns of a data set: what kind of array each is, and the checks of arrays that become columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outplay.arguments import shown
from outplay.errors import DataError

Array = np.ndarray
Rows = dict[str, Array]  # columns by name: arrays (rows, …)

_STRING_BYTES = 32  # assumed size of a string, of which a column does not know the length


@dataclass(frozen=True)
class Column:
    """One column: each row is an array of this dtype and shape. Strings have the dtype "U": their length may differ.

    >>> Column(np.dtype("float32"), (4,)).row_bytes
    16
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape)) * (self.dtype.itemsize or _STRING_BYTES)

    def __str__(self) -> str:
        kind = "str" if self.dtype.kind == "U" else str(self.dtype)
        return f"{kind}{list(self.shape)}" if self.shape else kind


def column_of(array: Array) -> Column:
    """The Column of an array (rows, …)."""
    return Column(np.dtype("U") if array.dtype.kind == "U" else array.dtype, array.shape[1:])


def columns_of(rows: Mapping[str, Array]) -> dict[str, Column]:
    return {name: column_of(array) for name, array in rows.items()}


def checked(rows: Mapping[str, Any], where: str) -> Rows:
    """Columns as arrays of equal length. Raises DataError for objects, and for columns of different lengths."""
    if not isinstance(rows, Mapping):
        raise DataError(f"{where}: a dict of arrays by column is needed, not {shown(rows)}")
    if not rows:
        raise DataError(f"{where}: there are no columns")
    arrays: Rows = {}
    for name, values in rows.items():
        if not isinstance(name, str):
            raise DataError(f"{where}: the column name {name!r} is not a string")
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise DataError(f"{where}: column {name!r} has rows of different shapes") from error
        if array.dtype.kind not in "biufUM":
            raise DataError(
                f"{where}: column {name!r} has the type {array.dtype}; numbers, booleans, strings and dates are allowed"
            )
        if array.ndim == 0:
            raise DataError(f"{where}: column {name!r} is one value, not one per row")
        arrays[name] = array
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where}: the columns have different numbers of rows: {lengths}")
    return arrays


def checked_names(names: Any, where: str) -> list[str]:
    """Names of columns: one, or several."""
    if isinstance(names, str):
        return [names]
    found = list(names) if isinstance(names, Iterable) and not isinstance(names, Mapping) else []
    if not found or not all(isinstance(name, str) for name in found):
        raise DataError(f"{where} takes the name of a column or a list of names, not {names!r}")
    return found


def take(rows: Mapping[str, Array], index: Any) -> Rows:
    """The chosen rows of all columns: `index` is a slice or an array of row numbers."""
    return {name: array[index] for name, array in rows.items()}


def concatenated(parts: list[Rows]) -> Rows:
    return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def count(rows: Mapping[str, Array]) -> int:
    return len(next(iter(rows.values())))
