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
from outplay.learning.rows import TargetRows
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
        with self.summing():
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
        sums = []
        for fragment, lanes in batch.parts():  # one at a time: observations may be large
            with self.part(self._rows(fragment, advantages[: len(fragment.rewards), lanes]), is_sum=True) as part:
                loss, entropy = self._sums(part)
                found = self.weighted({"policy_loss": loss, "entropy": entropy})
            sums.append({name: value.detach() for name, value in found.items()})
            gradients = torch.autograd.grad(
                found["policy_loss"] * weight, self.policy.parameters, allow_unused=True, materialize_grads=True
            )
            for accumulated, gradient in zip(total, gradients, strict=True):
                accumulated += gradient
        sums = self.summed(sums)
        return total, {name: sum(float(found[name]) for found in sums) / batch.steps for name in sums[0]}

    def _rows(self, fragment: Batch, advantages: np.ndarray) -> TargetRows:
        observations, mask, memory, take = self.inputs(fragment)
        actions, targets = self.tensor(take(fragment.actions)), self.tensor(take(advantages))
        return TargetRows(observations, actions, targets, mask=mask, memory=memory)

    def _sums(self, rows: TargetRows) -> tuple[Tensor, Tensor]:
        """Loss and entropy, summed over the rows."""
        params = masked(self.actor_critic.policy(rows.observations, rows.memory), rows.mask)
        loss = -(self.distribution.log_prob(params, rows.actions) * rows.targets).sum()
        return loss, self.distribution.entropy(params.detach()).sum()


class PG(Algorithm[PGConfig]):
    """REINFORCE.

    >>> with PG(env="CartPole-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = PGConfig
    Learner = PGLearner
    with_value = False
