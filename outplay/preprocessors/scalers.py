"""Scalers: linear maps of each element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.arguments import column as named
from outplay.arguments import real
from outplay.errors import ConfigError, DataError
from outplay.preprocessors import statistics
from outplay.preprocessors.base import Preprocessor, check_finite
from outplay.preprocessors.statistics import Array, Statistics

if TYPE_CHECKING:
    from gymnasium import Space

    from outplay.preprocessors.modules import Op


class _Scaler(Preprocessor):
    """(x − shift) · factor, then + offset. Doubles stay doubles; everything else becomes float32."""

    state = ("shift", "factor")

    def check_learned(self, learned: Statistics) -> None:
        if learned["shift"].shape != learned["factor"].shape:
            raise ValueError(f"shift has the shape {learned['shift'].shape}, factor {learned['factor'].shape}")
        check_finite(learned, "biuf")

    def _offset(self) -> float:
        return 0.0

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:
        self._check_shape(column, learned, name)
        found = (column.astype(np.float64) - learned["shift"]) * learned["factor"] + self._offset()
        return self._clipped(found.astype(_float_type(column)))

    def invert(self, column: Array, learned: Statistics, name: str) -> Array:
        self._check_shape(column, learned, name)
        found = (column.astype(np.float64) - self._offset()) / learned["factor"] + learned["shift"]
        return found.astype(_float_type(column))

    def _clipped(self, x: Array) -> Array:
        return x

    def _check_shape(self, column: Array, learned: Statistics, name: str) -> None:
        self.check_type(column.dtype, name)
        if column.shape[1:] != learned["shift"].shape:
            raise DataError(
                f"{type(self).__name__}: {named(name)} has rows of shape {column.shape[1:]}; it was fitted to "
                f"rows of shape {learned['shift'].shape}"
            )

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:
        from outplay.preprocessors.modules import Affine

        return Affine(space, learned["shift"], learned["factor"], self._offset(), None, name)


class StandardScaler(_Scaler):
    """(x − mean) / standard deviation, of each element over all rows. A constant element becomes 0.

    As scikit-learn's: the standard deviation is that of the population, and missing values (NaN) are not counted.
    """

    partial = staticmethod(statistics.moments)
    merged = staticmethod(statistics.merged_moments)

    def learned(self, statistics: Statistics, name: str) -> Statistics:
        if not (np.isfinite(statistics["mean"]).all() and np.isfinite(statistics["squares"]).all()):
            raise DataError(
                f"StandardScaler: {named(name)} has infinite values, or too large ones; remove or repair these rows"
            )
        deviation = np.sqrt(statistics["squares"] / np.maximum(statistics["count"], 1.0))
        # The deviation of a constant is not 0 if its mean was rounded.
        is_constant = deviation <= 10 * np.finfo(np.float64).eps * np.abs(statistics["mean"])
        return {"shift": statistics["mean"], "factor": 1.0 / np.where(is_constant, 1.0, deviation)}


class MinMaxScaler(_Scaler):
    """Maps [minimum, maximum] of each element to `feature_range`. `clip`: other values are clipped to it."""

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        feature_range: tuple[float, float] = (0.0, 1.0),
        clip: bool = False,
    ) -> None:
        super().__init__(columns)
        if not isinstance(feature_range, list | tuple) or len(feature_range) != 2:
            raise ConfigError(f"MinMaxScaler: feature_range must be (low, high), not {feature_range!r}")
        low, high = (real(bound, "MinMaxScaler: a bound of feature_range") for bound in feature_range)
        if not low < high:
            raise ConfigError(f"MinMaxScaler: feature_range must be (low, high) with low < high, not {feature_range}")
        if not isinstance(clip, bool):
            raise ConfigError(f"MinMaxScaler: clip must be True or False, not {clip!r}")
        self.feature_range, self.clip = (low, high), clip

    partial = staticmethod(statistics.extremes)
    merged = staticmethod(statistics.merged_extremes)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "feature_range": list(self.feature_range), "clip": self.clip}

    def learned(self, statistics: Statistics, name: str) -> Statistics:
        low, high = statistics["low"], statistics["high"]
        if (low > high).any():
            raise DataError(f"MinMaxScaler: {named(name)} has an element that is missing in all rows")
        with np.errstate(over="ignore", invalid="ignore"):
            span = high - low
        if not np.isfinite(span).all():
            raise DataError(
                f"MinMaxScaler: {named(name)} has infinite values, or too large ones; remove or repair these rows"
            )
        width = self.feature_range[1] - self.feature_range[0]
        return {"shift": low, "factor": width / np.where(high > low, span, 1.0)}

    def _offset(self) -> float:
        return self.feature_range[0]

    def _clipped(self, x: Array) -> Array:
        return x.clip(*self.feature_range) if self.clip else x

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:
        from outplay.preprocessors.modules import Affine

        bounds = self.feature_range if self.clip else None
        return Affine(space, learned["shift"], learned["factor"], self._offset(), bounds, name)


def _float_type(column: Array) -> Any:
    return np.float64 if column.dtype == np.float64 else np.float32
