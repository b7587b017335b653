"""PG: the policy gradient of whole episodes (REINFORCE, Williams 1992). No critic; one gradient per batch."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from outplay import returns
from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.learner import Estimates, Learner
from outplay.config import AlgorithmConfig, NotNegative, Positive
from outplay.fragments import Batch


class PGConfig(AlgorithmConfig):
    """Settings of PG."""

    lr: NotNegative = Field(4e-3, description="The learning rate.")
    train_batch_size: Positive = Field(1024, description="Steps per iteration; at least so many are collected.")
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        "complete_episodes", description="Cut Fragments at their length, or only where episodes end."
    )
    normalize_advantages: bool = Field(True, description="Shift and scale returns to mean 0 and deviation 1.")


class PGLearner(Learner[PGConfig]):
    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        """One step down −log π(a) G, averaged over the batch; G is the discounted sum of the rewards to come."""
        config = self.config
        ended = self.ended(batch)
        seen = returns.discounted_returns(self.rewards(batch), ended, config.gamma)
        rows = self.rows(batch, Estimates(np.zeros_like(seen), seen, seen), config.normalize_advantages)
        lr = self.lr(timesteps)

        params = self.model.policy(rows.observations)
        loss = -(self.distribution.log_prob(params, rows.actions) * rows.advantages).mean()
        norm = self.optimizer.step(loss, lr, config.grad_clip)
        return {
            "policy_loss": float(loss.detach()),
            "entropy": float(self.distribution.entropy(params.detach()).mean()),
            "grad_norm": norm,
            "lr": lr,
        }


class PG(Algorithm):
    """REINFORCE.

    >>> with PG(env="CartPole-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = PGConfig
    Learner = PGLearner
    with_value = False
