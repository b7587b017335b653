"""Masked distributions against numbers worked out by hand; and the losses and Q-values of masked actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay.policies import Policy, PolicySpec, QPolicy, distribution_for, masked
from outplay.policies.distributions import masked_array

# Of three actions with probabilities 1/6, 2/6 and 3/6 the second is forbidden: 1/4 and 3/4 are left.
LOGITS = torch.log(torch.tensor([[1.0, 2.0, 3.0]]))
MASK = torch.tensor([[True, False, True]])


def test_a_masked_categorical_by_hand() -> None:
    dist, params = distribution_for(spaces.Discrete(3)), masked(LOGITS, MASK)
    assert dist.log_prob(params, torch.tensor([0])).item() == pytest.approx(math.log(1 / 4))
    assert dist.log_prob(params, torch.tensor([2])).item() == pytest.approx(math.log(3 / 4))
    assert dist.log_prob(params, torch.tensor([1])).exp().item() == 0.0
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert dist.entropy(params).item() == pytest.approx(entropy)
    even = masked(torch.zeros(1, 3), MASK)  # 1/2 and 1/2
    assert dist.kl(params, even).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert dist.kl(params, params).item() == 0.0
    assert dist.mode(masked(torch.tensor([[0.0, 9.0, 1.0]]), MASK).numpy()).tolist() == [2]


def test_masked_parts_by_hand() -> None:
    """Parts of 3 and 2 choices: (1/4, 0, 3/4), and the second choice alone."""
    dist = distribution_for(spaces.MultiDiscrete([3, 2]))
    mask = torch.tensor([[True, False, True, False, True]])
    params = masked(torch.cat([LOGITS, torch.tensor([[5.0, 0.0]])], -1), mask)
    assert dist.log_prob(params, torch.tensor([[0, 1]])).item() == pytest.approx(math.log(1 / 4))
    assert dist.entropy(params).item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    even = masked(torch.zeros(1, 5), mask)
    assert dist.kl(params, even).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert dist.mode(params.numpy()).tolist() == [[2, 1]]


@pytest.mark.parametrize("only", [0, 1, 2])
def test_where_one_action_is_left_it_is_certain(only: int) -> None:
    dist = distribution_for(spaces.Discrete(3))
    mask = torch.arange(3)[None] == only
    params = masked(LOGITS, mask)
    assert dist.log_prob(params, torch.tensor([only])).item() == 0.0
    assert dist.entropy(params).item() == 0.0
    assert dist.kl(params, masked(LOGITS.flip(-1), mask)).item() == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_are_finite_and_leave_forbidden_logits_alone(scale: float) -> None:
    dist = distribution_for(spaces.Discrete(3))
    logits = (LOGITS * scale).requires_grad_()
    params = masked(logits, MASK)
    old = masked(torch.zeros(1, 3), MASK)
    loss = dist.log_prob(params, torch.tensor([2])) + dist.entropy(params) + dist.kl(old, params)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0.0
    plain = (LOGITS[:, [0, 2]] * scale).requires_grad_()  # the same among two actions, of which all are allowed
    two = distribution_for(spaces.Discrete(2))
    loss = two.log_prob(plain, torch.tensor([1])) + two.entropy(plain) + two.kl(torch.zeros(1, 2), plain)
    assert torch.allclose(gradient[:, [0, 2]], torch.autograd.grad(loss.sum(), plain)[0])


def test_samples_follow_the_allowed_actions() -> None:
    dist = distribution_for(spaces.Discrete(3))
    params = masked_array(LOGITS.expand(20_000, -1).numpy(), MASK.numpy())
    counts = np.bincount(dist.sample(params, np.random.default_rng(0)), minlength=3) / 20_000
    assert counts[1] == 0.0
    assert counts[[0, 2]] == pytest.approx([0.25, 0.75], abs=0.01)


def act(policy: Policy, mask: Any, explore: bool, seed: int = 0, rows: int = 3) -> np.ndarray:
    observations = (np.linspace(-1, 1, 2 * rows, dtype=np.float32).reshape(rows, 2),)
    mask = None if mask is None else np.tile(np.asarray(mask, bool), (rows, 1))
    actions: np.ndarray = policy.act(observations, {}, mask, explore, np.random.default_rng(seed))[0]
    return actions


@pytest.mark.parametrize("kind", [Policy, QPolicy])
@pytest.mark.parametrize("rows", [3, 9])  # in numpy, in torch
def test_policies_take_allowed_actions_only(kind: type[Policy], rows: int) -> None:
    policy = kind(PolicySpec(spaces.Box(-1, 1, (2,)), spaces.Discrete(4)))
    policy.load(policy.random_weights(1))
    for mask in ([1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]):
        seen = {int(a) for seed in range(60) for a in act(policy, mask, True, seed, rows)}
        assert seen == set(np.flatnonzero(mask).tolist())
        assert set(act(policy, mask, False, rows=rows).tolist()) <= seen
    everything = act(policy, [1, 1, 1, 1], False, rows=rows)
    assert np.array_equal(everything, act(policy, None, False, rows=rows))


def test_the_greedy_action_is_the_best_allowed_one() -> None:
    policy = QPolicy(PolicySpec(spaces.Box(-1, 1, (2,)), spaces.Discrete(4)))
    weights = policy.get_weights()
    policy.set_weights(
        {**{n: 0 * w for n, w in weights.items()}, "advantage_head.bias": np.array([1.0, 4.0, 3.0, 2.0])}
    )
    assert set(act(policy, None, False)) == {1}
    assert set(act(policy, [1, 0, 1, 1], False)) == {2}
    assert set(act(policy, [1, 0, 0, 1], False)) == {3}


def test_random_actions_are_uniform_over_the_allowed_ones() -> None:
    policy = QPolicy(PolicySpec(spaces.Box(-1, 1, (2,)), spaces.Discrete(4)))
    policy.load(policy.random_weights(1))  # ε is 1
    actions = act(policy, [1, 0, 1, 1], True, rows=9_000)
    assert np.bincount(actions, minlength=4) / 9_000 == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3], abs=0.02)
