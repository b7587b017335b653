"""Importance sampling on numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outplay.learning.importance import (
    cumulative_ratios,
    effective_sample_size,
    first_unsupported_step,
    importance_sampling,
    padded,
    weighted_importance_sampling,
)


def two_steps() -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """All episodes of a two-step MDP under a uniform policy μ, and the value of π(1) = 0.9.

    The reward is the action in step 0, and 2 · both actions' product in step 1: V = 0.9 + γ · 2 · 0.9².
    """
    episodes = list(itertools.product([0, 1], repeat=2))
    rewards = np.array([[a, 2.0 * a * b] for a, b in episodes])
    target = {0: 0.1, 1: 0.9}
    log_ratios = np.log([[target[a] / 0.5, target[b] / 0.5] for a, b in episodes])
    return rewards, log_ratios, np.full(4, 0.25), 0.9 + 0.5 * 2 * 0.81


def test_ordinary_importance_sampling_has_no_bias() -> None:
    rewards, log_ratios, chances, value = two_steps()
    assert (importance_sampling(rewards, log_ratios, 0.5) * chances).sum() == pytest.approx(value)


def test_weighted_importance_sampling_is_exact_where_all_episodes_are_there() -> None:
    rewards, log_ratios, _, value = two_steps()
    assert weighted_importance_sampling(rewards, log_ratios, 0.5).mean() == pytest.approx(value)


def test_weighted_estimates_stay_within_the_rewards() -> None:
    """With few episodes, ordinary importance sampling may exceed the largest return; weighted may not."""
    rewards, log_ratios = np.ones((3, 1)), np.log([[4.0], [0.5], [3.0]])
    assert importance_sampling(rewards, log_ratios, 1.0).mean() == pytest.approx(2.5)
    assert weighted_importance_sampling(rewards, log_ratios, 1.0).mean() == pytest.approx(1.0)


def test_equal_policies_give_the_mean_return() -> None:
    rewards = np.array([[1.0, 2.0], [3.0, 0.0]])
    for method in (importance_sampling, weighted_importance_sampling):
        assert method(rewards, np.zeros((2, 2)), 0.5).tolist() == [2.0, 3.0]


def test_ratios_multiply_and_rows_are_padded() -> None:
    table = padded(np.log([2.0, 3.0, 5.0]), np.array([7, 9, 7]), np.array([0, 0, 1]))
    np.testing.assert_allclose(cumulative_ratios(table), [[2.0, 10.0], [3.0, 3.0]])


@pytest.mark.filterwarnings("error")
def test_impossible_episodes_have_no_weight() -> None:
    rewards = np.array([[5.0, 5.0], [1.0, 1.0], [2.0, 2.0]])
    never = -np.inf
    some = np.array([[never, 0.0], [0.0, never], [0.0, 0.0]])
    assert weighted_importance_sampling(rewards, some, 1.0).tolist() == [0.0, 1.5, 9.0]
    assert importance_sampling(rewards, some, 1.0).tolist() == [0.0, 1.0, 4.0]
    assert first_unsupported_step(some) is None
    assert effective_sample_size(some) == 1.0
    none = np.array([[never, 0.0], [0.0, never], [0.0, never]])
    assert weighted_importance_sampling(rewards, none, 1.0).tolist() == [0.0, 1.5, 3.0]
    assert first_unsupported_step(none) == 1
    assert effective_sample_size(none) == 0.0
