"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.cudagraphs import Scalar
from outplay.learning.actorcritic import (
    ActorExplorationConfig,
    NextValue,
    ReplayActorCriticConfig,
    ReplayActorCriticLearner,
)
from outplay.learning.offpolicy import ReplayConfig, TransitionBatch
from outplay.policies.box import DeterministicPolicy
from outplay.settings import Fraction, NotNegative, Positive, at, refuse_unused, with_default


class NoiseConfig(ActorExplorationConfig):
    """Exploration by noise on actions. The unit is half the range of an action: actions are in [−1, 1]."""

    type: Literal["GaussianNoise", "OrnsteinUhlenbeckNoise", "Random"] = Field(
        "GaussianNoise",
        description="GaussianNoise: independent in each step. OrnsteinUhlenbeckNoise: correlated in time. Random: all "
        "actions are random.",
    )
    stddev: NotNegative = Field(0.1, description="GaussianNoise: standard deviation.")
    ou_theta: Fraction = Field(0.15, description="OrnsteinUhlenbeckNoise: rate θ at which it returns to 0.")
    ou_sigma: NotNegative = Field(0.2, description="OrnsteinUhlenbeckNoise: standard deviation σ of each step.")
    initial_scale: NotNegative = Field(1.0, description="Initial factor on the noise.")
    final_scale: NotNegative = Field(1.0, description="Final factor on the noise.")
    scale_timesteps: Positive = Field(
        10_000, description="Environment steps over which the factor is annealed linearly from initial to final."
    )

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        process = "OrnsteinUhlenbeckNoise"
        for name, kind in {"stddev": "GaussianNoise", "ou_theta": process, "ou_sigma": process}.items():
            if self.type != kind and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"exploration_config.{name} is for type {kind}, and the type is {self.type}; leave {name} out, or "
                    f"set the type to {kind}"
                )
        return self

    def values(self, timesteps: int) -> dict[str, float]:
        points = [(0.0, self.initial_scale), (float(self.scale_timesteps), self.final_scale)]
        scale = at(points, 1.0, timesteps)
        stddev = self.stddev if self.type == "GaussianNoise" else 1.0
        return {**super().values(timesteps), "stddev": stddev * scale}


class TD3Config(ReplayActorCriticConfig):
    """Settings of TD3."""

    exploration_config: NoiseConfig = Field(NoiseConfig(), description="How to explore.")
    lr: NotNegative = with_default(ReplayConfig, "lr", 1e-3)
    policy_delay: Positive = with_default(ReplayActorCriticConfig, "policy_delay", 2)
    target_network_update_freq: Positive = with_default(ReplayConfig, "target_network_update_freq", 2)
    target_noise: NotNegative = Field(
        0.2, description="Target policy smoothing: standard deviation of the noise on the target policy's actions."
    )
    target_noise_clip: Annotated[float, Field(gt=0)] = Field(
        0.5, description="Target policy smoothing: the noise is clipped to [-x, x]."
    )

    @model_validator(mode="after")
    def _check_target_noise(self) -> Self:
        if not self.target_noise:
            refuse_unused(self, ["target_noise_clip"], "target_noise: 0")
        return self


class TD3Learner(ReplayActorCriticLearner[TD3Config]):
    """A deterministic policy that follows the gradient of the first critic; targets use a smoothed target policy."""

    def make_networks(self) -> None:
        super().make_networks()
        self.target_actor = self.add_target("target_actor", self.network, self.policy.flat)

    def bootstrap(self, batch: TransitionBatch) -> tuple[Tensor | None, NextValue]:
        config = self.config
        actor = self.target_actor.network if config.use_target_network else self.network
        actions = actor.policy(batch.next_observations).tanh()
        if config.target_noise:
            assert batch.noise is not None
            limit = config.target_noise_clip
            actions = (actions + (batch.noise[:, 0] * config.target_noise).clamp(-limit, limit)).clamp(-1, 1)
        return actions, lambda values: values.amin(0).squeeze(-1)

    @torch.no_grad()
    def actor_step(self, batch: TransitionBatch, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        """One update of the policy: −Q₁(s, π(s))."""
        policy = self.network.record(batch.observations)
        actions = policy.outputs.tanh()
        critic = self.critics.record(batch.observations, actions, number=1)
        of_actions = critic.input_gradient(torch.full_like(critic.outputs, -1 / int(actions.shape[0])))
        gradients = policy.weight_gradients(of_actions * (1 - actions.square()))
        norm = self.optimizer.apply(gradients, lr, self.config.grad_clip, ["actor"])
        return norm, {"actor_loss": -critic.outputs.mean()}


class TD3(Algorithm[TD3Config]):
    """Twin delayed deep deterministic policy gradient.

    >>> with TD3(env="Pendulum-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = TD3Config
    Learner = TD3Learner
    policy_class = DeterministicPolicy
    with_value = False

    learner: TD3Learner
