"""Q-learning targets and losses: pure functions over tensors.

Shapes: B transitions, A actions, N atoms or quantiles. r is the n-step sum of discounted rewards. γ' is the discount
of the bootstrap value: γ^m after m ≤ n steps, and 0 where the episode terminated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.sequences import SequenceBatch
from outplay.policies import QNetwork, masked

# Outputs of the network at the observations, those of the target network at the next observations, and the Q-values by
# which the next actions are chosen.
_Outputs = tuple[Tensor, Tensor, Tensor]


def chosen(values: Tensor, actions: Tensor) -> Tensor:
    """Select the entry of the action taken: (B, A, …) and (B,) to (B, …).

    >>> chosen(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]))
    tensor([2., 3.])
    """
    return values[torch.arange(len(values), device=values.device), actions]


def target_values(rewards: Tensor, discounts: Tensor, following: Tensor) -> Tensor:
    """TD targets r + γ' Q(s', a'), (B,)."""
    return rewards + discounts * following


def projected(support: Tensor, probabilities: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
    """Project the distribution of r + γ' Z onto the atoms of Z (Bellemare et al. 2017, "C51"), (B, N).

    `support` (N,): equally spaced atoms. `probabilities` (B, N): distribution of Z. Each shifted atom's probability
    is split between its two neighbours by linear interpolation. Shifted atoms are clamped to the ends of the support.

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
    """Cross-entropy −Σ p log softmax(logits), (B,): the loss of C51."""
    return -(probabilities * logits.log_softmax(-1)).sum(-1)


def quantile_huber(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss (Dabney et al. 2018, "QR-DQN"), (B,).

    `quantiles` (B, N): estimates at the levels τ_i = (i + ½)/N. `targets` (B, M): samples of the target distribution.
    Loss: Σ_i mean_j |τ_i − [u < 0]| huber(u)/κ with u = target_j − quantile_i.
    """
    number = quantiles.shape[1]
    levels = (torch.arange(number, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / number
    errors = targets[:, None, :] - quantiles[:, :, None]
    size = errors.abs()
    huber = torch.where(size <= kappa, 0.5 * errors**2, kappa * (size - 0.5 * kappa))
    weights = (levels[None, :, None] - (errors.detach() < 0).to(quantiles.dtype)).abs()
    return (weights * huber / kappa).mean(-1).sum(-1)


def huber_slopes(
    values: Tensor, targets: Tensor, actions: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weighted Huber loss of the actions taken, and its gradient with respect to all Q-values.

    `values` (B, A), `targets` (B,): TD targets. Returns (loss, slopes (B, A), TD errors (B,), values taken (B,)).

    >>> one, action = torch.ones(1), torch.tensor([1])
    >>> huber_slopes(torch.tensor([[0.0, 3.0]]), one, action, one)
    (tensor(1.5000), tensor([[0., 1.]]), tensor([-2.]), tensor([3.]))
    """
    index = actions[:, None]
    taken = values.gather(1, index).squeeze(1)
    errors = targets - taken
    limited = errors.clamp(-1.0, 1.0)
    loss = (weights * limited * (errors - 0.5 * limited)).mean()
    slopes = torch.zeros_like(values).scatter_(1, index, (limited * weights * (-1 / len(taken)))[:, None])
    return loss, slopes, errors, taken


def values(network: QNetwork, batch: TransitionBatch | SequenceBatch) -> Tensor:
    """Q-values of all actions at the observations of a minibatch, (B, A). Those of forbidden actions are -1e30."""
    if isinstance(batch, SequenceBatch):
        return masked(network.expected(batch.outputs(network))[batch.steps], batch.mask)
    return masked(network.values(batch.observations), batch.mask)


def losses(
    network: QNetwork, target: QNetwork, batch: TransitionBatch | SequenceBatch, double: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, TD error, Q-value of the action taken) of each transition, or each step of the sequences, (B,) each."""
    if isinstance(batch, SequenceBatch):
        outputs, after, best = _of_sequences(network, target, batch, double)
    else:
        outputs, after, best = _of_transitions(network, target, batch, double)
    taken = chosen(outputs, batch.actions)
    with torch.no_grad():
        values = chosen(network.expected(outputs), batch.actions)
        next_taken = chosen(after, masked(best, batch.next_mask).argmax(-1))
        if network.kind == "c51":
            goal = projected(network.atoms, next_taken.softmax(-1), batch.rewards, batch.discounts)
        else:
            goal = target_values(batch.rewards[:, None], batch.discounts[:, None], next_taken)
    if network.kind is None:
        each = torch.nn.functional.smooth_l1_loss(taken, goal, reduction="none").squeeze(-1)
        return each, (goal - taken.detach()).squeeze(-1), values
    each = cross_entropy(taken, goal) if network.kind == "c51" else quantile_huber(taken, goal)
    return each, each.detach(), values


def _of_transitions(network: QNetwork, target: QNetwork, batch: TransitionBatch, double: bool) -> _Outputs:
    outputs = network(batch.observations)
    with torch.no_grad():
        after = target(batch.next_observations)
        best = network.values(batch.next_observations) if double else target.expected(after)
    return outputs, after, best


def _of_sequences(network: QNetwork, target: QNetwork, batch: SequenceBatch, double: bool) -> _Outputs:
    """One pass of each network over all rows."""
    outputs = batch.outputs(network)
    with torch.no_grad():
        after = batch.outputs(target)
        best = network.expected(outputs) if double else target.expected(after)
    return outputs[batch.steps], after[batch.following], best[batch.following]
