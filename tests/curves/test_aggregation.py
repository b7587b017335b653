"""The inter-quartile mean and its band: numbers worked out by hand, scipy, and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.curves import aggregated, bootstrap_band, iqm
from outplay.errors import ConfigError

NUMBERS = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 2.0], 1.5),
        ([0.0, 3.0, 9.0], (0.25 * 0 + 1 * 3 + 0.25 * 9) / 1.5),  # the middle half is [0.75, 2.25]
        ([100.0, 1.0, 4.0, 2.0], 3.0),
        ([0.0, 1.0, 2.0, 6.0, 9.0], (0.75 * 1 + 1 * 2 + 0.75 * 6) / 2.5),  # [1.25, 3.75]
        ([0.0, 1.0, 2.0, 4.0, 7.0, 9.0], (0.5 * 1 + 2 + 4 + 0.5 * 7) / 3),  # [1.5, 4.5]
    ],
)
def test_iqm_worked_out_by_hand(values: list[float], expected: float) -> None:
    assert float(iqm(np.array(values))) == pytest.approx(expected)


@pytest.mark.parametrize("number", [4, 8, 12, 40])
def test_iqm_is_the_trimmed_mean_for_multiples_of_4(number: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(number).normal(size=(number, 7))
    np.testing.assert_allclose(iqm(values, axis=0), stats.trim_mean(values, 0.25, axis=0))
    np.testing.assert_allclose(iqm(values), stats.trim_mean(values.ravel(), 0.25))


@given(st.lists(NUMBERS, min_size=1, max_size=30), st.randoms())
def test_iqm_does_not_depend_on_order_or_copies(values: list[float], random: object) -> None:
    expected = float(iqm(np.array(values)))
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert float(iqm(np.array(shuffled))) == pytest.approx(expected, abs=1e-6)
    assert float(iqm(np.array(values * 4))) == pytest.approx(expected, abs=1e-6)
    assert min(values) - 1e-6 <= expected <= max(values) + 1e-6


def test_iqm_leaves_nan_out() -> None:
    nan = np.nan
    values = np.array([[1.0, nan, nan], [2.0, 7.0, nan], [4.0, nan, nan], [100.0, nan, nan]])
    np.testing.assert_allclose(iqm(values, axis=0), [3.0, 7.0, nan])
    assert iqm(values.T[:, :, None], axis=1).shape == (3, 1)
    assert np.isnan(iqm(np.empty(0)))


def test_the_band_of_two_runs_is_worked_out_by_hand() -> None:
    # Draws of 2 of the runs 0 and 10 have the IQMs 0, 5, 5, 10 with equal probability: at 40 %, the 30 % and 70 %
    # quantiles are both 5; at 95 %, 0 and 10.
    values = np.array([[0.0], [10.0]])
    assert [array.tolist() for array in bootstrap_band(values, level=0.4)] == [[5], [5]]
    assert [array.tolist() for array in bootstrap_band(values)] == [[0], [10]]


def test_the_band_covers_the_mean_about_as_often_as_its_level_says() -> None:
    random = np.random.default_rng(0)
    low, high = bootstrap_band(random.normal(size=(30, 400)), level=0.9)
    assert 0.82 < np.mean((low <= 0) & (high >= 0)) < 0.95


def test_runs_are_drawn_within_their_strata() -> None:
    values = np.array([0.0, 0.0, 10.0, 10.0])
    low, high = bootstrap_band(values, strata=["easy", "easy", "hard", "hard"])
    assert (float(low), float(high)) == (5.0, 5.0)
    low, high = bootstrap_band(values)
    assert float(low) < 5 < float(high)


def test_the_band_depends_on_the_seed_alone() -> None:
    values = np.random.default_rng(0).normal(size=(12, 5))
    one, two = bootstrap_band(values, seed=3), bootstrap_band(values, seed=3)
    assert [array.tolist() for array in one] == [array.tolist() for array in two]
    assert one[0].tolist() != bootstrap_band(values, seed=4)[0].tolist()


def test_large_arrays_are_resampled_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(5, 23))
    expected = bootstrap_band(values)
    monkeypatch.setattr("outplay.curves.aggregation._BLOCK", 5000)
    assert [array.tolist() for array in bootstrap_band(values)] == [array.tolist() for array in expected]


def test_a_band_without_values_is_nan() -> None:
    low, high = bootstrap_band(np.array([[np.nan, 1.0], [np.nan, np.nan]]))
    np.testing.assert_array_equal(low, [np.nan, 1.0])
    np.testing.assert_array_equal(high, [np.nan, 1.0])


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_iqm_of_the_runs_is_in_the_range_of_the_band(runs: list[list[float]]) -> None:
    values = np.array(runs)
    low, high = bootstrap_band(values, samples=200)
    assert np.all((values.min(axis=0) - 1e-6 <= low) & (low <= high) & (high <= values.max(axis=0) + 1e-6))


def test_curves_are_interpolated_where_every_run_has_data() -> None:
    one = np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])
    two = np.array([1.0, 3.0, 5.0]), np.array([3.0, 5.0, 7.0])  # 2 + x
    band = aggregated([one, two], points=3)
    assert band.x.tolist() == [1.0, 4.0]  # each run has two x in [1, 4]
    assert band.iqm.tolist() == [2.0, 5.0]
    assert band.low.tolist() == [1.0, 4.0]
    assert band.high.tolist() == [3.0, 6.0]


def test_common_x_are_kept() -> None:
    x = np.array([1.0, 2.0, 10.0])
    band = aggregated([(x, np.zeros(3)), (np.array([1.0, 2.0, 10.0, 20.0]), np.ones(4))])
    assert band.x.tolist() == [1, 2, 10]
    assert band.iqm.tolist() == [0.5, 0.5, 0.5]


def test_missing_values_are_bridged_and_duplicates_averaged() -> None:
    band = aggregated([(np.array([0, 1, 2, 2]), np.array([0, np.nan, 2, 4])), (np.array([0, 1, 2]), np.zeros(3))])
    assert band.x.tolist() == [0, 1, 2]
    assert band.iqm.tolist() == [0, 0.75, 1.5]  # of 0, 1.5, 3 and 0


def test_one_run_is_its_own_band() -> None:
    x, y = np.arange(3.0), np.array([1.0, 5.0, 2.0])
    band = aggregated([(x, y)])
    assert [array.tolist() for array in band] == [x.tolist(), y.tolist(), y.tolist(), y.tolist()]


def test_long_runs_are_averaged_in_buckets() -> None:
    x = np.arange(10_000.0)
    y = np.where(np.arange(10_000) % 2 == 0, 0.0, 2.0)
    band = aggregated([(x, y), (x, y)], points=100)
    assert len(band.x) == 100
    np.testing.assert_allclose(band.iqm, 1.0)


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [(np.empty(0), np.empty(0)), (np.arange(2.0), np.arange(2.0))],
        [(np.array([0.0, 1.0]), np.zeros(2)), (np.array([2.0, 3.0]), np.zeros(2))],
    ],
)
def test_without_a_common_x_the_band_is_empty(curves: list[tuple[np.ndarray, np.ndarray]]) -> None:
    assert all(len(array) == 0 for array in aggregated(curves))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        bootstrap_band(np.empty((0, 3)))
    with pytest.raises(ConfigError, match="level of a band"):
        bootstrap_band(np.zeros((2, 3)), level=95)
    with pytest.raises(ConfigError, match="samples"):
        bootstrap_band(np.zeros((2, 3)), samples=0)
    with pytest.raises(ConfigError, match="label for each of the 2 runs, not 1 labels"):
        bootstrap_band(np.zeros((2, 3)), strata=["one"])
