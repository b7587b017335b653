"""Downsampling of series that keeps minima and maxima: in one call, or while values arrive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from outplay.errors import ConfigError

Array = np.ndarray

_X, _Y, _LOW, _HIGH, _COUNT, _START, _END = range(7)  # rows: sums of x and y, min y, max y, count, min x, max x
_ADDED = (_X, _Y, _COUNT)
_MINIMA, _MAXIMA = (_LOW, _START), (_HIGH, _END)
_FIRST_SIZE = 16  # allocated buckets of a new series


class Curve(NamedTuple):
    """A series in B buckets of consecutive values; all arrays (B,)."""

    x: Array  # mean x of the bucket's values
    mean: Array
    low: Array  # minimum of the bucket
    high: Array  # maximum of the bucket


def downsampled(x: Array, y: Array, points: int) -> Curve:
    """A series of N values in at most `points` buckets: (x, mean, low, high).

    Bucket b has the values ⌊bN/B⌋ … ⌊(b+1)N/B⌋ - 1 in the order of x, with B = min(N, `points`), so the sizes differ by
    one at most. The minimum and the maximum of the series are kept, since each is the `low` or `high` of its bucket.
    Pairs whose x or y is not finite are left out.

    >>> downsampled(np.array([0, 1, 2, 3]), np.array([5.0, 7.0, 0.0, 2.0]), 2)
    Curve(x=array([0.5, 2.5]), mean=array([6., 1.]), low=array([5., 0.]), high=array([7., 2.]))
    """
    _check(points, "points")
    x, y = _finite(x, y)
    if np.any(x[1:] < x[:-1]):
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    return _curve(_joined(_single(x, y), points))


class Buckets:
    """A series of any length in at most `capacity` buckets. Values are added as they arrive, in the order of x.

    Each bucket has `size` consecutive values, the last one possibly fewer. When there are too many buckets, neighbours
    are merged, and `size` doubles. So buckets do not depend on how the values were split between calls, and minimum,
    maximum, mean and count of each are exact. Pairs whose x or y is not finite are left out.

    >>> buckets = Buckets(capacity=2)
    >>> buckets.add(np.array([0, 1, 2]), np.array([5.0, 7.0, 0.0]))
    >>> buckets.size, buckets.total, buckets.curve()
    (2, 3, Curve(x=array([0.5, 2. ]), mean=array([6., 0.]), low=array([5., 0.]), high=array([7., 0.])))
    """

    def __init__(self, capacity: int = 4096) -> None:
        _check(capacity, "capacity")
        self.capacity = capacity
        self.size = 1  # values per bucket: a power of 2
        self.total = 0  # values
        self._used = 0
        self._rows = np.empty((7, min(capacity, _FIRST_SIZE)))

    def __len__(self) -> int:
        """Buckets in use."""
        return self._used

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes."""
        return int(self._rows.nbytes)

    @property
    def counts(self) -> Array:
        """Values of each bucket (B,)."""
        return self._rows[_COUNT, : self._used].astype(np.int64)

    def add(self, x: Array, y: Array) -> None:
        """Add values, which come after all earlier ones. Two arrays (N,)."""
        x, y = _finite(x, y)
        if not len(x):
            return
        while -(-(self.total + len(x)) // self.size) > self.capacity:
            self.size *= 2
            merged = _reduced(self._rows[:, : self._used], np.arange(0, self._used, 2))
            self._used = merged.shape[1]
            self._rows[:, : self._used] = merged
        numbers = (self.total + np.arange(len(x))) // self.size  # of each value's bucket
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        new = _reduced(_single(x, y), starts)
        first, end = int(numbers[0]), int(numbers[-1]) + 1
        if first < self._used:  # the last bucket has room
            new[:, :1] = _reduced(np.stack([self._rows[:, first], new[:, 0]], axis=1), np.zeros(1, np.intp))
        self._reserve(end)
        self._rows[:, first:end] = new
        self._used = end
        self.total += len(x)

    def _reserve(self, number: int) -> None:
        if number > (allocated := self._rows.shape[1]):
            grown = np.empty((7, min(self.capacity, max(number, 2 * allocated))))
            grown[:, : self._used] = self._rows[:, : self._used]
            self._rows = grown

    def curve(self, points: int | None = None, start: float | None = None, end: float | None = None) -> Curve:
        """The series in at most `points` buckets (default: all), between two values of x if they are given.

        With `start` or `end`, the next bucket beyond each is included, so that a line crosses the edge of a chart.
        These two are additional to `points`.
        """
        if points is not None:
            _check(points, "points")
        rows = self._rows[:, : self._used]
        first = 0 if start is None else int(np.searchsorted(rows[_END], start, side="left"))
        after = self._used if end is None else int(np.searchsorted(rows[_START], end, side="right"))
        after = max(first, after)
        parts = [rows[:, max(0, first - 1) : first], _joined(rows[:, first:after], points), rows[:, after : after + 1]]
        return _curve(np.concatenate(parts, axis=1))


def _check(number: int, name: str) -> None:
    if number < 1:
        raise ConfigError(f"{name} must be at least 1, not {number}")


def _finite(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ConfigError(f"x and y must be arrays of one dimension and the same length, not {x.shape} and {y.shape}")
    is_finite = np.isfinite(x) & np.isfinite(y)
    return (x, y) if is_finite.all() else (x[is_finite], y[is_finite])


def _single(x: Array, y: Array) -> Array:
    """Buckets (7, N) of one value each."""
    return np.stack([x, y, y, y, np.ones_like(x), x, x])


def _reduced(rows: Array, starts: Array) -> Array:
    """Buckets (7, B) merged into (7, S), each from one of S `starts` to the next."""
    merged = np.empty((7, len(starts)))
    if len(starts):
        merged[_ADDED, :] = np.add.reduceat(rows[_ADDED, :], starts, axis=1)
        merged[_MINIMA, :] = np.minimum.reduceat(rows[_MINIMA, :], starts, axis=1)
        merged[_MAXIMA, :] = np.maximum.reduceat(rows[_MAXIMA, :], starts, axis=1)
    return merged


def _joined(rows: Array, points: int | None) -> Array:
    """Buckets (7, B) merged to at most `points`."""
    number = rows.shape[1]
    if points is None or number <= points:
        return rows
    return _reduced(rows, np.arange(points) * number // points)


def _curve(rows: Array) -> Curve:
    count = rows[_COUNT]
    # The mean of equal values can be rounded to just outside of them.
    mean = np.clip(rows[_Y] / count, rows[_LOW], rows[_HIGH])
    return Curve(np.clip(rows[_X] / count, rows[_START], rows[_END]), mean, rows[_LOW].copy(), rows[_HIGH].copy())
