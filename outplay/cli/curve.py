"""The learning curve as text: several rows of block characters, with a scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outplay.formatting import number

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LEVELS = len(_BLOCKS) - 1  # per row
_MOST_POINTS = 1000


@dataclass
class _Point:
    """The mean of consecutive values."""

    x: float  # of the last value
    total: float
    count: int

    @property
    def mean(self) -> float:
        return self.total / self.count


class Curve:
    """A curve of any number of values. At most 1,000 points are kept: neighbours are merged when there are more.

    >>> curve = Curve()
    >>> for x, y in ((100, 0.0), (200, 5.0), (300, 10.0)):
    ...     curve.add(x, y)
    >>> print("\\n".join(curve.lines(24, 2)))
    10.0 ┤      ▁▁▁▁▁▁██████
     0.0 ┤▁▁▁▁▁▁████████████
         └0 ────── 300 steps
    """

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._per_point = 1  # values

    def __len__(self) -> int:
        return len(self._points)

    def add(self, x: float, y: float) -> None:
        points = self._points
        if points and points[-1].count < self._per_point:
            points[-1] = _Point(x, points[-1].total + y, points[-1].count + 1)
        else:
            points.append(_Point(x, y, 1))
        if len(points) > _MOST_POINTS:
            pairs = zip(points[::2], [*points[1::2], None], strict=False)
            self._points = [_merged(one, other) for one, other in pairs]
            self._per_point *= 2

    def lines(self, width: int, height: int) -> list[str]:
        """The curve in `height` rows and an axis, at most `width` characters wide. Empty if there is no room."""
        points = list(self._points)
        if not points or height < 1:
            return []
        means = [point.mean for point in points]
        low, high = min(means), max(means)
        margin = max(len(number(low)), len(number(high)))
        columns = _columns(points, width - margin - 2)
        if not columns:
            return []
        rows = _rows(columns, low, high, height)
        labels = [number(high), *[""] * (height - 2), number(low)][:height]
        lines = [f"{label:>{margin}} {'┤' if label else '│'}{row}" for label, row in zip(labels, rows, strict=True)]
        return [*lines, " " * (margin + 1) + _axis(_start(points), points[-1].x, len(columns))]


def _merged(one: _Point, other: _Point | None) -> _Point:
    return one if other is None else _Point(other.x, one.total + other.total, one.count + other.count)


def _start(points: list[_Point]) -> float:
    """Where the first point begins: one interval before it."""
    first, last = points[0].x, points[-1].x
    return max(0.0, first - (last - first) / (len(points) - 1)) if len(points) > 1 else 0.0


def _columns(points: list[_Point], width: int) -> list[float]:
    """The mean of the points in each of `width` equal intervals; the value after where an interval has no point."""
    if width < 1:
        return []
    start = _start(points)
    span = (points[-1].x - start) or 1.0
    bins: list[list[float]] = [[] for _ in range(width)]
    for point in points:
        bins[max(0, math.ceil((point.x - start) / span * width) - 1)].append(point.mean)
    columns: list[float] = []
    for values in reversed(bins):  # the last is not empty
        columns.append(sum(values) / len(values) if values else columns[-1])
    return columns[::-1]


def _rows(columns: list[float], low: float, high: float, height: int) -> list[str]:
    span, most = high - low, height * _LEVELS
    levels = [1 + round((value - low) / span * (most - 1)) if span else most // 2 for value in columns]
    return [
        "".join(_BLOCKS[min(_LEVELS, max(0, level - row * _LEVELS))] for level in levels)
        for row in reversed(range(height))
    ]


def _axis(first: float, last: float, width: int) -> str:
    """The axis in steps, as wide as the curve."""
    left, right = f"{first:,.0f} ", f" {last:,.0f} steps"
    room = width - len(left) - len(right)
    if room < 1:
        return "└" + right[1 : width + 1]
    return f"└{left}{'─' * room}{right}"
