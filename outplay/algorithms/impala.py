"""IMPALA: asynchronous actor-critic with V-trace (Espeholt et al. 2018). One gradient step per batch."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.config import AlgorithmConfig
from outplay.fragments import Batch
from outplay.groups import OptimizerConfig
from outplay.learning.learner import mean_metrics
from outplay.learning.onpolicy import explained_variance
from outplay.learning.optimizers import check_norm
from outplay.learning.rows import Rows
from outplay.learning.vtrace import VTraceConfig, VTraceLearner
from outplay.settings import AboveZero, Decay, NotNegative, with_default


class IMPALAOptimizerConfig(OptimizerConfig):
    """The optimizer's arguments. The learning rate is `lr`."""

    # Without momentum, as RMSProp in the paper: gradients of single batches are too noisy for momentum. But with Adam's
    # bias correction: without it, the first steps are ten times too large, and policies of image networks collapse.
    betas: tuple[Decay, Decay] = with_default(OptimizerConfig, "betas", (0.0, 0.99))


class IMPALAConfig(VTraceConfig):
    """Settings of IMPALA."""

    lr: NotNegative = with_default(AlgorithmConfig, "lr", 6e-4)
    optimizer: IMPALAOptimizerConfig = Field(IMPALAOptimizerConfig(), description="The optimizer and its arguments.")
    normalize_advantages: bool = Field(
        False,
        description="Standardize advantages per batch; otherwise they are divided by the standard deviation of the "
        "returns (if normalize_values), so that they shrink as the policy improves.",
    )
    vtrace_clip_pg_rho_threshold: AboveZero = Field(
        1.0, description="V-trace: the largest importance-sampling ratio of a step in the policy gradient."
    )


class IMPALALearner(VTraceLearner[IMPALAConfig]):
    """One gradient step per batch."""

    def learn_from(self, batch: Batch, lr: float, entropy_coeff: float) -> dict[str, float]:
        """One gradient step on −min(ρ̄, ρ) A log π(a) + c_v (V − v)² − c_e H, averaged over the batch."""
        rows, take = self.recorded(batch)
        with self.part(rows) as part:
            params, values = self.outputs(part)
            log_prob = self.distribution.log_prob(params, part.actions)
            ratios = (log_prob.detach() - part.old_log_prob).exp()
            estimates = self.vtrace(batch, take, self.gathered(values.detach()), self.gathered(ratios))
            part.advantages = self.own(self.scaled_advantages(take(estimates.advantages)))
            part.targets = self.own(self.actor_critic.normalised(self.tensor(take(estimates.targets))))
            part.advantages *= ratios.clamp(max=self.config.vtrace_clip_pg_rho_threshold)
            measured = self.weighted(self._step(part, params, values, log_prob, lr, entropy_coeff))
        means = mean_metrics(self.summed([measured]))
        check_norm(means["grad_norm"], lr)
        if self.config.normalize_values:  # it changes the weights of the value's head, so not before the step
            self.update_value_normaliser(batch.rows(estimates.targets))
        explained = explained_variance(batch.rows(estimates.values), batch.rows(estimates.targets))
        return {**means, "explained_variance": explained}

    def _step(
        self, rows: Rows, params: Tensor, values: Tensor, log_prob: Tensor, lr: float, entropy_coeff: float
    ) -> dict[str, Tensor]:
        """The gradient step, from the network's outputs for the rows. Returns metrics."""
        config = self.config
        policy_loss = -(rows.advantages * log_prob).mean()
        value_loss = torch.nn.functional.mse_loss(values, rows.targets)
        entropy = self.distribution.entropy(params).mean()
        loss = policy_loss + config.vf_loss_coeff * value_loss - entropy_coeff * entropy
        norm = self.optimizer.step(loss, lr, config.grad_clip)
        return {
            "total_loss": loss.detach(),
            "policy_loss": policy_loss.detach(),
            "vf_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "kl": self.distribution.kl(rows.old_params, params.detach()).mean(),
            "grad_norm": norm,
        }


class IMPALA(Algorithm[IMPALAConfig]):
    """Asynchronous actor-critic with V-trace.

    >>> with IMPALA(env="CartPole-v1", config={"num_workers": 2}) as trainer:
    ...     result = trainer.train()
    """

    Config = IMPALAConfig
    Learner = IMPALALearner
