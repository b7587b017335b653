"""Intrinsic rewards: random network distillation (Burda et al. 2019).

A predictor is trained to reproduce the outputs of a fixed random network. Its error is large for observations that were
seldom seen, so the error is a reward for reaching new ones.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from outplay.groups import ModelConfig
from outplay.policies.network import Network
from outplay.settings import NotNegative, Positive, Settings
from outplay.spaces import Leaf

Array = np.ndarray

_DECAY = 0.9  # per iteration, of the scale of the errors


class IntrinsicConfig(Settings):
    """Rewards for new observations, added to those of the environment."""

    type: Literal["RND"] = Field("RND", description="Random network distillation.")
    coefficient: NotNegative = Field(
        1.0, description="Factor on intrinsic rewards, which are divided by their moving standard deviation."
    )
    embedding_size: Positive = Field(64, description="Outputs of the random network and of its predictor.")


class Embedding(Network):
    """A network from observations, always normalised, to a vector."""

    def __init__(self, leaves: tuple[Leaf, ...], size: int, generator: torch.Generator) -> None:
        super().__init__(leaves, ModelConfig(fcnet_activation="relu"))
        self.out = nn.Linear(self.num_hidden, size)
        self._initialize(generator, {self.out: 1.0})

    def forward(self, observations: tuple[Tensor, ...]) -> Tensor:
        embedded: Tensor = self.out(self._features(self.encoder, self.hidden, observations))
        return embedded


class Distillation:
    """The two networks, and the scale of their errors."""

    def __init__(self, leaves: tuple[Leaf, ...], config: IntrinsicConfig, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.config = config
        self.target = Embedding(leaves, config.embedding_size, generator)
        self.predictor = Embedding(leaves, config.embedding_size, generator)
        self.target.requires_grad_(False)
        self.weight, self.square = 0.0, 0.0  # of the moving mean of squared deviations of the errors

    def errors(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The prediction error of each observation, (B,)."""
        with torch.no_grad():
            wanted = self.target(observations)
        errors: Tensor = (self.predictor(observations) - wanted).square().mean(-1)
        return errors

    def rewards(self, errors: Array, valid: Array) -> Array:
        """Intrinsic rewards from errors (T, N): standardized by a moving scale. Only `valid` errors count for it."""
        if valid.any():
            self.weight = _DECAY * self.weight + (1 - _DECAY)
            self.square = _DECAY * self.square + (1 - _DECAY) * float(errors[valid].var(dtype=np.float64))
        scale = (self.square / max(self.weight, 1e-12) + 1e-12) ** 0.5
        rewards: Array = (self.config.coefficient * errors / scale).astype(np.float32)
        return rewards
