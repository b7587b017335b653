"""PPO: proximal policy optimisation (Schulman et al. 2017), with an optional adaptive KL penalty."""

from __future__ import annotations

from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.config import AlgorithmConfig
from outplay.cudagraphs import Scalar
from outplay.fragments import Batch
from outplay.learning.learner import JsonAndTensors, Segments, mean_metrics
from outplay.learning.onpolicy import ActorCriticConfig, OnPolicyLearner, OnPolicyState, explained_variance
from outplay.learning.optimizers import check_norm
from outplay.learning.rows import Rows
from outplay.policies import Policy, masked
from outplay.settings import Fraction, Lanes, NotNegative, Positive, is_true, with_default


class PPOConfig(ActorCriticConfig):
    """Settings of PPO. The defaults are the same for all environments."""

    num_envs: Lanes = with_default(AlgorithmConfig, "num_envs", 16)
    train_batch_size: Positive = with_default(AlgorithmConfig, "train_batch_size", 2048)
    gamma: Fraction = with_default(AlgorithmConfig, "gamma", 0.995)
    lr: NotNegative = with_default(AlgorithmConfig, "lr", 1e-3)
    lambda_: Fraction = with_default(ActorCriticConfig, "lambda_", 0.97)
    use_critic: bool = Field(
        True,
        description="Learn a value network as baseline; otherwise advantages are Monte Carlo returns of complete "
        "episodes (batch_mode is then complete_episodes).",
    )
    kl_coeff: NotNegative = Field(
        0.0, description="Initial coefficient of the KL penalty; adapted to keep the KL divergence near kl_target."
    )
    kl_target: NotNegative = Field(
        0.01,
        description="Target KL divergence: kl_coeff is multiplied by 1.5 above twice the target, and halved below "
        "half of it.",
    )
    sgd_minibatch_size: Positive = Field(256, description="Minibatch size in steps.")
    num_sgd_iter: Positive = Field(10, description="Epochs: passes over the batch per iteration.")
    shuffle_sequences: bool = Field(True, description="Shuffle the batch in each epoch before splitting it.")
    vf_clip_param: float | None = Field(
        None,
        gt=0,
        description="Maximum squared value error, in normalised units, as in RLlib; larger errors have gradient 0.",
    )
    clip_param: NotNegative = Field(0.2, description="PPO clip range ε.")

    @model_validator(mode="before")
    @classmethod
    def _without_critic(cls, data: Any) -> Any:
        if isinstance(data, dict) and not is_true(data.get("use_critic", True), otherwise=True):
            return {"batch_mode": "complete_episodes", **data}
        return data

    @model_validator(mode="after")
    def _whole_episodes(self) -> Self:
        if not self.use_critic and self.batch_mode != "complete_episodes":
            raise ValueError(
                "batch_mode: use_critic: false needs complete episodes; leave batch_mode out or set it to "
                "complete_episodes"
            )
        return self


class PPOState(OnPolicyState):
    kl_coeff: Annotated[float, Field(ge=0)]


