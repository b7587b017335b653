"""The debiased exponential moving average."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.curves import smoothed
from outplay.errors import ConfigError


def test_numbers_worked_out_by_hand() -> None:
    # w = 1/2: s = 2, 3.5, 1.75; divided by 1/2, 3/4, 7/8.
    found = smoothed(np.array([4.0, 5.0, 0.0]), 0.5)
    np.testing.assert_allclose(found, [4.0, 14 / 3, 2.0])


def test_no_weight_changes_nothing() -> None:
    assert smoothed(np.array([3.0, 1.0, 2.0]), 0.0).tolist() == [3, 1, 2]


def test_missing_values_are_skipped() -> None:
    found = smoothed(np.array([np.nan, 4.0, np.nan, 5.0, np.inf, 0.0]), 0.5)
    np.testing.assert_allclose(found, [np.nan, 4.0, np.nan, 14 / 3, np.nan, 2.0])


@given(st.floats(-1e6, 1e6), st.floats(0.0, 0.999), st.integers(0, 50))
def test_a_constant_stays_constant(value: float, weight: float, number: int) -> None:
    np.testing.assert_allclose(smoothed(np.full(number, value), weight), value, rtol=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.0, 0.999))
def test_the_average_stays_between_minimum_and_maximum(values: list[float], weight: float) -> None:
    found = smoothed(np.array(values), weight)
    assert found[0] == pytest.approx(values[0])
    assert np.all((found >= min(values) - 1e-3) & (found <= max(values) + 1e-3))


@pytest.mark.parametrize("weight", [-0.1, 1.0, float("nan")])
def test_a_bad_weight_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="smoothing weight"):
        smoothed(np.zeros(3), weight)
