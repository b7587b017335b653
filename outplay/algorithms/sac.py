"""SAC: soft actor-critic (Haarnoja et al. 2018), for continuous actions, and for discrete ones (Christodoulou 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, FiniteFloat, model_validator
from torch import Tensor, nn

from outplay.algorithms.algorithm import Algorithm
from outplay.cudagraphs import Scalar
from outplay.errors import ConfigError
from outplay.learning.actorcritic import (
    ActorExplorationConfig,
    NextValue,
    ReplayActorCriticConfig,
    ReplayActorCriticLearner,
)
from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.optimizers import ParameterGroup
from outplay.learning.soft import allowed_entropy, soft_value, temperature_gradient
from outplay.policies import masked
from outplay.policies.box import SoftPolicy
from outplay.policies.passes import slopes_of
from outplay.policies.squashed import Reparametrized, SquashedGaussian
from outplay.settings import AboveZero, Decay, Positive, refuse_unused


class SACExplorationConfig(ActorExplorationConfig):
    """Exploration of SAC: random actions first, then samples from the policy."""

    type: Literal["StochasticSampling", "Random"] = Field(
        "StochasticSampling",
        description="StochasticSampling: sample from the policy's action distribution. Random: all actions are random.",
    )
    noise_correlation: Decay = Field(
        0.0,
        description="Continuous actions: correlation of the noise of consecutive actions. Each action has the policy's "
        "distribution with any value; 0.9 and more move slow systems further.",
    )

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if self.type == "Random":
            refuse_unused(self, ["noise_correlation"], "type: Random")
        return self


class SACConfig(ReplayActorCriticConfig):
    """Settings of SAC."""

    exploration_config: SACExplorationConfig = Field(SACExplorationConfig(), description="How to explore.")
    initial_alpha: AboveZero = Field(
        1.0, description="Initial temperature α: the weight of the policy's entropy against the reward."
    )
    learn_alpha: bool = Field(True, description="Learn the temperature, so that the entropy meets target_entropy.")
    target_entropy: FiniteFloat | Literal["auto"] = Field(
        "auto",
        description="Target entropy. auto: minus the number of action variables; for discrete actions "
        "target_entropy_scale · log(number of allowed actions).",
    )
    target_entropy_scale: Decay = Field(
        0.3,
        description="Discrete actions: target entropy as a fraction of the largest one, that of all allowed actions.",
    )
    temperature_lr_scale: AboveZero = Field(1.0, description="Learning rate of the temperature as a multiple of lr.")
    learning_starts: Positive = Field(1_000, description="Steps in the replay buffer before learning starts.")

    @model_validator(mode="after")
    def _check_temperature(self) -> Self:
        if not self.learn_alpha:
            names = ["target_entropy", "target_entropy_scale", "temperature_lr_scale"]
            refuse_unused(self, names, "learn_alpha: false")
        return self


class Temperature(nn.Module):
    """α = exp(log), one trained number."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))


class SACLearner(ReplayActorCriticLearner[SACConfig]):
    """Twin critics with entropy bonus, a stochastic policy, and a temperature that is learned."""

    def make_networks(self) -> None:
        super().make_networks()
        config = self.config
        self.temperature = Temperature(config.initial_alpha)
        self.temperature_flat = self.add_network("temperature", self.temperature)
        actions = self.distribution.num_params
        largest = math.log(actions)
        if self.is_discrete and config.target_entropy != "auto" and config.target_entropy >= largest:
            raise ConfigError(
                f"target_entropy is {config.target_entropy:g}, but the entropy of {actions} actions is at most "
                f"{largest:.3g}; set it to less"
            )
        if (
            not self.is_discrete
            and config.target_entropy_scale != SACConfig.model_fields["target_entropy_scale"].default
        ):
            raise ConfigError("target_entropy_scale is for discrete actions; for continuous ones, set target_entropy")

    def target_entropy(self, mask: Tensor | None) -> Tensor | float:
        """The target entropy; with action masks, that of each row, (B,)."""
        if self.config.target_entropy != "auto":
            return float(self.config.target_entropy)
        if self.is_discrete:
            return self.config.target_entropy_scale * allowed_entropy(mask, self.distribution.num_params)
        return -float(self.distribution.shape[0])

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        own = list(self.temperature.parameters())
        scale = self.config.temperature_lr_scale
        group = ParameterGroup("temperature", own, self.temperature_flat, self.config.optimizer, scale, True)
        return [*super().parameter_groups(), group]

    @property
    def alpha(self) -> Tensor:
        return self.temperature_flat[0].exp()

    def bootstrap(self, batch: TransitionBatch) -> tuple[Tensor | None, NextValue]:
        params = self.network.policy(batch.next_observations)
        if self.is_discrete:
            log_probs = masked(params, batch.next_mask).log_softmax(-1)
            return None, lambda values: soft_value(values.amin(0), log_probs, self.alpha)
        drawn = self.sampled(params, batch, 0)
        return drawn.actions, lambda values: values.amin(0).squeeze(-1) - self.alpha * drawn.log_prob

    def sampled(self, params: Tensor, batch: TransitionBatch, which: int) -> Reparametrized:
        """Continuous actions by the random numbers of the update."""
        assert isinstance(self.distribution, SquashedGaussian)
        assert batch.noise is not None
        return self.distribution.draw(params, batch.noise[:, which])

    @torch.no_grad()
    def actor_step(self, batch: TransitionBatch, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        """One update of the policy towards exp(Q/α), and of the temperature."""
        policy, alpha = self.network.record(batch.observations), self.alpha
        update = self._discrete if self.is_discrete else self._continuous
        loss, slopes, entropy = update(policy.outputs, batch, alpha)
        norm = self.optimizer.apply(policy.weight_gradients(slopes), lr, self.config.grad_clip, ["actor"])
        if self.config.learn_alpha:
            gradient = temperature_gradient(entropy, self.target_entropy(batch.mask))
            self.optimizer.apply([gradient], lr, only=["temperature"])
        return norm, {"actor_loss": loss, "entropy": entropy.mean(), "alpha": alpha}

    def _continuous(self, params: Tensor, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(loss, its slopes for the policy's outputs, entropy): the mean of α log π(a) − min Q(s, a)."""
        drawn = self.sampled(params, batch, 1)
        critics = self.critics.record(batch.observations, drawn.actions)
        lowest, chosen = critics.outputs.min(0, keepdim=True)
        loss = (alpha * drawn.log_prob - lowest.view(-1)).mean()
        share = 1 / int(params.shape[0])  # the slopes of a mean
        of_values = torch.zeros_like(critics.outputs).scatter_(0, chosen, -share)
        slopes = drawn.slopes(critics.input_gradient(of_values), alpha * share)
        return loss, slopes, -drawn.log_prob

    def _discrete(self, params: Tensor, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = self.critics(batch.observations).amin(0)
        loss, slopes = slopes_of(
            lambda params: -soft_value(values, masked(params, batch.mask).log_softmax(-1), alpha).mean(), params
        )
        log_probs = masked(params, batch.mask).log_softmax(-1)
        return loss, slopes, soft_value(torch.zeros_like(values), log_probs, torch.ones_like(alpha))


class SAC(Algorithm[SACConfig]):
    """Soft actor-critic.

    >>> with SAC(env="Pendulum-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = SACConfig
    Learner = SACLearner
    policy_class = SoftPolicy
    with_value = False

    learner: SACLearner
