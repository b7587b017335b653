"""Action distributions against numbers worked out by hand and against torch's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay.policies import distribution_for
from tests.policies.test_policies import ACTION_SPACES


def test_a_categorical_by_hand() -> None:
    dist = distribution_for(spaces.Discrete(2))
    params = torch.tensor([[math.log(3.0), 0.0]])  # probabilities 3/4 and 1/4
    assert dist.log_prob(params, torch.tensor([1])).item() == pytest.approx(math.log(0.25))
    assert dist.entropy(params).item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    even = torch.zeros(1, 2)
    assert dist.kl(params, even).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_a_gaussian_by_hand() -> None:
    dist = distribution_for(spaces.Box(-1, 1, (1,)))
    params = torch.tensor([[1.0, math.log(2.0)]])  # mean 1, deviation 2
    expected = -0.5 * ((3.0 - 1.0) / 2.0) ** 2 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    assert dist.log_prob(params, torch.tensor([[3.0]])).item() == pytest.approx(expected)
    assert dist.entropy(params).item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 4))
    standard = torch.tensor([[0.0, 0.0]])
    assert dist.kl(params, standard).item() == pytest.approx(-math.log(2.0) + (4 + 1) / 2 - 0.5)


def torchs_own(name: str, params: torch.Tensor) -> Any:
    if name == "discrete":
        return torch.distributions.Categorical(logits=params)
    if name == "multi-binary":
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=params), 1)
    mean, log_std = params.chunk(2, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("name", ["discrete", "multi-binary", "box"])
def test_distributions_agree_with_torchs(name: str) -> None:
    dist = distribution_for(ACTION_SPACES[name])
    params, other = torch.randn(2, 50, dist.num_params, generator=torch.Generator().manual_seed(0))
    actions = torch.from_numpy(np.asarray(dist.sample(params.numpy(), np.random.default_rng(0))))
    theirs, others = torchs_own(name, params), torchs_own(name, other)
    as_float = actions if name == "discrete" else actions.float()
    assert torch.allclose(dist.log_prob(params, actions), theirs.log_prob(as_float), atol=1e-5)
    assert torch.allclose(dist.entropy(params), theirs.entropy(), atol=1e-5)
    assert torch.allclose(dist.kl(params, other), torch.distributions.kl_divergence(theirs, others), atol=1e-4)


def test_several_choices_are_the_sum_of_each() -> None:
    dist = distribution_for(spaces.MultiDiscrete([2, 3]))
    params = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    first, second = (torchs_own("discrete", part) for part in params.split([2, 3], -1))
    actions = torch.tensor([[1, 2]] * 7)
    assert torch.allclose(
        dist.log_prob(params, actions), first.log_prob(actions[:, 0]) + second.log_prob(actions[:, 1])
    )
    assert torch.allclose(dist.entropy(params), first.entropy() + second.entropy())


@pytest.mark.parametrize("name", ["discrete", "multi-discrete", "multi-binary", "box"])
def test_samples_follow_the_distribution(name: str) -> None:
    """The mean of −log p over samples is the entropy; a wrong sampler does not get there."""
    dist = distribution_for(ACTION_SPACES[name])
    params = torch.randn(1, dist.num_params, generator=torch.Generator().manual_seed(1)).expand(20_000, -1)
    actions = torch.from_numpy(np.asarray(dist.sample(params.numpy(), np.random.default_rng(0))))
    assert -dist.log_prob(params, actions).mean().item() == pytest.approx(dist.entropy(params)[0].item(), abs=0.03)
