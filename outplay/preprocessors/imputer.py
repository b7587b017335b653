"""SimpleImputer: replaces missing values."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.arguments import column as named
from outplay.arguments import real
from outplay.errors import ConfigError, DataError, nearest
from outplay.preprocessors import statistics
from outplay.preprocessors.base import Preprocessor, check_finite
from outplay.preprocessors.statistics import Array, Statistics

if TYPE_CHECKING:
    from gymnasium import Space

    from outplay.preprocessors.modules import Op

_STRATEGIES = ("mean", "most_frequent", "constant")


class SimpleImputer(Preprocessor):
    """Replaces missing values: by the mean or the most frequent value of the column, or by `fill_value`.

    missing_values  what counts as missing: default NaN, and "" in columns of strings

    In a column of objects, None and NaN are missing, too; it becomes one of strings or of numbers.

    Observations of environments are always finite, so for an agent `missing_values` is a number, as -1.
    """

    accepts = "biufUSO"
    state = ("fill",)

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        strategy: str = "mean",
        fill_value: float | str | None = None,
        missing_values: float | None = None,
    ) -> None:
        super().__init__(columns)
        if strategy not in _STRATEGIES:
            raise ConfigError(f"SimpleImputer: no strategy {strategy!r}{nearest(str(strategy), _STRATEGIES)}")
        if (strategy == "constant") != (fill_value is not None):
            raise ConfigError("SimpleImputer: strategy='constant' needs a fill_value, and the others have none")
        if fill_value is not None and not isinstance(fill_value, str):
            fill_value = real(fill_value, "SimpleImputer: fill_value")
        if missing_values is not None and missing_values != missing_values:  # NaN, as scikit-learn has it
            missing_values = None
        if missing_values is not None:
            missing_values = real(missing_values, "SimpleImputer: missing_values")
        self.strategy, self.fill_value, self.missing_values = strategy, fill_value, missing_values
        if strategy == "mean":
            self.accepts = "biuf"  # type: ignore[misc]

    def check_learned(self, learned: Statistics) -> None:
        if self.strategy == "mean":
            check_finite(learned, "biuf")
        elif learned["fill"].ndim:
            raise ValueError("fill must be one value")

    @property
    def needs_fit(self) -> bool:  # type: ignore[override]
        return self.strategy != "constant"

    def arguments(self) -> dict[str, Any]:
        own = {"strategy": self.strategy, "fill_value": self.fill_value, "missing_values": self.missing_values}
        return {**super().arguments(), **own}

    def missing(self, column: Array) -> Array:
        """True where a value is missing."""
        if column.dtype.kind in "US":
            return np.asarray(column == np.array("", column.dtype))
        if self.missing_values is not None:
            return np.asarray(column == self.missing_values)
        return np.isnan(column) if column.dtype.kind == "f" else np.zeros(column.shape, bool)

    def partial(self, column: Array) -> Statistics:
        column = without_objects(column)
        missing = self.missing(column)
        if self.strategy == "mean":
            return statistics.moments(np.where(missing, np.nan, column.astype(np.float64)))
        if column.ndim > 1:
            raise DataError("SimpleImputer: strategy='most_frequent' is for columns of single values")
        return statistics.counts(column[~missing])

    def merged(self, a: Statistics, b: Statistics) -> Statistics:
        return (statistics.merged_moments if self.strategy == "mean" else statistics.merged_counts)(a, b)

    def learned(self, statistics: Statistics, name: str) -> Statistics:
        if self.strategy == "mean":
            if not statistics["count"].all():
                raise DataError(f"SimpleImputer: {named(name)} has an element that is missing in all rows")
            if not np.isfinite(statistics["mean"]).all():
                raise DataError(
                    f"SimpleImputer: {named(name)} has infinite values, or too large ones; remove or repair these rows"
                )
            return {"fill": statistics["mean"]}
        if not len(statistics["values"]):
            raise DataError(f"SimpleImputer: all values of {named(name)} are missing")
        return {"fill": statistics["values"][statistics["counts"].argmax()]}  # of equally frequent ones, the smallest

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:
        column = without_objects(column)
        fill = learned["fill"] if learned else np.asarray(self.fill_value)
        if (column.dtype.kind in "US") != (fill.dtype.kind in "US"):
            raise DataError(
                f"SimpleImputer: {fill.tolist()!r} does not fit {named(name)} of type {column.dtype}; strings are "
                "replaced by a string, numbers by a number"
            )
        if column.dtype.kind in "US":
            return np.where(self.missing(column), fill, column)
        found = np.where(self.missing(column), fill, column)
        return found.astype(column.dtype) if column.dtype.kind == "f" else found.astype(np.float32)

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:
        from outplay.preprocessors.modules import Fill

        return Fill(space, learned["fill"] if learned else np.asarray(self.fill_value), self.missing_values, name)


def without_objects(column: Array) -> Array:
    """A column of objects as one of strings, in which "" is missing, or of numbers, in which NaN is."""
    if column.dtype.kind != "O":
        return column
    values = [None if isinstance(value, Real) and value != value else value for value in column.ravel()]
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, str) for value in known):
        return np.array(["" if value is None else value for value in values]).reshape(column.shape)
    if all(isinstance(value, Real) for value in known):
        return np.array([np.nan if value is None else float(value) for value in values]).reshape(column.shape)
    raise DataError(
        "SimpleImputer: a column of objects must have strings only or numbers only, beside None; convert it to one type"
    )
