"""The standard deviation of parameter noise: its target and its adaptation, on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay.groups import ModelConfig
from outplay.learning import parameternoise
from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.parameternoise import AdaptiveNoise, adapted, divergence, target_divergence
from outplay.policies import PolicySpec, QOptions, QPolicy


def test_the_target_is_the_divergence_of_an_epsilon_greedy_policy() -> None:
    """ε = 0.4 and 4 actions: the greedy action has probability 0.6 + 0.1."""
    assert target_divergence(0.4, 4) == pytest.approx(-math.log(0.7))
    assert target_divergence(0.0, 4) == 0.0
    assert target_divergence(1.0, 4) == pytest.approx(math.log(4))


def test_the_divergence_of_two_rows_by_hand() -> None:
    """Policies (1/2, 1/2) and (3/4, 1/4) in the first row; the same in the second, though the Q-values differ."""
    clean = torch.tensor([[0.0, 0.0], [1.0, 5.0]])
    perturbed = torch.tensor([[math.log(3.0), 0.0], [3.0, 7.0]])
    first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(divergence(clean, perturbed)) == pytest.approx(first / 2)


def test_forbidden_actions_do_not_count() -> None:
    clean, perturbed = torch.tensor([[0.0, 1.0, -1e30]]), torch.tensor([[0.0, 1.0, -1e30]])
    assert float(divergence(clean, perturbed)) == 0.0


def test_it_grows_below_the_target_and_shrinks_above() -> None:
    assert adapted(0.5, 0.1, 0.2) == 0.5 * 1.01
    assert adapted(0.5, 0.3, 0.2) == 0.5 / 1.01
    assert adapted(0.5, 0.0, 0.0) == 0.5 / 1.01  # with one action, nothing would ever stop it
    assert adapted(0.5, math.nan, 0.2) == 0.5 / 1.01  # so large that Q-values overflow
    assert adapted(parameternoise.MOST, 0.1, 0.2) == parameternoise.MOST
    assert adapted(parameternoise.LEAST, 0.3, 0.2) == parameternoise.LEAST


def linear_policy() -> QPolicy:
    """Q(s, a) = w_a s: no hidden layer, no dueling; the two weights are 0, and so are the biases."""
    box, model = spaces.Box(-9, 9, (1,), np.float32), ModelConfig(fcnet_hiddens=[])
    policy = QPolicy(PolicySpec(box, spaces.Discrete(2), model, options=QOptions(dueling=False)))
    policy.flat.zero_()
    return policy


def batch(mask: torch.Tensor | None = None) -> TransitionBatch:
    ones = torch.ones(1)
    return TransitionBatch((torch.zeros(1, 1),), ones.long(), ones, (torch.ones(1, 1),), ones, ones, mask)


def test_adaptation_by_hand() -> None:
    """At s = 0, Q is the bias. The divergence of (1/2, 1/2) from the softmax of noise n σ of both is known."""
    policy = linear_policy()
    noise = AdaptiveNoise(policy.q_network, policy.flat, 0.5)
    weights = np.random.default_rng(3).standard_normal(4, np.float32)  # two weights, then two biases
    first, second = 0.5 * weights[2:]
    share = 1 / (1 + math.exp(second - first))
    expected = 0.5 * math.log(0.5 / share) + 0.5 * math.log(0.5 / (1 - share))
    # ε that gives exactly this target: −log(1 − ε/2)
    epsilon = 2 * (1 - math.exp(-expected))
    assert float(noise.adapt(batch(), 1.1 * epsilon, np.random.default_rng(3))) == pytest.approx(expected, rel=1e-4)
    assert noise.stddev == 0.5 * 1.01
    noise.stddev = 0.5
    noise.adapt(batch(), 0.9 * epsilon, np.random.default_rng(3))
    assert noise.stddev == 0.5 / 1.01
    assert not policy.flat.any()  # the network that is trained has no noise


def test_only_allowed_actions_are_compared() -> None:
    policy = linear_policy()
    noise = AdaptiveNoise(policy.q_network, policy.flat, 0.5)
    assert noise.adapt(batch(torch.tensor([[True, False]])), 0.5, np.random.default_rng(3)) == 0.0
