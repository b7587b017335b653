"""APPO: asynchronous PPO. The clipped objective of PPO on batches of older policies, with V-trace.

As in Sample Factory (Petrenko et al. 2020).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.config import AlgorithmConfig
from outplay.fragments import Batch
from outplay.learning.learner import mean_metrics
from outplay.learning.onpolicy import explained_variance
from outplay.learning.optimizers import check_norm
from outplay.learning.rows import Rows
from outplay.learning.vtrace import VTraceConfig, VTraceLearner
from outplay.settings import Fraction, NotNegative, Positive, with_default


class APPOConfig(VTraceConfig):
    """Settings of APPO."""

    train_batch_size: Positive = with_default(VTraceConfig, "train_batch_size", 1000)
    lr: NotNegative = with_default(AlgorithmConfig, "lr", 1e-3)
    gamma: Fraction = with_default(AlgorithmConfig, "gamma", 0.99)
    lambda_: Fraction = with_default(VTraceConfig, "lambda_", 0.97)
    clip_param: NotNegative = Field(0.2, description="PPO clip range ε, of the ratio to the policy that acted.")
    num_sgd_iter: Positive = Field(4, description="Epochs: passes over each batch.")
    sgd_minibatch_size: Positive = Field(250, description="Minibatch size in steps.")
    shuffle_sequences: bool = Field(True, description="Shuffle the batch in each epoch before splitting it.")


class APPOLearner(VTraceLearner[APPOConfig]):
    """Several epochs of minibatch steps per batch, on the clipped objective."""

    def learn_from(self, batch: Batch, lr: float, entropy_coeff: float) -> dict[str, float]:
        """V-trace for the present network, then epochs of gradient steps."""
        config = self.config
        rows, take = self.recorded(batch)
        with torch.no_grad(), self.part(rows) as part:
            params, values = self.outputs(part)
            ratios = (self.distribution.log_prob(params, part.actions) - part.old_log_prob).exp()
            values, ratios = self.gathered(values), self.gathered(ratios)
        estimates = self.vtrace(batch, take, values, ratios)
        if config.normalize_values:
            self.update_value_normaliser(batch.rows(estimates.targets))
        rows.advantages = self.scaled_advantages(take(estimates.advantages))
        rows.targets = self.actor_critic.normalised(self.tensor(take(estimates.targets)))

        measured = []
        for epoch in range(config.num_sgd_iter):
            size, shuffle = config.sgd_minibatch_size, config.shuffle_sequences
            for minibatch in self.minibatches(rows, size, self.updates, epoch, shuffle):
                loss, metrics = self.loss(minibatch, entropy_coeff)
                norm = self.optimizer.step(loss, lr, config.grad_clip)
                measured.append(self.weighted({**metrics, "grad_norm": norm}))
        means = mean_metrics(self.summed(measured))
        check_norm(means["grad_norm"], lr)
        explained = explained_variance(batch.rows(estimates.values), batch.rows(estimates.targets))
        return {**means, "explained_variance": explained}

    def loss(self, rows: Rows, entropy_coeff: float) -> tuple[Tensor, dict[str, Tensor]]:
        """−min(ρA, clip(ρ, 1−ε, 1+ε)A) + c_v (V − v)² − c_e H, averaged over the rows; and metrics."""
        config = self.config
        params, values = self.outputs(rows)
        ratio = (self.distribution.log_prob(params, rows.actions) - rows.old_log_prob).exp()
        clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
        policy_loss = -torch.minimum(ratio * rows.advantages, clipped * rows.advantages).mean()
        value_loss = torch.nn.functional.mse_loss(values, rows.targets)
        entropy = self.distribution.entropy(params).mean()
        loss = policy_loss + config.vf_loss_coeff * value_loss - entropy_coeff * entropy
        metrics = {
            "total_loss": loss,
            "policy_loss": policy_loss,
            "vf_loss": value_loss,
            "entropy": entropy,
            "kl": self.distribution.kl(rows.old_params, params).mean(),
            "clip_fraction": (ratio != clipped).float().mean(),
        }
        return loss, {name: value.detach() for name, value in metrics.items()}


class APPO(Algorithm[APPOConfig]):
    """Asynchronous proximal policy optimisation.

    >>> with APPO(env="CartPole-v1", config={"num_workers": 2}) as trainer:
    ...     result = trainer.train()
    """

    Config = APPOConfig
    Learner = APPOLearner
