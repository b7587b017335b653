"""Arrow tables and arrays of numpy, and back. pyarrow is imported here, and by others from here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from outplay.data.columns import Array, Column, Rows
from outplay.errors import DataError

try:
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise DataError("recorded data needs pyarrow: pip install 'outplay[data]'") from error

__all__ = ["column_of_field", "pa", "pc", "pq", "rows_of", "schema_of", "table_of"]

_SHAPE = b"shape"  # key of a field's metadata: the shape of a row as JSON


def schema_of(columns: Mapping[str, Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The Arrow schema of columns. Arrays are fixed-size lists of their flattened values."""
    fields = []
    for name, column in columns.items():
        kind = pa.string() if column.dtype.kind == "U" else pa.from_numpy_dtype(column.dtype)
        if column.shape:
            kind = pa.list_(pa.field("item", kind, nullable=False), int(np.prod(column.shape)))
        shape = {_SHAPE: json.dumps(column.shape).encode()} if column.shape else None
        fields.append(pa.field(name, kind, nullable=False, metadata=shape))
    return pa.schema(fields, metadata=dict(metadata) if metadata else None)


def table_of(rows: Mapping[str, Array], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table. Arrays are not copied where they are contiguous."""
    arrays = []
    for field in schema:
        values = rows[field.name]
        if pa.types.is_fixed_size_list(field.type):
            flat = pa.array(np.ascontiguousarray(values).reshape(-1), field.type.value_type)
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def column_of_field(field: pa.Field, has_nulls: bool, where: str) -> Column:
    """The Column that an Arrow field is read as. Raises DataError for what is no array of a fixed shape."""
    kind: Any = field.type
    shape: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(kind):
        shape = (*shape, kind.list_size)
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if field.metadata and _SHAPE in field.metadata and shape:
        shape = _stored_shape(field.metadata[_SHAPE], int(np.prod(shape)), f"{where}: column {field.name!r}")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Column(np.dtype("U"), shape)
    if has_nulls and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return Column(np.dtype(np.float64), shape)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return Column(np.dtype(kind.to_pandas_dtype()), shape)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return Column(np.dtype("datetime64[us]"), shape)
    raise DataError(
        f"{where}: column {field.name!r} has the type {field.type}; numbers, booleans, strings, dates and lists of "
        "a fixed size are supported"
    )


def _stored_shape(text: bytes, size: int, where: str) -> tuple[int, ...]:
    try:
        shape = tuple(json.loads(text))
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: its shape {text!r} is not JSON") from error
    if not all(isinstance(part, int) and part > 0 for part in shape) or int(np.prod(shape)) != size:
        raise DataError(f"{where}: its shape {list(shape)} does not have the {size} values of a row")
    return shape


def rows_of(table: pa.Table, columns: Mapping[str, Column]) -> Rows:
    """Columns of an Arrow table as arrays. Missing numbers become NaN, missing strings ""."""
    return {name: _array(table.column(name), column) for name, column in columns.items()}


def _array(chunked: Any, column: Column) -> Array:
    array = chunked.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of pyarrow before 16, or without rows
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], chunked.type)
    rows = len(array)
    while pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise DataError("a column of lists has missing rows")
        array = array.flatten()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if column.dtype.kind == "U":
        values = np.asarray(array.fill_null("").to_numpy(zero_copy_only=False), dtype=np.str_)
    elif column.dtype.kind == "M":
        values = array.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)
    else:
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype == object:  # booleans with nulls
            values = np.array([np.nan if value is None else value for value in values], np.float64)
    found: Array = values.astype(column.dtype, copy=False).reshape(rows, *column.shape)
    return found
