"""Squashed normal distributions against numbers worked out by hand, and as densities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from outplay.policies.squashed import Deterministic, SquashedGaussian


@pytest.mark.parametrize(
    ("mean", "std", "noise", "action", "log_prob"),
    [
        # u = 0: log N = −½ log 2π, and tanh has slope 1.
        (0.0, 1.0, 0.0, 0.0, -0.918939),
        # u = 1.5: log N = −0.5 + log 2 − 0.918939 = −0.725791; 1 − tanh² 1.5 = 0.180707, its log is −1.710880.
        (1.0, 0.5, 1.0, 0.905148, 0.985089),
        # u = −2: log N = −2 − log 1 − 0.918939; 1 − tanh² 2 = 0.070651, its log is −2.650004.
        (0.0, 1.0, -2.0, -0.964028, -0.268935),
    ],
)
def test_actions_and_log_probabilities(mean: float, std: float, noise: float, action: float, log_prob: float) -> None:
    params = torch.tensor([[mean, math.log(std)]])
    actions, found = SquashedGaussian(1).reparametrized(params, torch.tensor([[noise]]))
    assert actions.item() == pytest.approx(action, abs=1e-5)
    assert found.item() == pytest.approx(log_prob, abs=1e-5)


def test_log_probabilities_of_several_variables_add_up() -> None:
    params, noise = torch.tensor([[0.0, 1.0, 0.0, math.log(0.5)]]), torch.tensor([[0.0, 1.0]])
    _, found = SquashedGaussian(2).reparametrized(params, noise)
    assert found.item() == pytest.approx(-0.918939 + 0.985089, abs=1e-5)


def test_the_density_of_actions_integrates_to_one() -> None:
    noise = torch.linspace(-8, 8, 20_001, dtype=torch.float64)[:, None]
    params = torch.tensor([[0.3, -0.2]], dtype=torch.float64).expand(len(noise), -1)
    actions, log_prob = SquashedGaussian(1).reparametrized(params, noise)
    assert torch.trapezoid(log_prob.exp(), actions[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_gradients_are_those_of_finite_differences() -> None:
    noise = torch.tensor([[0.7, -1.2]], dtype=torch.float64)
    params = torch.tensor([[0.4, -0.3, -0.5, 0.2]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: SquashedGaussian(2).reparametrized(p, noise), (params,))


@pytest.mark.parametrize("mean", [-60.0, 60.0])
def test_actions_at_the_bounds_have_finite_log_probabilities_and_gradients(mean: float) -> None:
    params = torch.tensor([[mean, 0.0]], requires_grad=True)
    actions, log_prob = SquashedGaussian(1).reparametrized(params, torch.ones(1, 1))
    assert actions.abs().item() == 1.0
    assert log_prob.isfinite()
    (gradient,) = torch.autograd.grad(log_prob.sum(), params)
    assert gradient.isfinite().all()


def test_acting_samples_what_learning_computes() -> None:
    distribution = SquashedGaussian(2)
    params = np.array([[0.5, -1.0, -30.0, 5.0], [0.1, 0.2, 0.3, 0.4]], np.float32)  # log σ is clamped to [−20, 2]
    noise = np.random.default_rng(3).standard_normal((2, 2), np.float32)
    actions, _ = distribution.reparametrized(torch.from_numpy(params), torch.from_numpy(noise))
    assert distribution.sample(params, np.random.default_rng(3)) == pytest.approx(actions.numpy(), abs=1e-6)
    assert distribution.mode(params) == pytest.approx(np.tanh(params[:, :2]))


def test_deterministic_actions_are_those_of_tanh() -> None:
    params = np.array([[0.0, 0.5]], np.float32)
    assert Deterministic(2).mode(params) == pytest.approx(np.array([[0.0, 0.462117]]), abs=1e-6)
    assert Deterministic(2).sample(params, np.random.default_rng(0)) == pytest.approx(np.tanh(params))
