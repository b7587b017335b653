"""Downsampling: numbers worked out by hand, and properties of any series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.curves import Buckets, downsampled
from outplay.errors import ConfigError

VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=80)


def series(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(len(values), dtype=float), np.array(values, float)


def test_a_short_series_is_unchanged() -> None:
    curve = downsampled(np.array([1, 2, 5]), np.array([4, 0, 9]), 3)
    for array in (curve.mean, curve.low, curve.high):
        assert array.tolist() == [4, 0, 9]
    assert curve.x.tolist() == [1, 2, 5]


def test_buckets_have_mean_minimum_and_maximum() -> None:
    # 5 values in 2 buckets: ⌊5/2⌋ = 2 values, then 3.
    x, mean, low, high = downsampled(np.array([0, 2, 4, 6, 11]), np.array([1, 3, 2, 8, 5]), 2)
    assert x.tolist() == [1, 7]
    assert mean.tolist() == [2, 5]
    assert low.tolist() == [1, 2]
    assert high.tolist() == [3, 8]


def test_values_that_are_not_finite_are_left_out() -> None:
    curve = downsampled(np.array([0, 1, np.nan, 3, 4]), np.array([1, np.nan, 7, np.inf, 3]), 1)
    assert [array.tolist() for array in curve] == [[2], [2], [1], [3]]


def test_x_is_sorted() -> None:
    assert downsampled(np.array([3, 1, 2]), np.array([30, 10, 20]), 3).mean.tolist() == [10, 20, 30]


def test_an_empty_series_has_no_bucket() -> None:
    assert all(len(array) == 0 for array in downsampled(np.empty(0), np.empty(0), 5))
    assert all(len(array) == 0 for array in Buckets().curve(5, 0.0, 1.0))


@given(VALUES, st.integers(1, 30))
def test_minimum_maximum_and_mean_are_kept(values: list[float], points: int) -> None:
    x, y = series(values)
    known = y[np.isfinite(y)]
    curve = downsampled(x, y, points)
    assert len(curve.x) == min(points, len(known))
    assert np.all(np.diff(curve.x) > 0)
    assert np.all((curve.low <= curve.mean) & (curve.mean <= curve.high))
    if len(known):
        assert curve.low.min() == known.min()
        assert curve.high.max() == known.max()


@given(VALUES, st.integers(1, 20), st.lists(st.integers(0, 80), max_size=8))
def test_buckets_do_not_depend_on_how_the_values_arrive(values: list[float], capacity: int, cuts: list[int]) -> None:
    x, y = series(values)
    whole, parts = Buckets(capacity), Buckets(capacity)
    whole.add(x, y)
    for some_x, some_y in zip(np.split(x, sorted(cuts)), np.split(y, sorted(cuts)), strict=True):
        parts.add(some_x, some_y)
    assert (parts.size, parts.total, len(parts)) == (whole.size, whole.total, len(whole))
    assert parts.counts.tolist() == whole.counts.tolist()
    for name in ("low", "high"):
        assert getattr(parts.curve(), name).tolist() == getattr(whole.curve(), name).tolist()
    np.testing.assert_allclose(parts.curve().mean, whole.curve().mean, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(parts.curve().x, whole.curve().x)


@given(VALUES, st.integers(1, 20))
def test_buckets_are_those_of_all_values(values: list[float], capacity: int) -> None:
    x, y = series(values)
    buckets = Buckets(capacity)
    for one_x, one_y in zip(x, y, strict=True):
        buckets.add(np.array([one_x]), np.array([one_y]))
    known = y[np.isfinite(y)]
    assert len(buckets) <= capacity
    assert buckets.total == len(known) == buckets.counts.sum()
    curve = buckets.curve()
    for i in range(len(buckets)):
        inside = known[i * buckets.size : (i + 1) * buckets.size]
        assert (curve.low[i], curve.high[i], buckets.counts[i]) == (inside.min(), inside.max(), len(inside))
        assert curve.mean[i] == pytest.approx(inside.mean(), abs=1e-6)


def test_memory_is_bounded() -> None:
    buckets = Buckets(capacity=1000)
    buckets.add(np.arange(3.0), np.ones(3))
    assert buckets.nbytes < 2000
    for start in range(0, 1_000_000, 50_000):
        buckets.add(np.arange(start, start + 50_000, dtype=float), np.ones(50_000))
    assert len(buckets) <= 1000
    assert buckets.nbytes <= 7 * 8 * 1000
    assert buckets.total == 1_000_003
    assert len(buckets.curve(300).x) == 300


def test_a_window_has_a_bucket_beyond_each_end() -> None:
    buckets = Buckets()
    buckets.add(np.arange(10.0), np.arange(10.0))
    assert buckets.curve(start=3, end=5).mean.tolist() == [2, 3, 4, 5, 6]
    assert buckets.curve(start=3.5, end=3.6).mean.tolist() == [3, 4]
    assert buckets.curve(start=8).mean.tolist() == [7, 8, 9]
    assert buckets.curve(end=1).mean.tolist() == [0, 1, 2]
    assert buckets.curve(start=20, end=30).mean.tolist() == [9]
    assert buckets.curve(1, start=4, end=7).mean.tolist() == [3, 5.5, 8]


def test_what_a_curve_returned_does_not_change() -> None:
    buckets = Buckets(2)
    buckets.add(np.arange(2.0), np.arange(2.0))
    curve = buckets.curve()
    buckets.add(np.arange(2.0, 9.0), np.arange(2.0, 9.0))
    assert curve.low.tolist() == [0, 1]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="points must be at least 1, not 0"):
        downsampled(np.zeros(1), np.zeros(1), 0)
    with pytest.raises(ConfigError, match="the same length"):
        downsampled(np.zeros(2), np.zeros(1), 5)
    with pytest.raises(ConfigError, match="capacity must be at least 1"):
        Buckets(0)
    with pytest.raises(ConfigError, match="points"):
        Buckets().curve(0)
