"""The maths of Q-learning: pure functions over tensors.

B transitions, A actions, N atoms or quantiles. r is the sum of the discounted rewards of up to n steps, γ' what the
value after them counts for: γ^m after m steps, and 0 where the episode terminated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outplay.learning.offpolicy import TransitionBatch
from outplay.policies import QNetwork


def chosen(values: Tensor, actions: Tensor) -> Tensor:
    """What belongs to the action that was taken: (B, A, …) and (B,) to (B, …).

    >>> chosen(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]))
    tensor([2., 3.])
    """
    return values[torch.arange(len(values), device=values.device), actions]


def target_values(rewards: Tensor, discounts: Tensor, following: Tensor) -> Tensor:
    """r + γ' Q(s', a'), (B,)."""
    return rewards + discounts * following


def projected(support: Tensor, probabilities: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
    """The distribution of r + γ' Z on the atoms of Z (Bellemare et al. 2017, "C51"), (B, N).

    `support` (N,) are the atoms, equally far apart; `probabilities` (B, N) those of Z. Each shifted atom's probability
    goes to its two neighbours, the nearer one getting more; what falls beyond the ends is put there.

    >>> half = torch.tensor([0.5])
    >>> projected(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0, 1.0, 0.0]]), half, half)
    tensor([[0., 1., 0.]])
    """
    low, high = support[0], support[-1]
    spacing = (high - low) / (len(support) - 1)
    shifted = (rewards[:, None] + discounts[:, None] * support).clamp(low, high)
    places = (shifted - low) / spacing
    below = places.floor().clamp(0, len(support) - 1)
    above = (below + 1).clamp(max=len(support) - 1)
    share = places - below
    result = torch.zeros_like(probabilities)
    result.scatter_add_(1, below.long(), probabilities * (1 - share))
    return result.scatter_add_(1, above.long(), probabilities * share)


def cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """−Σ p log softmax(logits), (B,): the loss of C51."""
    return -(probabilities * logits.log_softmax(-1)).sum(-1)


def quantile_huber(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss of quantile regression (Dabney et al. 2018, "QR-DQN"), (B,).

    `quantiles` (B, N) are estimates of those at (i + ½)/N, `targets` (B, M) samples of what they are to describe:
    Σ_i mean_j |τ_i − [u < 0]| huber(u)/κ with u = target_j − quantile_i.
    """
    number = quantiles.shape[1]
    levels = (torch.arange(number, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / number
    errors = targets[:, None, :] - quantiles[:, :, None]
    size = errors.abs()
    huber = torch.where(size <= kappa, 0.5 * errors**2, kappa * (size - 0.5 * kappa))
    weights = (levels[None, :, None] - (errors.detach() < 0).to(quantiles.dtype)).abs()
    return (weights * huber / kappa).mean(-1).sum(-1)


def losses(network: QNetwork, target: QNetwork, batch: TransitionBatch, double: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, TD error, Q-value of the action taken) of each transition, (B,) each."""
    following = batch.next_observations
    outputs = network(batch.observations)
    taken = chosen(outputs, batch.actions)
    with torch.no_grad():
        values = chosen(network.expected(outputs), batch.actions)
        after = target(following)
        best = network.values(following) if double else target.expected(after)
        next_taken = chosen(after, best.argmax(-1))
        if network.kind == "c51":
            goal = projected(network.atoms, next_taken.softmax(-1), batch.rewards, batch.discounts)
        else:
            goal = target_values(batch.rewards[:, None], batch.discounts[:, None], next_taken)
    if network.kind is None:
        each = torch.nn.functional.smooth_l1_loss(taken, goal, reduction="none").squeeze(-1)
        return each, (goal - taken.detach()).squeeze(-1), values
    each = cross_entropy(taken, goal) if network.kind == "c51" else quantile_huber(taken, goal)
    return each, each.detach(), values
