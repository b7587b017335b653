"""IQL: implicit Q-learning (Kostrikov et al. 2022). Critics never see an action that is not in the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.learning.offlinecritics import OfflineCriticConfig, OfflineCriticLearner
from outplay.learning.offlinelosses import expectile_loss, exponential_weights
from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.optimizers import ParameterGroup
from outplay.policies import masked
from outplay.policies.box import GaussianPolicy
from outplay.settings import NotNegative

_LARGEST_WEIGHT = 100.0  # Kostrikov et al. 2022


class IQLConfig(OfflineCriticConfig):
    """Settings of IQL."""

    expectile: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.8,
        description="Expectile τ of the value: 0.5 is the mean over the data's actions, towards 1 the best of them.",
    )
    temperature: NotNegative = Field(
        3.0, description="Inverse temperature β of the policy's weights exp(β·A); 0 is behaviour cloning."
    )


class IQLLearner(OfflineCriticLearner[IQLConfig]):
    """V is an expectile of Q over the data's actions, Q learns from V, and the policy imitates good actions."""

    def make_networks(self) -> None:
        super().make_networks()
        self.value = self.make_critics("value", 1, 0, 1)

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        return [*super().parameter_groups(), self.critic_group("value", self.value)]

    def step(self, batch: TransitionBatch, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        with torch.no_grad():
            quality = self.taken(self.target.network, batch).amin(0)
            goal = batch.rewards + batch.discounts * self.value(batch.next_observations)[0, :, 0]
        values = self.value(batch.observations)[0, :, 0]
        advantages = (quality - values).detach()
        value_loss = expectile_loss(quality - values, config.expectile).mean()
        self.optimizer.step(value_loss, lr, config.grad_clip, only=["value"])

        found = self.taken(self.critics, batch)
        critic_loss = (goal - found).square().mean(-1).sum()
        norm = self.optimizer.step(critic_loss, lr, config.grad_clip, only=["critics"])

        weights = exponential_weights(advantages, config.temperature, _LARGEST_WEIGHT)
        params = masked(self.network.policy(batch.observations), batch.mask)
        actor_loss = -(weights * self.log_prob(params, batch)).mean()
        self.optimizer.step(actor_loss, lr, config.grad_clip, only=["actor"])
        return norm, {
            "critic_loss": critic_loss.detach(),
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "q_mean": found.detach().mean(),
            "advantage_mean": advantages.mean(),
            "weight_mean": weights.mean(),
        }


class IQL(Algorithm[IQLConfig]):
    """Implicit Q-learning from recorded data.

    >>> with IQL(env="CartPole-v1", config={"input": "recorded/"}) as trainer:
    ...     result = trainer.train()
    """

    Config = IQLConfig
    Learner = IQLLearner
    policy_class = GaussianPolicy
    with_value = False

    learner: IQLLearner
