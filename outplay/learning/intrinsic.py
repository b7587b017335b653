"""Intrinsic rewards: random network distillation (RND, Burda et al. 2019).

A predictor is trained to reproduce the outputs of a fixed random network. Its error is large for observations that were
seldom seen, so the error is a reward for reaching new ones. As in the paper, a second critic estimates the returns of
these rewards, and these returns do not end with the episode: to end one costs the agent nothing but the way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from outplay.groups import ModelConfig
from outplay.learning import returns
from outplay.metrics import RunningMoments
from outplay.policies.network import Network
from outplay.settings import Fraction, NotNegative, Positive, Settings
from outplay.spaces import Leaf

Array = np.ndarray

VALUE_EPOCHS = 4  # per iteration, of the critic; the predictor has one, since more would make all seen states familiar


class IntrinsicConfig(Settings):
    """Rewards for new observations. Their advantages are added to those of the environment's rewards."""

    type: Literal["RND"] = Field("RND", description="Random network distillation.")
    coefficient: NotNegative = Field(
        1.0, description="Factor on the advantages of intrinsic rewards, whose returns have standard deviation 1."
    )
    gamma: Fraction = Field(0.99, description="Discount factor of intrinsic rewards.")
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


@dataclass(frozen=True)
class IntrinsicEstimates:
    """Intrinsic rewards of a Batch, their advantages and the targets of their critic, (T, N) each."""

    rewards: Array
    advantages: Array
    targets: Array


class Distillation:
    """The random network, its predictor, the critic of intrinsic rewards, and the scale of these rewards."""

    def __init__(self, leaves: tuple[Leaf, ...], config: IntrinsicConfig, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.config = config
        self.target = Embedding(leaves, config.embedding_size, generator)
        self.predictor = Embedding(leaves, config.embedding_size, generator)
        self.critic = Embedding(leaves, 1, generator)
        self.target.requires_grad_(False)
        self.moments = RunningMoments(())  # of the discounted sums of errors

    def errors(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The prediction error of each observation, (B,)."""
        with torch.no_grad():
            wanted = self.target(observations)
        errors: Tensor = (self.predictor(observations) - wanted).square().mean(-1)
        return errors

    def values(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The value of each observation in intrinsic rewards, (B,)."""
        values: Tensor = self.critic(observations).squeeze(-1)
        return values

    def value_loss(self, observations: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.values(observations), targets)

    @torch.no_grad()
    def estimates(
        self, observations: tuple[Tensor, ...], last: tuple[Tensor, ...], valid: Array, lambda_: float
    ) -> IntrinsicEstimates:
        """Estimates for T × N observations and the last ones of N lanes. A step is rewarded for the observation that
        follows it in its lane, which may be the first one of another episode."""
        errors, values = (of(observations).cpu().numpy().reshape(valid.shape) for of in (self.errors, self.values))
        last_errors, last_values = (of(last).cpu().numpy() for of in (self.errors, self.values))
        rewards = self.rewards(_following(errors, last_errors, valid), valid)
        following = _following(values, last_values, valid)
        advantages = returns.gae(rewards, values, following, ~_continues(valid), self.config.gamma, lambda_)
        return IntrinsicEstimates(rewards, advantages, advantages + values)

    def rewards(self, errors: Array, valid: Array) -> Array:
        """Errors (T, N) divided by the standard deviation of their discounted sums, of all iterations so far."""
        sums = returns.discounted_returns(errors.astype(np.float64), ~_continues(valid), self.config.gamma)
        self.moments.update(sums[valid])
        rewards: Array = (errors / (float(self.moments.variance) ** 0.5 + 1e-8)).astype(np.float32)
        return rewards


def _continues(valid: Array) -> Array:
    """Where a valid step follows in the same lane, (T, N)."""
    return np.concatenate([valid[1:], np.zeros_like(valid[:1])])


def _following(values: Array, last: Array, valid: Array) -> Array:
    """Of values (T, N), the next one in the lane; after the last valid step, that of the lane's last observation."""
    return np.where(_continues(valid), np.concatenate([values[1:], last[None]]), last)
