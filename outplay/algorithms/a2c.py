"""A2C: the synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony). One gradient per batch."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from outplay.algorithms.algorithm import Algorithm
from outplay.config import AlgorithmConfig, Fraction, Lanes, NotNegative, OptimizerConfig, Positive, Schedule, at
from outplay.fragments import Batch
from outplay.learning.learner import Learner, explained_variance
from outplay.learning.optimizers import check_norm


class A2COptimizerConfig(OptimizerConfig):
    """The optimizer's arguments. The learning rate is `lr`."""

    # Without momentum: gradients of single batches are too noisy, and too different from one batch to the next, for it.
    type: Literal["adam", "rmsprop", "sgd"] = Field("rmsprop", description="Which optimizer.")


class A2CConfig(AlgorithmConfig):
    """Settings of A2C."""

    num_envs: Lanes = Field(16, description="How many environments there are in all.")
    train_batch_size: Positive = Field(80, description="Environment steps per iteration (a minimum).")
    lr: NotNegative = Field(7e-4, description="The learning rate.")
    critic_lr_scale: Annotated[float, Field(gt=0)] = Field(
        3.0,
        description="The value network learns with lr times this, where it shares no layers with the policy: one "
        "gradient per batch leaves it behind a policy that learns as fast.",
    )
    optimizer: A2COptimizerConfig = Field(A2COptimizerConfig(), description="The optimizer and its arguments.")
    grad_clip: float | None = Field(
        0.5, gt=0, description="Gradients longer than this are shortened to it (the norm over all parameters)."
    )
    use_gae: bool = Field(True, description="Estimate advantages with lambda_; else as with lambda_ = 1.")
    lambda_: Fraction = Field(
        0.95, alias="lambda", description="GAE's λ: 1 trusts the rewards seen, 0 the value of the next observation."
    )
    normalize_advantages: bool = Field(
        False,
        description="Standardize the advantages of each batch. Otherwise they are divided by the standard deviation of "
        "the returns (if normalize_values), so that they shrink as the policy improves.",
    )
    normalize_values: bool = Field(
        True, description="Let the value network predict returns shifted and scaled to deviation 1."
    )
    vf_loss_coeff: NotNegative = Field(0.5, description="Weight of the value's squared error.")
    entropy_coeff: NotNegative = Field(0.01, description="Weight of the policy's entropy, which keeps it exploring.")
    entropy_coeff_schedule: Schedule | None = Field(
        None, description="entropy_coeff as [[step, value], …], linear in between; then entropy_coeff is not used."
    )


class A2CLearner(Learner[A2CConfig]):
    def lr_scales(self) -> list[float] | None:
        if self.model.shares_layers:
            return None
        critic = self.config.critic_lr_scale
        return [critic if name.startswith("value_") else 1.0 for name, _ in self.model.named_parameters()]

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        """One step down −log π(a) A + c_v (V − target)² − c_e H, averaged over the batch."""
        config = self.config
        estimates = self.estimates(batch, config.lambda_, config.use_gae)
        if config.normalize_values:
            self.normalise_values(batch.rows(estimates.targets))
        rows = self.rows(batch, estimates, config.normalize_advantages)
        lr = self.lr(timesteps)
        entropy_coeff = at(config.entropy_coeff_schedule, config.entropy_coeff, timesteps)

        advantages = rows.advantages if config.normalize_advantages else rows.advantages / self.model.value_scale
        params, values = self.model.both(rows.observations)
        policy_loss = -(self.distribution.log_prob(params, rows.actions) * advantages).mean()
        value_loss = torch.nn.functional.mse_loss(values, rows.targets)
        entropy = self.distribution.entropy(params).mean()
        loss = policy_loss + config.vf_loss_coeff * value_loss - entropy_coeff * entropy
        norm = self.optimizer.step(loss, lr, config.grad_clip)
        check_norm(float(norm), lr)
        return {
            "total_loss": float(loss.detach()),
            "policy_loss": float(policy_loss.detach()),
            "vf_loss": float(value_loss.detach()),
            "entropy": float(entropy.detach()),
            "grad_norm": float(norm),
            "explained_variance": explained_variance(batch.rows(estimates.values), batch.rows(estimates.targets)),
            "lr": lr,
            "entropy_coeff": entropy_coeff,
        }


class A2C(Algorithm):
    """Synchronous advantage actor-critic.

    >>> with A2C(env="CartPole-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = A2CConfig
    Learner = A2CLearner
