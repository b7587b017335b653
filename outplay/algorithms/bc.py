"""BC: behaviour cloning. The policy maximises the likelihood of the recorded actions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.learning.offline import OfflineConfig, OfflineLearner
from outplay.learning.offpolicy import TransitionBatch
from outplay.policies import masked


class BCConfig(OfflineConfig):
    """Settings of BC."""


class BCLearner(OfflineLearner[BCConfig]):
    """Minimises −log π(a|s) over the data."""

    network: Any

    def step(self, batch: TransitionBatch, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        distribution: Any = self.distribution
        params = self.floored(masked(self.network.policy(batch.observations), batch.mask))
        loss = -distribution.log_prob(params, batch.actions).mean()
        norm = self.optimizer.step(loss, lr, self.config.grad_clip)
        entropy = distribution.entropy(params.detach()).mean()
        return norm, {"policy_loss": loss.detach(), "entropy": entropy}


class BC(Algorithm[BCConfig]):
    """Behaviour cloning from recorded data.

    >>> with BC(env="CartPole-v1", config={"input": "recorded/"}) as trainer:
    ...     result = trainer.train()
    """

    Config = BCConfig
    Learner = BCLearner
    with_value = False

    learner: BCLearner
