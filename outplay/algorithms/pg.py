"""PG: policy gradient from complete episodes (REINFORCE, Williams 1992). No critic; one gradient step per batch."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.config import AlgorithmConfig
from outplay.fragments import Batch
from outplay.learning import returns
from outplay.learning.onpolicy import OnPolicyLearner
from outplay.learning.optimizers import check_norm
from outplay.policies import masked
from outplay.settings import NotNegative, Positive, with_default


class PGConfig(AlgorithmConfig):
    """Settings of PG."""

    lr: NotNegative = with_default(AlgorithmConfig, "lr", 4e-3)
    train_batch_size: Positive = with_default(AlgorithmConfig, "train_batch_size", 1024)
    train_batch_episodes: Positive | None = Field(
        None,
        description="Complete episodes per iteration, each in an environment of its own; replaces train_batch_size "
        "and num_envs.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        "complete_episodes", description="PG learns from complete episodes: only complete_episodes is allowed."
    )
    normalize_advantages: bool | Literal["episode"] = Field(
        True, description="Standardize returns: over the batch (true), or per episode (episode)."
    )
    sum_gradients: bool = Field(False, description="Sum the gradients over steps instead of averaging them.")

    @model_validator(mode="after")
    def _whole_episodes(self) -> Self:
        if self.batch_mode != "complete_episodes":
            raise ValueError("batch_mode: PG learns from complete episodes; leave it complete_episodes")
        return self

    @property
    def total_envs(self) -> int:
        return super().total_envs if self.train_batch_episodes is None else self.train_batch_episodes

    @property
    def fragment_length(self) -> int:
        return super().fragment_length if self.train_batch_episodes is None else 1

    @property
    def least_steps(self) -> int:
        return super().least_steps if self.train_batch_episodes is None else 1


class PGLearner(OnPolicyLearner[PGConfig]):
    """One gradient step per batch."""

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        gradients, metrics = self.gradients(batch)
        lr = self.lr(timesteps)
        norm = self.optimizer.apply(gradients, lr, self.config.grad_clip)
        check_norm(float(norm), lr)
        return {**metrics, "grad_norm": float(norm), "lr": lr}

    def gradients(self, batch: Batch) -> tuple[list[Tensor], dict[str, float]]:
        """Gradients of −log π(a) G, averaged or summed over steps, and metrics. G is the discounted return-to-go."""
        config = self.config
        advantages = returns.discounted_returns(self.rewards(batch), self.returns_end(batch), config.gamma)
        if config.normalize_advantages == "episode":
            advantages = returns.standardized_by_episode(advantages, batch.episode_start, batch.valid)
        elif config.normalize_advantages:
            advantages = returns.standardized(advantages, batch.valid)
        weight = 1.0 if config.sum_gradients else 1.0 / batch.steps
        total = [torch.zeros_like(parameter) for parameter in self.policy.parameters]
        losses, entropies = 0.0, 0.0
        for part, lanes in batch.parts():  # one at a time: observations may be large
            loss, entropy = self._sums(part, advantages[: len(part.rewards), lanes])
            losses, entropies = losses + float(loss.detach()), entropies + float(entropy)
            gradients = torch.autograd.grad(
                loss * weight, self.policy.parameters, allow_unused=True, materialize_grads=True
            )
            for accumulated, gradient in zip(total, gradients, strict=True):
                accumulated += gradient
        return total, {"policy_loss": losses / batch.steps, "entropy": entropies / batch.steps}

    def _sums(self, part: Batch, advantages: np.ndarray) -> tuple[Tensor, Tensor]:
        """Loss and entropy, summed over the steps of a part of the Batch."""
        observations, mask, memory, take = self.inputs(part)
        params = masked(self.actor_critic.policy(observations, memory), mask)
        log_prob = self.distribution.log_prob(params, self.tensor(take(part.actions)))
        loss = -(log_prob * self.tensor(take(advantages))).sum()
        return loss, self.distribution.entropy(params.detach()).sum()


class PG(Algorithm[PGConfig]):
    """REINFORCE.

    >>> with PG(env="CartPole-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = PGConfig
    Learner = PGLearner
    with_value = False
