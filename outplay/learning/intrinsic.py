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
from outplay.learning.returns import discounted_returns
from outplay.metrics import RunningMoments
from outplay.policies.network import Network
from outplay.settings import NotNegative, Positive, Settings
from outplay.spaces import Leaf

Array = np.ndarray

GAMMA = 0.99  # discount factor of intrinsic rewards
EPOCHS = int(__import__("os").environ.get("CE", 4))


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
    """The random network, its predictor, the value of intrinsic rewards, and their scale."""

    def __init__(self, leaves: tuple[Leaf, ...], config: IntrinsicConfig, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.config = config
        self.target = Embedding(leaves, config.embedding_size, generator)
        self.predictor = Embedding(leaves, config.embedding_size, generator)
        self.critic = Embedding(leaves, 1, generator)
        self.target.requires_grad_(False)
        self.returns = RunningMoments(())  # of the discounted sums of errors

    def errors(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The prediction error of each observation, (B,)."""
        with torch.no_grad():
            wanted = self.target(observations)
        errors: Tensor = (self.predictor(observations) - wanted).square().mean(-1)
        return errors

    def values(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The value of the intrinsic rewards after each observation, (B,)."""
        values: Tensor = self.critic(observations).squeeze(-1)
        return values

    def rewards(self, errors: Array, valid: Array) -> Array:
        """Intrinsic rewards from errors (T, N): divided by the standard deviation of their discounted sums so far."""
        sums = discounted_returns(np.where(valid, errors, 0.0), np.zeros_like(valid), GAMMA)
        self.returns.update(sums[valid])
        scale = float(self.returns.variance) ** 0.5 + 1e-8
        rewards: Array = (errors / scale).astype(np.float32)
        return rewards
