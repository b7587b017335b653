"""Losses of offline algorithms, on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from outplay.learning.offlinelosses import discrete_gap, expectile_loss, exponential_weights, sampled_gap
from outplay.learning.returns import episode_returns
from outplay.policies.squashed import SquashedGaussian


def test_weights_are_exponential_up_to_a_limit_and_have_no_gradient() -> None:
    advantages = torch.tensor([-1.0, 0.0, 2.0, 50.0], requires_grad=True)
    weights = exponential_weights(advantages, 0.5, 20.0)
    assert weights.tolist() == pytest.approx([math.exp(-0.5), 1.0, math.e, 20.0])
    assert not weights.requires_grad
    assert exponential_weights(advantages, 0.0, 20.0).tolist() == [1.0] * 4


def test_the_expectile_is_where_the_loss_is_least() -> None:
    """Of 0 and 1 with τ = 0.8: τ (1 − v) = (1 − τ) v, so v = 0.8."""
    targets = torch.tensor([0.0, 1.0])
    candidates = torch.linspace(0, 1, 101)
    losses = torch.stack([expectile_loss(targets - v, 0.8).sum() for v in candidates])
    assert float(candidates[losses.argmin()]) == pytest.approx(0.8)


def test_the_gap_of_discrete_actions_is_a_log_sum_exp() -> None:
    values = torch.tensor([[[1.0, 3.0]]])
    taken = torch.tensor([[1.0]])
    assert float(discrete_gap(values, taken, 1.0)) == pytest.approx(math.log(math.e + math.e**3) - 1)
    assert float(discrete_gap(values, taken, 2.0)) == pytest.approx(2 * math.log(math.e**0.5 + math.e**1.5) - 1)
    only_first = torch.tensor([[True, False]])
    assert float(discrete_gap(values, taken, 1.0, only_first)) == pytest.approx(0.0)


def test_the_gap_of_samples_estimates_an_integral() -> None:
    """Q(a) = a on [−1, 1]: ∫ exp(a) da = e − 1/e. Uniform samples have the density ½."""
    actions = torch.linspace(-1, 1, 20_001)
    gap = sampled_gap(actions[None, None], torch.full((1, 20_001), math.log(0.5)), torch.tensor([[0.25]]), 1.0)
    assert float(gap) == pytest.approx(math.log(math.e - 1 / math.e) - 0.25, abs=1e-3)


def test_returns_of_episodes_whose_rows_are_mixed() -> None:
    """Episode 4: rewards 1, 2, 4, terminated. Episode 2: rewards 8, 16, not ended."""
    rewards = np.array([4.0, 8.0, 1.0, 16.0, 2.0])
    episodes, steps = np.array([4, 2, 4, 2, 4]), np.array([2, 5, 0, 6, 1])
    terminated = np.array([True, False, False, False, False])
    found, discounts, last = episode_returns(rewards, episodes, steps, terminated, 0.5)
    assert found.tolist() == [4.0, 16.0, 3.0, 16.0, 4.0]
    assert discounts.tolist() == [0.0, 0.25, 0.0, 0.5, 0.0]
    assert last.tolist() == [0, 3, 0, 3, 0]


def test_a_squashed_gaussian_gives_its_samples_their_log_probabilities() -> None:
    distribution = SquashedGaussian(2)
    params = torch.tensor([[0.3, -0.2, -0.5, 0.1]])
    actions, expected = distribution.reparametrized(params, torch.tensor([[0.4, -1.1]]))
    assert distribution.log_prob(params, actions).item() == pytest.approx(expected.item(), abs=1e-4)
    grid = torch.linspace(-0.9985, 0.9985, 40_001)[:, None]
    density = SquashedGaussian(1).log_prob(torch.tensor([[0.2, -1.0]]).expand(len(grid), -1), grid).exp()
    assert float(torch.trapezoid(density, grid[:, 0])) == pytest.approx(1.0, abs=1e-2)
    assert torch.isfinite(distribution.log_prob(params, torch.tensor([[1.0, -1.0]]))).all()
