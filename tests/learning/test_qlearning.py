"""C51's projection and quantile regression, against numbers worked out by hand and against slower ways."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.learning.qlearning import chosen, cross_entropy, projected, quantile_huber, target_values

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def test_chosen_and_targets() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    assert chosen(values, torch.tensor([1, 0])).tolist() == [[3.0, 4.0], [5.0, 6.0]]
    found = target_values(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), torch.tensor([4.0, 9.0]))
    assert found.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("reward", "discount", "probabilities", "expected"),
    [
        (0.0, 1.0, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),  # nothing changes
        (1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.2, 0.7]),  # all one atom up; the last takes what falls beyond
        (-9.0, 1.0, [0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]),
        (0.25, 0.0, [0.1, 0.2, 0.3, 0.4], [0.0, 0.75, 0.25, 0.0]),  # terminated: the reward alone, between two atoms
        (0.5, 0.5, [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]),  # 0.5 + 0.5 · 1 = 1
        (0.1, 0.5, [1.0, 0.0, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0]),  # 0.1 − 0.5 = −0.4
    ],
)
def test_projection_by_hand(reward: float, discount: float, probabilities: list[float], expected: list[float]) -> None:
    found = projected(SUPPORT, torch.tensor([probabilities]), torch.tensor([reward]), torch.tensor([discount]))
    assert found[0].tolist() == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.floats(0.01, 1), min_size=4, max_size=4), st.floats(-0.5, 0.5), st.floats(0, 0.5))
@settings(deadline=None)
def test_projection_keeps_the_mean_inside_the_support(raw: list[float], reward: float, discount: float) -> None:
    probabilities = torch.tensor([raw]) / sum(raw)
    found = projected(SUPPORT, probabilities, torch.tensor([reward]), torch.tensor([discount]))
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)
    mean = reward + discount * float((probabilities * SUPPORT).sum())
    assert float((found * SUPPORT).sum()) == pytest.approx(mean, abs=1e-4)


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0]])
    assert float(cross_entropy(logits, torch.tensor([[0.3, 0.7]]))) == pytest.approx(0.693147, abs=1e-5)


def test_quantile_loss_by_hand() -> None:
    """Quantiles at ¼ and ¾ are 0 and 2, the target is 1: u is 1 and −1, huber ½ each, weights ¼ and |¾ − 1| = ¼."""
    assert float(quantile_huber(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0]]))) == pytest.approx(0.25)
    # A target far above: linear. u is 5 and 3, huber 4.5 and 2.5, weights ¼ and ¾.
    assert float(quantile_huber(torch.tensor([[0.0, 2.0]]), torch.tensor([[5.0]]))) == pytest.approx(1.125 + 1.875)
    # Two targets are averaged.
    both = quantile_huber(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 5.0]]))
    assert float(both) == pytest.approx((0.25 + 3.0) / 2)


def test_quantile_loss_finds_the_quantiles() -> None:
    """Of the numbers 0 to 99, those at 1/8, 3/8, 5/8 and 7/8, but for the width of the quadratic part."""
    targets = torch.arange(100.0)[None]
    quantiles = torch.zeros(1, 4, requires_grad=True)
    for _ in range(3000):
        (gradient,) = torch.autograd.grad(quantile_huber(quantiles, targets).sum(), quantiles)
        with torch.no_grad():
            quantiles -= 2.0 * gradient
    assert quantiles[0].tolist() == pytest.approx([12, 37, 62, 87], abs=1.5)