class PPOLearner(OnPolicyLearner[PPOConfig]):
    """Several epochs of minibatch steps per batch, on the clipped objective."""

    State = PPOState

    def __init__(self, policy: Policy, config: PPOConfig, frame_stack: int = 1) -> None:
        super().__init__(policy, config, frame_stack)
        self.kl_coeff = config.kl_coeff

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        config = self.config
        if config.use_critic:
            estimates = self.estimates(batch, config.lambda_, config.use_gae)
        else:
            estimates = self.monte_carlo(batch)
        if config.use_critic and config.normalize_values:
            self.update_value_normaliser(batch.rows(estimates.targets))
        intrinsic = self.add_intrinsic(batch, estimates, config.lambda_)
        rows = self.rows(batch, estimates, config.normalize_advantages)
        lr = self.lr(timesteps)
        entropy_coeff = config.entropy_coeff_at(timesteps)
        self.train_intrinsic(rows, iteration, lr)

        measured, norms = [], []
        for epoch in range(config.num_sgd_iter):
            is_last = epoch == config.num_sgd_iter - 1
            minibatches = self.minibatches(rows, config.sgd_minibatch_size, iteration, epoch, config.shuffle_sequences)
            for minibatch in minibatches:
                norm, metrics = self.step(minibatch, lr, entropy_coeff, measure=is_last)
                norms.append(norm)
                if is_last:
                    measured.append(self.weighted(metrics))

        means = mean_metrics(self.summed(measured))
        mean_norm = float(torch.stack(norms).mean())
        check_norm(mean_norm, lr)
        self._adapt_kl_coeff(means["kl"])
        return {
            **means,
            **intrinsic,
            "grad_norm": mean_norm,
            "explained_variance": explained_variance(batch.rows(estimates.values), batch.rows(estimates.targets)),
            "lr": lr,
            "entropy_coeff": entropy_coeff,
            "kl_coeff": self.kl_coeff,
        }

    def step(self, rows: Rows, lr: float, entropy_coeff: float, measure: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """One gradient step on a minibatch. Returns the gradient norm, and metrics if `measure`."""
        # Batches of complete episodes have varying sizes: each would need a CUDA graph of its own.
        if not self.captures or self.config.batch_mode == "complete_episodes":
            return self._step(rows, lr, entropy_coeff, self.kl_coeff, measure)
        return self.captured(self._step, rows, lr, entropy_coeff, self.kl_coeff)

    def _step(
        self, rows: Rows, lr: Scalar, entropy_coeff: Scalar, kl_coeff: Scalar, measure: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = self.loss(rows, entropy_coeff, kl_coeff, measure)
        return self.optimizer.step(loss, lr, self.config.grad_clip, self.policy_groups), metrics

    def loss(
        self, rows: Rows, entropy_coeff: Scalar, kl_coeff: Scalar, measure: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """−min(ρA, clip(ρ, 1−ε, 1+ε)A) + c_v (V − target)² − c_e H + c_kl KL(old ‖ new), averaged over the rows.

        Terms with coefficient 0 are computed only if `measure`.
        """
        config = self.config
        if config.use_critic:
            params, values = self.actor_critic.both(rows.observations, rows.memory)
            value_loss = self._value_loss(values, rows.targets)
        else:
            params = self.actor_critic.policy(rows.observations, rows.memory)
            value_loss = torch.zeros((), device=self.device)
        params = masked(params, rows.mask)
        ratio = (self.distribution.log_prob(params, rows.actions) - rows.old_log_prob).exp()
        clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
        policy_loss = -torch.minimum(ratio * rows.advantages, clipped * rows.advantages).mean()
        loss = policy_loss + config.vf_loss_coeff * value_loss
        metrics = {"policy_loss": policy_loss, "vf_loss": value_loss}
        if measure or entropy_coeff:
            metrics["entropy"] = self.distribution.entropy(params).mean()
            loss = loss - entropy_coeff * metrics["entropy"]
        if measure or kl_coeff:
            metrics["kl"] = self.distribution.kl(rows.old_params, params).mean()
            loss = loss + kl_coeff * metrics["kl"]
        if not measure:
            return loss, {}
        metrics |= {"total_loss": loss, "clip_fraction": (ratio != clipped).float().mean()}
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _value_loss(self, values: Tensor, targets: Tensor) -> Tensor:
        limit = self.config.vf_clip_param
        if limit is None:
            return torch.nn.functional.mse_loss(values, targets)
        return ((values - targets) ** 2).clamp(max=limit).mean()

    def _adapt_kl_coeff(self, kl: float) -> None:
        if kl > 2 * self.config.kl_target:
            self.kl_coeff *= 1.5
        elif kl < 0.5 * self.config.kl_target:
            self.kl_coeff *= 0.5

    def state(self) -> JsonAndTensors:
        state, tensors = super().state()
        return {**state, "kl_coeff": self.kl_coeff}, tensors

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self.kl_coeff = float(state["kl_coeff"])
        return super().load(state, tensors, segments)


class PPO(Algorithm[PPOConfig]):
    """Proximal policy optimisation.

    >>> with PPO(env="CartPole-v1", config={"num_workers": 2, "lr": 1e-3}) as trainer:
    ...     result = trainer.train()
    ...     path = trainer.save()
    """

    Config = PPOConfig
    Learner = PPOLearner
