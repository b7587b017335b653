"""Losses of learning from recorded data: pure functions over tensors.

Shapes: B rows, A discrete actions, N critics, S sampled actions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def exponential_weights(advantages: Tensor, beta: float, largest: float) -> Tensor:
    """exp(β A), at most `largest`, (B,): how much an action of the data is imitated. Without gradients.

    MARWIL (Wang et al. 2018) and IQL (Kostrikov et al. 2022) weight behaviour cloning by it. β = 0 is cloning.

    >>> exponential_weights(torch.tensor([0.0, 1.0, 100.0]), 1.0, 20.0)
    tensor([ 1.0000,  2.7183, 20.0000])
    """
    return (beta * advantages.detach()).exp().clamp(max=largest)


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """|τ − [u < 0]| u² of each error u = target − estimate, (B,): its minimum is the τ-expectile of the targets.

    τ = 0.5 gives half the squared error; towards 1 the estimate approaches the largest target (Kostrikov et al. 2022).

    >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.9)
    tensor([3.6000, 0.4000])
    """
    return torch.where(errors < 0, 1 - expectile, expectile) * errors.square()


def discrete_gap(values: Tensor, taken: Tensor, temperature: float, mask: Tensor | None = None) -> Tensor:
    """T log Σ_a exp(Q(s, a)/T) − Q(s, a_data), (N, B): what CQL lowers (Kumar et al. 2020, eq. 4).

    `values` (N, B, A), `taken` (N, B). Forbidden actions (`mask` (B, A) is False) do not count.

    >>> discrete_gap(torch.zeros(1, 1, 2), torch.zeros(1, 1), 1.0)
    tensor([[0.6931]])
    """
    allowed = values if mask is None else values.masked_fill(~mask, -1e30)
    return temperature * torch.logsumexp(allowed / temperature, -1) - taken


def sampled_gap(values: Tensor, log_densities: Tensor, taken: Tensor, temperature: float) -> Tensor:
    """`discrete_gap` for continuous actions, (N, B): the integral is estimated from S sampled actions.

    `values` (N, B, S) are the critics' values of the samples, `log_densities` (B, S) the log-densities that they were
    drawn with: T log mean_i exp(Q(s, a_i)/T − log p(a_i)).

    >>> sampled_gap(torch.zeros(1, 1, 4), torch.zeros(1, 4), torch.ones(1, 1), 1.0)
    tensor([[-1.]])
    """
    samples = values.shape[-1]
    weighted = torch.logsumexp(values / temperature - log_densities, -1) - torch.log(values.new_tensor(samples))
    return temperature * weighted - taken
