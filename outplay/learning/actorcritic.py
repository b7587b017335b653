"""Off-policy actor-critic learning from a replay buffer: what SAC, TD3 and DDPG share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor

from outplay.config import AlgorithmConfig
from outplay.cudagraphs import Scalar
from outplay.groups import ExplorationConfig, ModelConfig
from outplay.learning.offpolicy import ReplayConfig, ReplayLearner, TransitionBatch
from outplay.learning.optimizers import ParameterGroup
from outplay.learning.traces import Step
from outplay.policies.box import Actor
from outplay.policies.critics import CriticOptions, Critics
from outplay.settings import (
    LARGEST,
    AboveZero,
    Decay,
    Few,
    Fraction,
    Lanes,
    NotNegative,
    Positive,
    refuse_unused,
    with_default,
)
from outplay.streams import seed_for, stream

Array = np.ndarray

# From the critics' values (N, B, …) at the next observations to the value that is bootstrapped from, (B,).
NextValue = Callable[[Tensor], Tensor]
# From slopes, ∂loss / ∂values (N, B), to the gradients of the critics' parameters.
Gradients = Callable[[Tensor], Sequence[Tensor]]


class ActorExplorationConfig(ExplorationConfig):
    """Exploration by actors: random actions first."""

    type: Literal["StochasticSampling", "GaussianNoise", "OrnsteinUhlenbeckNoise", "Random"] = "StochasticSampling"  # type: ignore[assignment]
    random_timesteps: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        1_000, description="Environment steps at the start of training with uniformly random actions."
    )

    def values(self, timesteps: int) -> dict[str, float]:
        """The exploration values of the policy at a step."""
        return {"random_actions": float(self.type == "Random" or timesteps < self.random_timesteps)}


class ReplayActorCriticConfig(ReplayConfig):
    """Settings that SAC, TD3 and DDPG share."""

    num_envs: Lanes = with_default(AlgorithmConfig, "num_envs", 4)
    train_batch_size: Positive = with_default(AlgorithmConfig, "train_batch_size", 64)
    sgd_minibatch_size: Positive = with_default(ReplayConfig, "sgd_minibatch_size", 256)
    training_intensity: NotNegative = with_default(ReplayConfig, "training_intensity", 1.0)
    buffer_size: Positive = with_default(ReplayConfig, "buffer_size", 1_000_000)
    target_network_update_freq: Positive = with_default(ReplayConfig, "target_network_update_freq", 1)
    tau: Fraction = with_default(ReplayConfig, "tau", 0.005)
    use_target_network: bool = Field(
        True,
        description="Bootstrap from target critics. false needs critic_norm: batch, and is CrossQ (Bhatt et al. 2024).",
    )
    num_critics: Few = Field(2, description="Critics in the ensemble. Targets are the minimum of their values.")
    critic_hiddens: list[Positive] | None = Field(
        None, description="Sizes of the critics' hidden layers; default: those of the policy (model.fcnet_hiddens)."
    )
    critic_norm: Literal["layer", "batch"] | None = Field(
        None,
        description="Normalisation in the critics: LayerNorm before each activation; or batch renormalisation of the "
        "inputs and after each activation, which needs use_target_network: false.",
    )
    critic_dropout: Decay = Field(
        0.0, description="Dropout probability of the critics' hidden units; 0.01 with critic_norm: layer is DroQ."
    )
    critic_lr_scale: AboveZero = Field(1.0, description="Learning rate of the critics as a multiple of lr.")
    policy_delay: Positive = Field(1, description="Updates of the critics per update of the policy.")

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.use_target_network == (self.critic_norm == "batch"):
            raise ValueError(
                "use_target_network: false and critic_norm: batch need each other (CrossQ); with target networks, use "
                "critic_norm: layer or none"
            )
        if not self.use_target_network:
            refuse_unused(self, ["tau", "target_network_update_freq"], "use_target_network: false")
        return self

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        name = type(self).__name__.removesuffix("Config")
        if not self.model.use_bias:
            raise ValueError(f"model.use_bias: the critics of {name} have biases; leave it true")
        if self.burn_in_len != ReplayConfig.model_fields["burn_in_len"].default:
            raise ValueError(f"burn_in_len: {name} has no recurrent networks; leave it out")
        if self.model.initial_log_std != ModelConfig.model_fields["initial_log_std"].default:
            raise ValueError(f"model.initial_log_std: {name} has no standard deviation of its own; leave it out")
        if self.model.vf_share_layers is not None:
            raise ValueError(f"model.vf_share_layers: {name} has no value network; leave it out")
        return self

    @property
    def suits_bfloat16(self) -> bool:
        """Whether all networks are plain MLPs with wide layers: their products take longer than to round the inputs."""
        model, default = self.model, [_WIDE]
        is_plain = not (model.custom_model or model.sparse_inputs or model.layer_norm or self.critic_norm)
        sizes = default if model.fcnet_hiddens is None else model.fcnet_hiddens
        narrowest = min([*sizes, *(self.critic_hiddens or [])], default=0)
        return is_plain and not self.critic_dropout and narrowest >= _WIDE


_WIDE = 128  # units; below, conversions to bfloat16 do not pay off
_UPDATES_PER_STREAM = 32  # whose random numbers are drawn at once: to make a stream takes longer than to draw from it

C = TypeVar("C", bound=ReplayActorCriticConfig)


class ReplayActorCriticLearner(ReplayLearner[C]):
    """Trains critics by TD learning, and the policy by the critics. A subclass implements `bootstrap` and `actor_step`.

    Both are called without autograd: the slopes of losses are written out, see `policies.passes`. Both compute
    gradients at the parameters before the update, so that two threads can do it at the same time.
    `batch.noise` (B, 2, n) is standard normal: [:, 0] for actions at the next observations, [:, 1] at the observations.
    """

    network: Actor

    _noise: tuple[int, Array] | None = None  # of a block of updates

    def make_networks(self) -> None:
        config, space = self.config, self.policy.action_space
        self.is_discrete = isinstance(space, spaces.Discrete)
        actions = self.distribution.num_params if self.is_discrete else 0
        options = CriticOptions(config.num_critics, config.critic_hiddens, config.critic_norm, config.critic_dropout)
        generator = torch.Generator().manual_seed(seed_for(config.seed, "critics"))
        self._num_inputs = 0 if self.is_discrete else self.distribution.shape[0]
        leaves, model = self.policy.seen, self.policy.spec.model
        self.critics = Critics(leaves, model, options, self._num_inputs, actions or 1, generator)
        self.critics_flat = self.add_network("critics", self.critics)
        self.critics.eval()
        if config.use_target_network:
            self.target = self.add_target("target", self.critics, self.critics_flat)

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        settings, scale = self.config.optimizer, self.config.critic_lr_scale
        return [
            ParameterGroup("actor", self.policy.parameters, self.policy.flat, settings, is_fused=True),
            ParameterGroup("critics", list(self.critics.parameters()), self.critics_flat, settings, scale, True),
        ]

    @cached_property
    def is_traced(self) -> bool:
        """If neither the networks nor the loss use autograd."""
        is_plain = self.critics.is_written_out and self.network.is_written_out
        return self.can_trace and is_plain and not self.is_discrete and not self.config.critic_dropout

    def exploration(self) -> dict[str, float]:
        settings = self.config.exploration_config
        assert isinstance(settings, ActorExplorationConfig)
        return settings.values(self.timesteps)

    # One update.

    @abstractmethod
    def bootstrap(self, batch: TransitionBatch) -> tuple[Tensor | None, NextValue]:
        """(actions at the next observations, None for discrete actions; the function of the critics' values there)."""

    @abstractmethod
    def actor_step(self, batch: TransitionBatch, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        """One update of the policy: (gradient norm, metrics)."""

    def step(self, batch: TransitionBatch, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        if self.config.critic_dropout:
            self._draw_dropout()
        steps: dict[str, Step] = {"grad_norm": self.critic_step}
        if self.updates % self.config.policy_delay == 0:
            steps["actor_grad_norm"] = self.actor_step
        is_captured = (self.captures and not self.config.critic_dropout) or self.is_traced
        metrics = (self.captured_together if is_captured else self.together)(steps, batch, lr)
        return metrics.pop("grad_norm"), metrics

    def with_noise(self, batch: TransitionBatch, number: int) -> TransitionBatch:
        if self.is_discrete:
            return batch
        rows = self.part_of(len(batch))  # with several learners, the numbers are drawn for all their parts
        block, i = divmod(number, _UPDATES_PER_STREAM)
        if self._noise is None or self._noise[0] != block:
            rng = stream(self.config.seed, "actions of updates", block)
            shape = _UPDATES_PER_STREAM, rows.total, 2, self._num_inputs
            self._noise = block, rng.standard_normal(shape, "float32")
        batch.noise = self.tensor(self._noise[1][i, rows.rows])
        return batch

    def _draw_dropout(self) -> None:
        generator = torch.Generator(self.device).manual_seed(seed_for(self.config.seed, "dropout", self.updates))
        share = None if self.communicator is None else self.communicator.share
        part = None if share is None else (share.begin, share.end, share.total)
        for network in (self.critics, *((self.target.network,) if self.config.use_target_network else ())):
            network.set_dropout(generator, part)

    @torch.no_grad()
    def critic_step(self, batch: TransitionBatch, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        """One update of the critics towards r + γ' V(s')."""
        values, following, gradients = self._values(batch)
        errors = batch.rewards + batch.discounts * following - values  # (N, B)
        weighted = batch.weights * errors
        loss = (weighted * errors).mean(-1).sum()
        slopes = weighted * (-2 / int(values.shape[1]))  # ∂loss / ∂values
        norm = self.optimizer.apply(gradients(slopes), lr, self.config.grad_clip, ["critics"])
        return norm, {"critic_loss": loss, "q_mean": values.mean(), "errors": errors.abs().mean(0)}

    def _values(self, batch: TransitionBatch) -> tuple[Tensor, Tensor, Gradients]:
        """(values of the actions taken (N, B), the value to bootstrap from (B,), the gradients of the former)."""
        actions = None if self.is_discrete else batch.actions
        next_actions, next_value = self.bootstrap(batch)
        if self.config.use_target_network:
            following = next_value(self.target.network(batch.next_observations, next_actions))
            forward = self.critics.record(batch.observations, actions)
            values = self._taken(forward.outputs, batch)
            return values, following, lambda slopes: forward.weight_gradients(self._of_outputs(slopes, batch))
        # CrossQ: one forward pass, so that the moments of batch normalisation are those of both distributions.
        pairs = zip(batch.observations, batch.next_observations, strict=True)
        both = None if actions is None or next_actions is None else torch.cat([actions, next_actions])
        self.critics.train()
        forward = self.critics.record(tuple(torch.cat(pair) for pair in pairs), both)
        self.critics.eval()
        present, after = forward.outputs.chunk(2, 1)

        def gradients(slopes: Tensor) -> Sequence[Tensor]:
            return forward.weight_gradients(torch.cat([self._of_outputs(slopes, batch), torch.zeros_like(after)], 1))

        return self._taken(present, batch), next_value(after), gradients

    def _taken(self, values: Tensor, batch: TransitionBatch) -> Tensor:
        """The values of the actions taken: (N, B, 1 or A) to (N, B)."""
        if not self.is_discrete:
            return values.squeeze(-1)
        return values.gather(-1, batch.actions.expand(len(values), -1)[..., None]).squeeze(-1)

    def _of_outputs(self, slopes: Tensor, batch: TransitionBatch) -> Tensor:
        """The slopes of `_taken` (N, B) as those of the critics' outputs (N, B, 1 or A)."""
        if not self.is_discrete:
            return slopes[..., None]
        outputs = slopes.new_zeros(*slopes.shape, self.distribution.num_params)
        return outputs.scatter_(-1, batch.actions.expand(len(slopes), -1)[..., None], slopes[..., None])
