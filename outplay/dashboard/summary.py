"""Summary: all metrics of a run of any length in a bounded number of buckets, each with its minimum and maximum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from outplay.runs.history import Record

Array = np.ndarray

CAPACITY = 2048  # buckets
_MOST_METRICS = 512  # of a run: each needs 64 KB
_SUM, _LOW, _HIGH, _COUNT = range(4)
_EMPTY = (0.0, np.inf, -np.inf, 0.0)
_NOTHING: dict[str, Any] = {}


@dataclass(frozen=True)
class Curve:
    """A metric in B buckets; all arrays (B,)."""

    x: Array  # mean x of the bucket
    mean: Array
    low: Array
    high: Array
    has_band: bool  # some bucket has more than one value
    total: int  # values of the metric in the whole run


class Summary:
    """Lines of metrics.jsonl in at most `capacity` buckets of `size` consecutive lines, for all metrics together.

    When the buckets are full, neighbours are merged, and `size` doubles. So minimum, maximum, mean and count of a
    bucket are exact, and no line is read again when another metric or another x is asked for.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self.size = 1
        self.lines = 0
        self._metrics: dict[str, int] = {}  # name to row
        self._values = np.empty((4, 0, min(capacity, 64)))
        self._offsets = np.zeros(min(capacity, 64), np.int64)  # of each bucket's first line in the file

    @property
    def nbytes(self) -> int:
        return int(self._values.nbytes + self._offsets.nbytes)

    @property
    def metrics(self) -> list[str]:
        return list(self._metrics)

    @property
    def buckets(self) -> int:
        return -(-self.lines // self.size)

    def add(self, columns: Mapping[str, Array], offsets: Sequence[int]) -> None:
        """Add results in their order, as `columns_of` gives them. `offsets`: where their lines begin."""
        for start in range(0, len(offsets), self._capacity):  # not more lines at a time than there are buckets
            part = slice(start, start + self._capacity)
            self._add({name: column[part] for name, column in columns.items()}, np.asarray(offsets[part], np.int64))

    def _add(self, columns: Mapping[str, Array], offsets: Array) -> None:
        number = len(offsets)
        while -(-(self.lines + number) // self.size) > self._capacity:
            self._merge()
        first = self.lines // self.size
        last = -(-(self.lines + number) // self.size)
        self._grow(columns, last)
        at = (self.lines + np.arange(number)) // self.size
        starts = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
        if self.lines % self.size == 0:
            self._offsets[at[starts]] = offsets[starts]
        else:
            self._offsets[at[starts[1:]]] = offsets[starts[1:]]
        rows = [self._metrics[name] for name in columns if name in self._metrics]
        if rows:
            added = np.stack([columns[name] for name in columns if name in self._metrics])
            target = np.ix_(rows, range(first, last))
            is_known = ~np.isnan(added)
            self._values[_SUM][target] += np.add.reduceat(np.where(is_known, added, 0.0), starts, axis=1)
            self._values[_COUNT][target] += np.add.reduceat(is_known.astype(float), starts, axis=1)
            low = np.minimum.reduceat(np.where(is_known, added, np.inf), starts, axis=1)
            high = np.maximum.reduceat(np.where(is_known, added, -np.inf), starts, axis=1)
            self._values[_LOW][target] = np.minimum(self._values[_LOW][target], low)
            self._values[_HIGH][target] = np.maximum(self._values[_HIGH][target], high)
        self.lines += number

    def _grow(self, columns: Mapping[str, Array], buckets: int) -> None:
        """Make room for new metrics and buckets."""
        for name in columns:
            if name not in self._metrics and len(self._metrics) < _MOST_METRICS:
                self._metrics[name] = len(self._metrics)
        _, rows, width = self._values.shape
        if buckets > width:
            width = min(self._capacity, max(buckets, 2 * width))
        if (rows, width) != (len(self._metrics), self._values.shape[2]):
            grown = np.empty((4, len(self._metrics), width))
            for part, empty in enumerate(_EMPTY):
                grown[part] = empty
            grown[:, :rows, : self._values.shape[2]] = self._values
            self._values = grown
            self._offsets = np.concatenate([self._offsets, np.zeros(width - len(self._offsets), np.int64)])

    def _merge(self) -> None:
        """Merge pairs of buckets."""
        self.size *= 2
        used = self.buckets
        even, odd = self._values[..., 0::2], self._values[..., 1::2]
        merged = np.empty_like(self._values)
        for part, empty in enumerate(_EMPTY):
            merged[part] = empty
        pairs = odd.shape[2]
        merged[..., : even.shape[2]] = even
        for part, join in ((_SUM, np.add), (_COUNT, np.add), (_LOW, np.minimum), (_HIGH, np.maximum)):
            merged[part, :, :pairs] = join(even[part, :, :pairs], odd[part])
        self._values = merged
        offsets = np.zeros_like(self._offsets)
        offsets[:used] = self._offsets[0::2][:used]
        self._offsets = offsets

    def curve(self, metric: str, x: str, points: int, low: float = -np.inf, high: float = np.inf) -> Curve:
        """A metric over x in at most `points` buckets, within `low` ≤ x ≤ `high` and one bucket beyond on each side."""
        if metric not in self._metrics or x not in self._metrics:
            empty = np.empty(0)
            return Curve(empty, empty, empty, empty, False, 0)
        used = self.buckets
        values = self._values[:, self._metrics[metric], :used]
        along = self._values[:, self._metrics[x], :used]
        total = int(values[_COUNT].sum())
        kept = np.flatnonzero((values[_COUNT] > 0) & (along[_COUNT] > 0))
        at = along[_SUM, kept] / along[_COUNT, kept]
        if len(at) > 1 and np.any(at[1:] < at[:-1]):
            order = np.argsort(at, kind="stable")
            kept, at = kept[order], at[order]
        start, end = np.searchsorted(at, low, "left"), np.searchsorted(at, high, "right")
        inside = slice(max(0, start - 1), end + 1)
        return _joined(at[inside], values[:, kept[inside]], points, total)

    def span(self, x: str, low: float, high: float) -> tuple[int, int, int] | None:
        """The bytes of the file with all lines of `low` ≤ x ≤ `high`, and the number of lines; None if there are none.

        An end of -1 is the end of the file.
        """
        if x not in self._metrics:
            return None
        used = self.buckets
        along = self._values[:, self._metrics[x], :used]
        is_inside = (along[_COUNT] > 0) & (along[_HIGH] >= low) & (along[_LOW] <= high)
        found = np.flatnonzero(is_inside)
        if not len(found):
            return None
        first, last = max(0, int(found[0]) - 1), min(used, int(found[-1]) + 2)
        end = int(self._offsets[last]) if last < used else -1
        return int(self._offsets[first]), end, (last - first) * self.size


def _joined(at: Array, values: Array, points: int, total: int) -> Curve:
    """Join neighbouring buckets until there are at most `points`."""
    number = len(at)
    if number > points:
        starts = np.arange(points) * number // points
        counts = np.add.reduceat(values[_COUNT], starts)
        weighted = np.add.reduceat(at * values[_COUNT], starts)
        sums = np.add.reduceat(values[_SUM], starts)
        low, high = np.minimum.reduceat(values[_LOW], starts), np.maximum.reduceat(values[_HIGH], starts)
        return Curve(weighted / counts, sums / counts, low, high, True, total)
    counts = values[_COUNT]
    return Curve(at, values[_SUM] / counts, values[_LOW], values[_HIGH], bool(np.any(counts > 1)), total)


def columns_of(results: Sequence[Record]) -> dict[str, Array]:
    """The metrics of results as arrays with NaN for what is missing: {"learner/kl": array}."""
    columns: dict[str, Array] = {}
    _collect(results, "", columns, depth=0)
    return columns


def _collect(rows: Sequence[Mapping[str, Any]], prefix: str, columns: dict[str, Array], depth: int) -> None:
    for name in dict.fromkeys(chain.from_iterable(rows)):
        column = [row.get(name) for row in rows]
        if any(isinstance(value, dict) for value in column):
            if depth < 3:
                inner = [value if isinstance(value, dict) else _NOTHING for value in column]
                _collect(inner, f"{prefix}{name}/", columns, depth + 1)
            continue
        if any(isinstance(value, list) for value in column):
            continue
        if len(columns) < _MOST_METRICS:
            columns[prefix + name] = _array(column)


def _array(column: list[Any]) -> Array:
    try:
        array = np.array(column, np.float64)
    except (ValueError, TypeError, OverflowError):  # text in a damaged file
        numbers = [value if isinstance(value, (int, float)) and abs(value) < 1e300 else None for value in column]
        array = np.array(numbers, np.float64)
    array[~np.isfinite(array)] = np.nan
    return array
