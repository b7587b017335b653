"""Soft values and the temperature against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from outplay.learning.soft import allowed_entropy, soft_value, temperature_gradient


def test_soft_values() -> None:
    """π = (¼, ¾), Q = (4, 8), α = 2: ¼ (4 + 2 log 4) + ¾ (8 + 2 log 4/3) = 7 + 2 H(π)."""
    probs = torch.tensor([[0.25, 0.75]])
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    found = soft_value(torch.tensor([[4.0, 8.0]]), probs.log(), torch.tensor(2.0))
    assert found.item() == pytest.approx(7 + 2 * entropy)


def test_a_forbidden_action_has_no_part_in_soft_values() -> None:
    log_probs = torch.tensor([[1.0, 1.0, -1e30]]).log_softmax(-1)
    found = soft_value(torch.tensor([[2.0, 4.0, 1e6]]), log_probs, torch.tensor(1.0))
    assert found.item() == pytest.approx(3 + math.log(2))


@pytest.mark.parametrize(("entropy", "gradient"), [(0.5, -0.2), (0.7, 0.0), (1.0, 0.3)])
def test_the_gradient_of_the_temperature(entropy: float, gradient: float) -> None:
    """∂/∂ log α of log α (H − H̄) is H − H̄, with H̄ = 0.7: descent raises α while the entropy is too small."""
    found = temperature_gradient(torch.tensor(entropy, requires_grad=True), 0.7)
    assert found.item() == pytest.approx(gradient, abs=1e-6)
    assert not found.requires_grad


def test_soft_values_are_finite_for_any_temperature() -> None:
    log_probs = torch.tensor([[1.0, -1e30]]).log_softmax(-1)
    assert soft_value(torch.tensor([[2.0, 4.0]]), log_probs, torch.tensor(1e20)).item() == 2.0


def test_the_largest_entropy_is_that_of_the_allowed_actions() -> None:
    mask = torch.tensor([[True, True, False], [False, True, False]])
    assert torch.as_tensor(allowed_entropy(mask, 3)).tolist() == pytest.approx([math.log(2), 0.0])
    assert allowed_entropy(None, 3) == pytest.approx(math.log(3))
    found = temperature_gradient(torch.tensor([0.5, 0.0]), 0.5 * torch.tensor([math.log(2), 0.0]))
    assert found.item() == pytest.approx((0.5 - 0.5 * math.log(2)) / 2)
