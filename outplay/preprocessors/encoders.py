"""Encoders of categories: numbers or strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.arguments import column as named
from outplay.arguments import integer
from outplay.errors import ConfigError, DataError
from outplay.preprocessors import statistics
from outplay.preprocessors.base import ARRAY, Preprocessor
from outplay.preprocessors.statistics import Array, Statistics

if TYPE_CHECKING:
    from gymnasium import Space

    from outplay.preprocessors.modules import Op

MOST = 10_000  # categories of a column: more are a mistake, or need another encoding


class _Encoder(Preprocessor):
    accepts = "biufUS"
    state = ("categories",)
    merged = staticmethod(statistics.merged_counts)

    def partial(self, column: Array) -> Statistics:
        found = statistics.counts(column)
        if found["values"].dtype.kind == "f" and np.isnan(found["values"]).any():
            raise DataError(f"{type(self).__name__}: a column has missing values; use SimpleImputer before it")
        return found

    def check_learned(self, learned: Statistics) -> None:
        categories = learned["categories"]
        if categories.ndim != 1 or not len(categories) or not (categories[1:] > categories[:-1]).all():
            raise ValueError("categories must be a sorted list of different values")

    def learned(self, statistics: Statistics, name: str) -> Statistics:
        if len(statistics["values"]) > MOST:
            raise DataError(
                f"{type(self).__name__}: {named(name)} has {len(statistics['values']):,} different values; more than "
                f"{MOST:,} are not supported"
            )
        return {"categories": statistics["values"]}

    def indices(self, column: Array, learned: Statistics) -> Array:
        """The position of each value in the sorted categories; -1 if it is none."""
        categories = learned["categories"]
        place = np.searchsorted(categories, column).clip(0, len(categories) - 1)
        return np.where(categories[place] == column, place, -1)

    def known_indices(self, column: Array, learned: Statistics, name: str) -> Array:
        """As `indices`. Raises DataError for a value that is no category."""
        found = self.indices(column, learned)
        if (found < 0).any():
            value = column[tuple(np.argwhere(found < 0)[0])].item()
            raise DataError(f"{type(self).__name__}: {value!r} in {named(name)} was not in the data it was fitted to")
        return found

    def _values(self, indices: Array, learned: Statistics, name: str) -> Array:
        categories = learned["categories"]
        is_whole = indices.dtype.kind in "biu" or (indices.dtype.kind == "f" and bool((indices % 1 == 0).all()))
        if not is_whole:
            raise DataError(
                f"{type(self).__name__}: inverse_transform takes integer codes, which {named(name)} does not have"
            )
        whole = indices.astype(np.int64)
        if ((whole < 0) | (whole >= len(categories))).any():
            raise DataError(f"{type(self).__name__}: {named(name)} has a code that is not 0 … {len(categories) - 1}")
        found: Array = categories[whole]
        return found


class OrdinalEncoder(_Encoder):
    """Categories as integers 0, 1, …, in their sorted order.

    `unknown_value`: of values that are no category; default: they are an error. Observations with such a value get the
    nearest code, since an agent cannot stop.
    """

    def __init__(self, columns: Sequence[str] | None = None, unknown_value: int | None = None) -> None:
        super().__init__(columns)
        self.unknown_value = None if unknown_value is None else integer(unknown_value, "OrdinalEncoder: unknown_value")

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "unknown_value": self.unknown_value}

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:
        if self.unknown_value is None:
            return self.known_indices(column, learned, name)
        found = self.indices(column, learned)
        return np.where(found < 0, self.unknown_value, found)

    def invert(self, column: Array, learned: Statistics, name: str) -> Array:
        return self._values(column, learned, name)

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:
        from outplay.preprocessors.modules import Ordinal

        return Ordinal(space, learned["categories"], name)


class LabelEncoder(_Encoder):
    """The categories of a label column as integers 0, 1, …. `classes_` are the categories."""

    def __init__(self, label_column: str = ARRAY) -> None:
        if not isinstance(label_column, str):
            raise ConfigError(f"LabelEncoder: label_column must be the name of a column, not {label_column!r}")
        super().__init__([label_column])
        self.label_column = label_column

    def arguments(self) -> dict[str, Any]:
        return {"label_column": self.label_column}

    @property
    def classes_(self) -> Array:
        self.check_fitted()
        return self.learned_of(self.label_column)["categories"]

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:
        return self.known_indices(column, learned, name)

    def invert(self, column: Array, learned: Statistics, name: str) -> Array:
        return self._values(column, learned, name)


class OneHotEncoder(_Encoder):
    """Each value as a vector with a 1 at its category, float32: (rows, …) becomes (rows, …, categories).

    A value that is no category becomes zeros. `max_categories`: only the most frequent ones are categories.
    """

    def __init__(self, columns: Sequence[str] | None = None, max_categories: int | None = None) -> None:
        super().__init__(columns)
        self.max_categories = (
            None if max_categories is None else integer(max_categories, "OneHotEncoder: max_categories", least=1)
        )

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "max_categories": self.max_categories}

    def learned(self, statistics: Statistics, name: str) -> Statistics:
        if self.max_categories is not None:  # of equally frequent ones, the first
            order = np.argsort(-statistics["counts"], kind="stable")[: self.max_categories]
            statistics = {"values": np.sort(statistics["values"][order])}
        return super().learned(statistics, name)

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        indices = self.indices(column, learned)
        return np.asarray(indices[..., None] == np.arange(len(learned["categories"])), np.float32)

    def invert(self, column: Array, learned: Statistics, name: str) -> Array:
        size = len(learned["categories"])
        if column.dtype.kind not in "biuf" or column.shape[-1:] != (size,):
            raise DataError(
                f"OneHotEncoder: inverse_transform takes rows of {size} numbers, which {named(name)} does not have"
            )
        if not (column.sum(-1) == 1).all():
            raise DataError(f"OneHotEncoder: {named(name)} has rows of no category, which have no inverse")
        return self._values(column.argmax(-1), learned, name)

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:
        from outplay.preprocessors.modules import OneHot

        return OneHot(space, learned["categories"], name)
