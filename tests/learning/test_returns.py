"""Returns and advantages against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.learning.returns import (
    discounted_returns,
    gae,
    lambda_returns,
    next_values,
    standardized,
    standardized_by_episode,
    vtrace,
)

NONE = np.zeros(0, int)


def column(*values: float) -> Any:
    return np.array(values, float)[:, None]


def flags(*values: int) -> Any:
    return np.array(values, bool)[:, None]


def test_what_comes_after_is_the_next_value_and_at_the_end_the_last_one() -> None:
    following = next_values(column(1, 2, 3), np.array([9.0]), flags(0, 0, 0), NONE, NONE, NONE)
    assert following.ravel().tolist() == [2, 3, 9]


def test_nothing_comes_after_a_termination() -> None:
    following = next_values(column(1, 2, 3), np.array([9.0]), flags(0, 1, 0), NONE, NONE, NONE)
    assert following.ravel().tolist() == [2, 0, 9]


def test_after_a_truncation_comes_the_value_of_the_final_observation() -> None:
    """Not that of the next row, which belongs to another episode."""
    following = next_values(
        column(1, 2, 3), np.array([9.0]), flags(0, 0, 0), np.array([7.0]), np.array([1]), np.array([0])
    )
    assert following.ravel().tolist() == [2, 7, 9]


def test_an_end_that_is_both_is_a_termination() -> None:
    following = next_values(column(1, 2), np.array([9.0]), flags(1, 0), np.array([7.0]), np.array([0]), np.array([0]))
    assert following.ravel().tolist() == [0, 9]


def test_discounted_returns_by_hand() -> None:
    # 1 + 0.5·(2 + 0.5·4) = 3, 2 + 0.5·4 = 4, 4; a new episode: 8 + 0.5·16 = 16, 16
    rewards, ended = column(1, 2, 4, 8, 16), flags(0, 0, 1, 0, 0)
    assert discounted_returns(rewards, ended, 0.5).ravel().tolist() == [3, 4, 4, 16, 16]
    # with 10 after the last step: 16 + 5 = 21, 8 + 10.5 = 18.5
    assert discounted_returns(rewards, ended, 0.5, np.array([10.0])).ravel().tolist() == [3, 4, 4, 18.5, 21]


def test_lambda_returns_by_hand() -> None:
    """γ = λ = 0.5. The second step terminates, the fourth is truncated (8 after it), 10 comes after the last."""
    rewards, following, ended = column(1, 2, 3, 4, 5), column(4, 0, 6, 8, 10), flags(0, 1, 0, 1, 0)
    # 1 + ½(½·2 + ½·4) = 2.5; 2; 3 + ½(½·8 + ½·6) = 6.5; 4 + ½·8 = 8; 5 + ½·10 = 10
    assert lambda_returns(rewards, following, ended, 0.5, 0.5).ravel().tolist() == [2.5, 2, 6.5, 8, 10]
    # λ = 0: r + ½V'. λ = 1: the discounted return: 1 + ½·2, 2, 3 + ½·8, 8, 10
    assert lambda_returns(rewards, following, ended, 0.5, 0.0).ravel().tolist() == [3, 2, 6, 8, 10]
    assert lambda_returns(rewards, following, ended, 0.5, 1.0).ravel().tolist() == [2, 2, 7, 8, 10]


def test_lambda_returns_are_advantages_plus_values() -> None:
    rng = np.random.default_rng(0)
    rewards, values, terminated = rng.normal(size=(9, 3)), rng.normal(size=(9, 3)), rng.random((9, 3)) < 0.3
    following = next_values(values, rng.normal(size=3), terminated, NONE, NONE, NONE)
    expected = gae(rewards, values, following, terminated, 0.9, 0.7) + values
    assert lambda_returns(rewards, following, terminated, 0.9, 0.7) == pytest.approx(expected)
    single = [array.astype(np.float32) for array in (rewards, following)]
    assert lambda_returns(*single, terminated, 0.9, 0.7).dtype == np.float32


def test_gae_by_hand() -> None:
    """γ = 0.5, λ = 0.5: δ = (1 + 0.5·4 − 2, 2 + 0.5·0 − 4, 3 + 0.5·6 − 8) = (1, −2, −2), the second step terminates."""
    rewards, values = column(1, 2, 3), column(2, 4, 8)
    terminated, following = flags(0, 1, 0), column(4, 0, 6)
    advantages = gae(rewards, values, following, terminated, 0.5, 0.5)
    # A_2 = −2; A_1 = −2 (nothing is carried over the end); A_0 = 1 + 0.25·(−2) = 0.5
    assert advantages.ravel().tolist() == [0.5, -2, -2]


def test_gae_with_a_truncation_bootstraps_and_carries_nothing_over() -> None:
    """The same with the second step truncated, its final observation worth 10: δ_1 = 2 + 0.5·10 − 4 = 3."""
    rewards, values = column(1, 2, 3), column(2, 4, 8)
    following = next_values(values, np.array([6.0]), flags(0, 0, 0), np.array([10.0]), np.array([1]), np.array([0]))
    advantages = gae(rewards, values, following, flags(0, 1, 0), 0.5, 0.5)
    assert advantages.ravel().tolist() == [1 + 0.25 * 3, 3, -2]


episodes = st.integers(1, 12).flatmap(
    lambda t: st.tuples(
        st.lists(st.floats(-10, 10), min_size=t, max_size=t),
        st.lists(st.floats(-10, 10), min_size=t, max_size=t),
        st.lists(st.sampled_from(["goes on", "terminated", "truncated"]), min_size=t, max_size=t),
        st.floats(-10, 10),
        st.floats(0, 1),
    )
)


@given(episodes)
def test_lambda_1_is_the_return_and_lambda_0_the_one_step_error(case: Any) -> None:
    rewards, values, ends, last, gamma = column(*case[0]), column(*case[1]), case[2], case[3], case[4]
    terminated = flags(*(end == "terminated" for end in ends))
    cut = [t for t, end in enumerate(ends) if end == "truncated"]
    finals = np.array([float(t) for t in cut])
    following = next_values(values, np.array([last]), terminated, finals, np.array(cut, int), np.zeros(len(cut), int))
    ended = flags(*(end != "goes on" for end in ends))

    one_step = gae(rewards, values, following, ended, gamma, 0.0)
    assert np.allclose(one_step, rewards + gamma * following - values)

    # The return by a plain loop, with the value at the end where there is one.
    expected = np.zeros_like(rewards)
    running = last
    for t in reversed(range(len(ends))):
        if ends[t] != "goes on":
            running = 0.0 if ends[t] == "terminated" else float(t)
        running = rewards[t, 0] + gamma * running
        expected[t] = running
    assert np.allclose(gae(rewards, values, following, ended, gamma, 1.0) + values, expected)


def test_vtrace_by_hand() -> None:
    """γ = 0.5, ratios (½, 2, ¼): errors are (1 + ½·4 − 2, 2 + ½·8 − 4, 3 + ½·6 − 8) = (1, 2, −2)."""
    rewards, values, following, ratios = column(1, 2, 3), column(2, 4, 8), column(4, 8, 6), column(0.5, 2, 0.25)
    none = flags(0, 0, 0)
    # δ = (½, 2, −½), since the second ratio is clipped to 1. v − V from the end: −½; 2 + ½·1·(−½); ½ + ½·½·1.75
    targets, advantages = vtrace(rewards, values, following, none, ratios, 0.5)
    assert targets.ravel().tolist() == [2.9375, 5.75, 7.5]
    assert advantages.ravel().tolist() == [1 + 0.5 * 5.75 - 2, 2 + 0.5 * 7.5 - 4, 3 + 0.5 * 6 - 8]
    # ρ̄ = 2: δ_1 = 2·2, so v − V is −½; 4 − ¼; ½ + ¼·3.75. c̄ stays 1.
    targets, _ = vtrace(rewards, values, following, none, ratios, 0.5, rho_bar=2.0)
    assert targets.ravel().tolist() == [2 + 0.5 + 0.25 * 3.75, 4 + 3.75, 7.5]
    # c̄ = 2: 2 + ½·2·(−½) = 1.5; ½ + ¼·1.5
    targets, _ = vtrace(rewards, values, following, none, ratios, 0.5, c_bar=2.0)
    assert targets.ravel().tolist() == [2 + 0.5 + 0.25 * 1.5, 5.5, 7.5]
    # λ = ½: 2 + ¼·(−½) = 1.875; ½ + ¼·½·1.875
    targets, advantages = vtrace(rewards, values, following, none, ratios, 0.5, 0.5)
    assert targets.ravel().tolist() == [2 + 0.5 + 0.125 * 1.875, 5.875, 7.5]
    assert advantages.ravel().tolist() == [1 + 0.25 * 1.875, 2 + 0.25 * -0.5, -2]


def test_vtrace_ends_with_the_episode_and_bootstraps_where_it_was_truncated() -> None:
    rewards, values, ratios = column(1, 2, 3), column(2, 4, 8), column(0.5, 2, 0.25)
    # The second step terminates: its error is 2 − 4. v − V: −½; −2; ½ + ¼·(−2)
    targets, advantages = vtrace(rewards, values, column(4, 0, 6), flags(0, 1, 0), ratios, 0.5)
    assert targets.ravel().tolist() == [2, 2, 7.5]
    assert advantages.ravel().tolist() == [1 + 0.5 * -2, -2, -2]
    # It is truncated, and its final observation is worth 10: 2 + 5 − 4. v − V: −½; 3; ½ + ¼·3
    targets, advantages = vtrace(rewards, values, column(4, 10, 6), flags(0, 1, 0), ratios, 0.5)
    assert targets.ravel().tolist() == [3.25, 7, 7.5]
    assert advantages.ravel().tolist() == [1 + 0.5 * 3, 3, -2]


def test_vtrace_ignores_steps_that_are_not_valid() -> None:
    """Their ratio is 0. An episode ends before them."""
    rewards, values = column(1, 2, 0), column(2, 4, 0)
    targets, _ = vtrace(rewards, values, column(4, 0, 99), flags(0, 1, 0), column(1, 1, 0), 0.5)
    assert targets.ravel().tolist() == [2 + 1 + 0.5 * -2, 2, 0]


@given(episodes, st.floats(0, 1))
def test_vtrace_of_equal_policies_is_gae(case: Any, lambda_: float) -> None:
    rewards, values, following, gamma = column(*case[0]), column(*case[1]), column(*case[0][::-1]), case[4]
    ended = flags(*(end != "goes on" for end in case[2]))
    targets, advantages = vtrace(rewards, values, following, ended, np.ones_like(rewards), gamma, lambda_)
    expected = gae(rewards, values, following, ended, gamma, lambda_)
    assert np.allclose(advantages, expected)
    assert np.allclose(targets, expected + values)


@given(episodes, st.lists(st.floats(0, 4), min_size=12, max_size=12), st.floats(0.5, 3), st.floats(0.5, 3))
def test_vtrace_is_the_sum_of_the_paper(case: Any, ratios: list[float], rho_bar: float, c_bar: float) -> None:
    """Equation 1 of Espeholt et al. (2018) as it is written: a sum over steps of products over steps."""
    rewards, values, following, gamma = case[0], case[1], case[0][::-1], case[4]
    ends, rho = [end != "goes on" for end in case[2]], ratios[: len(rewards)]
    expected = []
    for s in range(len(rewards)):
        total, factor = values[s], 1.0
        for t in range(s, len(rewards)):
            total += factor * min(rho_bar, rho[t]) * (rewards[t] + gamma * following[t] - values[t])
            if ends[t]:
                break
            factor *= gamma * min(c_bar, rho[t])
        expected.append(total)
    columns = (column(*each) for each in (rewards, values, following))
    targets, _ = vtrace(*columns, flags(*ends), column(*rho), gamma, 1.0, rho_bar, c_bar)
    assert np.allclose(targets.ravel(), expected)


def test_lanes_do_not_mix() -> None:
    rng = np.random.default_rng(0)
    rewards, values, following = rng.normal(size=(3, 5, 4))
    ended = rng.random((5, 4)) < 0.3
    together = gae(rewards, values, following, ended, 0.9, 0.8)
    for lane in range(4):
        alone = gae(*(a[:, lane : lane + 1] for a in (rewards, values, following, ended)), 0.9, 0.8)  # type: ignore[arg-type]
        assert np.array_equal(together[:, lane : lane + 1], alone)


def test_standardized_has_mean_0_and_deviation_1() -> None:
    assert standardized(np.array([1.0, 3.0])) == pytest.approx([-1.0, 1.0])
    assert standardized(np.array([2.0, 2.0])) == pytest.approx([0.0, 0.0])


def test_each_episode_is_standardized_by_itself() -> None:
    """Lane 0: an episode of two steps, then one of two; lane 1: one that began earlier, then a lane that waits."""
    values = np.array([[1.0, 2.0], [3.0, 4.0], [10.0, 6.0], [30.0, 99.0]])
    starts = np.array([[True, False], [False, False], [True, False], [False, False]])
    valid = np.array([[True, True], [True, True], [True, True], [True, False]])
    spread = np.sqrt(8 / 3)  # of 2, 4, 6
    expected = [[-1, -2 / spread], [1, 0], [-1, 2 / spread], [1, 0]]
    assert standardized_by_episode(values, starts, valid) == pytest.approx(np.array(expected), abs=1e-6)
