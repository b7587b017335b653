"""Rows of a data set as a table, for libraries that take one matrix of features."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outplay.errors import DataError, nearest


def table(rows: Mapping[str, np.ndarray], label: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(features (rows, n), labels, names of the features) of all columns of numbers but the label's.

    A column of arrays is flattened: "x" becomes x_0, x_1, ….
    """
    if label not in rows:
        raise DataError(f"label_column: there is no column {label!r}{nearest(label, list(rows))}")
    parts, names = [], []
    for name, column in rows.items():
        if name == label:
            continue
        if column.dtype.kind not in "biuf":
            raise DataError(f"column {name!r} has no numbers; encode it with a preprocessor, as OrdinalEncoder")
        flat = column.reshape(len(column), -1)
        parts.append(flat)
        names += [name] if column.ndim == 1 else [f"{name}_{i}" for i in range(flat.shape[1])]
    if not parts:
        raise DataError(f"there is no column beside the label {label!r}")
    return np.concatenate(parts, -1), np.asarray(rows[label]), names
