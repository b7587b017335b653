"""Pooling: from a padded sequence to one vector of features."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.sequences import Padded

_SIZE = 64  # features of an element


class SequencePool(nn.Module):
    """Embeds the elements of a padded sequence, then combines them: their mean and maximum, or attention.

    Attention: the mean, weighted with the softmax of a learned score of each element. Padding has no influence. The
    features of an empty sequence are 0. The order of elements matters only in text: there, the embedding of a character
    also depends on its position.
    """

    def __init__(self, space: Padded, pooling: str) -> None:
        super().__init__()
        element = space.element
        self.is_discrete = isinstance(element, spaces.Discrete)
        size = int(element.n) if isinstance(element, spaces.Discrete) else int(np.prod(element.shape))
        self.embedding = nn.Linear(size, _SIZE)
        self.positions = nn.Linear(space.max_length, _SIZE, bias=False) if space.is_text else None
        self.score = nn.Linear(_SIZE, 1, bias=False) if pooling == "attention" else None
        self.num_features = _SIZE if pooling == "attention" else 2 * _SIZE

    def forward(self, x: Tensor) -> Tensor:
        """(B, L) or (B, L, 1 + k), as `Padded` has it, to (B, num_features)."""
        weight = self.embedding.weight
        if self.is_discrete:
            present = x > 0
            index = (x.long() - 1).clamp(0, weight.shape[1] - 1)
            hidden = nn.functional.embedding(index, weight.T) + self.embedding.bias
        else:
            present = x[..., 0] > 0
            hidden = self.embedding(x[..., 1:].to(weight.dtype))
        if self.positions is not None:
            hidden = hidden + self.positions.weight.T
        present = present.unsqueeze(-1)
        hidden = hidden.relu().where(present, 0.0)
        if self.score is not None:
            weights = self.score(hidden).masked_fill(~present, -1e30).softmax(1)
            pooled: Tensor = (weights * hidden).sum(1)
            return pooled
        # Elements are not negative after relu, so the zeros of the padding do not change the maximum.
        mean = hidden.sum(1) / present.sum(1).clamp(min=1)
        return torch.cat([mean, hidden.amax(1)], -1)
