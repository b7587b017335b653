"""A2C: synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony). One gradient step per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.config import AlgorithmConfig
from outplay.fragments import Batch
from outplay.groups import OptimizerConfig
from outplay.learning.learner import mean_metrics
from outplay.learning.onpolicy import ActorCriticConfig, OnPolicyLearner, explained_variance
from outplay.learning.optimizers import ParameterGroup, check_norm
from outplay.learning.rows import Rows
from outplay.policies import masked
from outplay.settings import AboveZero, Lanes, NotNegative, Positive, with_default


class A2COptimizerConfig(OptimizerConfig):
    """The optimizer's arguments. The learning rate is `lr`."""

    # RMSProp has no momentum: gradients of single small batches are too noisy for momentum.
    type: Literal["adam", "rmsprop", "sgd"] = Field("rmsprop", description="Optimizer.")


class A2CConfig(ActorCriticConfig):
    """Settings of A2C."""

    num_envs: Lanes = with_default(AlgorithmConfig, "num_envs", 16)
    train_batch_size: Positive = with_default(AlgorithmConfig, "train_batch_size", 80)
    lr: NotNegative = with_default(AlgorithmConfig, "lr", 7e-4)
    critic_lr_scale: AboveZero = Field(
        3.0,
        description="Learning rate of the critic as a multiple of lr, if it shares no layers with the policy. With "
        "one gradient step per batch, a critic at the same learning rate lags behind the policy.",
    )
    optimizer: A2COptimizerConfig = Field(A2COptimizerConfig(), description="The optimizer and its arguments.")
    normalize_advantages: bool = Field(
        False,
        description="Standardize advantages per batch; otherwise they are divided by the standard deviation of the "
        "returns (if normalize_values), so that they shrink as the policy improves.",
    )


class A2CLearner(OnPolicyLearner[A2CConfig]):
    """One gradient step per batch."""

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        whole, *others = super().parameter_groups()
        if self.actor_critic.shares_layers:
            return [whole, *others]
        critic = [p for name, p in self.actor_critic.named_parameters() if name.startswith("value_")]
        actor, critic_group = whole.split("critic", critic, self.config.critic_lr_scale)
        return [replace(actor, name="actor"), critic_group, *others]

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        """One gradient step on −log π(a) A + c_v (V − target)² − c_e H, averaged over the batch."""
        config = self.config
        estimates = self.estimates(batch, config.lambda_, config.use_gae)
        if config.normalize_values:
            self.update_value_normaliser(batch.rows(estimates.targets))
        intrinsic = self.add_intrinsic(batch, estimates, config.lambda_)
        rows = self.rows(batch, estimates, config.normalize_advantages)
        lr = self.lr(timesteps)
        entropy_coeff = config.entropy_coeff_at(timesteps)

        with self.part(rows) as part:
            measured = self.weighted(self._step(part, lr, entropy_coeff))
        means = mean_metrics(self.summed([measured]))
        self.train_intrinsic(rows, iteration, lr)
        check_norm(means["grad_norm"], lr)
        return {
            **intrinsic,
            **means,
            "explained_variance": explained_variance(batch.rows(estimates.values), batch.rows(estimates.targets)),
            "lr": lr,
            "entropy_coeff": entropy_coeff,
        }

    def _step(self, rows: Rows, lr: float, entropy_coeff: float) -> dict[str, Tensor]:
        config = self.config
        advantages = rows.advantages if config.normalize_advantages else rows.advantages / self.actor_critic.value_scale
        params, values = self.actor_critic.both(rows.observations, rows.memory)
        params = masked(params, rows.mask)
        policy_loss = -(self.distribution.log_prob(params, rows.actions) * advantages).mean()
        value_loss = torch.nn.functional.mse_loss(values, rows.targets)
        entropy = self.distribution.entropy(params).mean()
        loss = policy_loss + config.vf_loss_coeff * value_loss - entropy_coeff * entropy
        norm = self.optimizer.step(loss, lr, config.grad_clip, self.policy_groups)
        return {
            "total_loss": loss.detach(),
            "policy_loss": policy_loss.detach(),
            "vf_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "grad_norm": norm,
        }


class A2C(Algorithm[A2CConfig]):
    """Synchronous advantage actor-critic.

    >>> with A2C(env="CartPole-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = A2CConfig
    Learner = A2CLearner
