"""Maximum-entropy reinforcement learning: soft values and the temperature's loss, as pure functions over tensors.

Shapes: B transitions, A discrete actions. α is the temperature: the weight of the entropy against the reward.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def soft_value(values: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """The soft value of discrete actions, (B,): Σ_a π(a) (Q(a) − α log π(a)).

    `values` and `log_probs` (B, A). Christodoulou 2019, eq. 10.

    >>> soft_value(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.5, 0.5]]).log(), torch.tensor(0.0))
    tensor([2.])
    """
    probs = log_probs.exp()
    return (probs * values - alpha * torch.where(probs > 0, probs * log_probs, 0)).sum(-1)  # 0 · (−1e30 α) may be NaN


def temperature_gradient(entropy: Tensor, target_entropy: Tensor | float) -> Tensor:
    """The gradient of log α in the mean of log α · (H − H̄): descent raises α while the entropy H is less than H̄.

    Haarnoja et al. 2018, eq. 18, with log α in place of α, as is usual: α stays positive.

    >>> temperature_gradient(torch.tensor([0.5, 0.7]), 0.7)
    tensor(-0.1000)
    """
    return (entropy.detach() - target_entropy).mean()


def allowed_entropy(mask: Tensor | None, actions: int) -> Tensor | float:
    """The largest entropy of each row, (B,): log of the number of allowed actions. `mask` (B, A); None allows all."""
    return math.log(actions) if mask is None else mask.sum(-1).log()
