"""Policies of off-policy actor-critic algorithms: actions in [−1, 1], which are mapped to the bounds of a Box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from outplay.errors import ConfigError, EnvError
from outplay.policies.actor_critic import ActorCritic
from outplay.policies.distributions import ActingDistribution, distribution_for
from outplay.policies.fused import ACTIVATIONS, Layers, MLPPass, mlp
from outplay.policies.passes import AutogradPass, ForwardPass
from outplay.policies.policy import Policy
from outplay.policies.recurrent import Memory
from outplay.policies.scaling import bounds
from outplay.policies.spec import PolicySpec
from outplay.policies.squashed import Deterministic, SquashedGaussian
from outplay.spaces import in_one_line

Array = np.ndarray

NOISE = "noise"  # in the state of a policy: noise that is correlated from step to step


class Actor(ActorCritic):
    """The policy network: larger than that of on-policy algorithms, which learn from each step only once."""

    default_hiddens: ClassVar[list[int]] = [256, 256]
    default_activation: ClassVar[str] = "relu"
    may_act_in_float32: ClassVar[bool] = True

    is_fused = True  # whether the layers are one function of torch.autograd, which cannot be exported

    _fused: Layers | None = None

    def policy(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        is_precise = self.autocasts and self.acts_in_float32
        if not self.is_fused or self.is_frozen or not self._is_plain or is_precise:
            return super().policy(observations, memory)
        return mlp(self.inputs(observations), self._layers())[0]

    @property
    def is_written_out(self) -> bool:
        """Whether `record` has a backward pass that is written out, without autograd."""
        return self._is_plain and not self.encoder_is_trained

    def record(self, observations: tuple[Tensor, ...]) -> ForwardPass:
        """The parameters of the action distribution (B, P), with their gradients for given slopes."""
        if not self.is_written_out:
            return AutogradPass(lambda _: self.policy(observations), list(self.parameters()))
        return _OnePass(self._layers().run(self.inputs(observations)))

    def _layers(self) -> Layers:
        if self._fused is None or not self._fused.is_valid:
            linear = [layer for layer in (*self.hidden, self.policy_head) if isinstance(layer, nn.Linear)]
            tensors = [tensor for layer in linear for tensor in (layer.weight, layer.bias)]
            self._fused = Layers(tensors, self._activation, self.dtype, is_one=True)
        return self._fused

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the network is an MLP and nothing else."""
        layers = [*list(self.hidden)[::2], self.policy_head]
        if self.core is not None or self.log_std is not None or self.has_images or self._activation not in ACTIVATIONS:
            return False
        return all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)


class _OnePass:
    """The pass of one MLP: (B, P) in place of (1, B, P)."""

    def __init__(self, run: MLPPass) -> None:
        self._run, self.outputs = run, run.outputs[0]

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        return self._run.weight_gradients(slopes[None])

    def input_gradient(self, slopes: Tensor) -> Tensor:
        return self._run.input_gradient(slopes[None])


class BoxPolicy(Policy):
    """What the policies in this file share: a squashed normal distribution for a Box, a categorical one for Discrete.

    While exploring, actions are uniformly random if "random_actions" of the exploration values is 1.
    """

    name: ClassVar[str]
    takes_discrete: ClassVar[bool] = True
    samples_distribution = False  # some actions are random

    def __init__(self, spec: PolicySpec) -> None:
        check_space(spec, self.name, self.takes_discrete)
        super().__init__(spec)
        self.exploration = {"random_actions": 0.0}

    def _make_distribution(self) -> ActingDistribution:
        space = self.action_space
        return SquashedGaussian(math.prod(space.shape or ())) if is_box(space) else distribution_for(space)

    def _make_network(self, generator: torch.Generator) -> ActorCritic:
        sizes = self.distribution.num_params, self.distribution.num_constant
        return Actor(self.seen, *sizes, self.spec.model, False, generator, self._previous.size)

    def _act_at_random(self) -> None:
        self.exploration = {**self.exploration, "random_actions": 1.0}

    def _choose(self, params: Array, mask: Array | None, explore: bool, rng: np.random.Generator) -> Array:
        if explore and self.exploration["random_actions"]:
            if is_box(self.action_space):
                return self._scaling.uniform(len(params), rng)
            return self.distribution.sample(np.where(params > -1e29, np.float32(0), params), rng)
        return super()._choose(params, mask, explore, rng)


@dataclass(frozen=True)
class SamplingOptions:
    """How SAC samples: `correlation` is that of the noise of two consecutive actions."""

    correlation: float


class SoftPolicy(BoxPolicy):
    """The policy of SAC.

    With `SamplingOptions`, the standard normal noise of the sampled actions is a stationary autoregressive process:
    each action has the policy's distribution, and consecutive ones are correlated. The noise is part of the policy's
    state, and drawn anew in each episode (NaN before).
    """

    name = "SAC"

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        options: SamplingOptions | None = spec.options
        self.correlation = 0.0 if options is None else options.correlation
        if self.correlation and not is_box(self.action_space):
            raise ConfigError(
                "exploration_config.noise_correlation is for continuous actions, and this action space is "
                f"{in_one_line(self.action_space)}; leave it out"
            )

    @staticmethod
    def options_from(config: Any) -> SamplingOptions | None:
        correlation = config.exploration_config.noise_correlation
        return SamplingOptions(correlation) if correlation else None

    def initial_state(self, lanes: int) -> dict[str, Array]:
        state = super().initial_state(lanes)
        if not self.correlation:
            return state
        return {**state, NOISE: np.full((lanes, *self.distribution.shape), np.nan, np.float32)}

    def act(
        self,
        observations: tuple[Array, ...],
        state: dict[str, Array],
        mask: Array | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        is_correlated = self.correlation and explore and not self.exploration["random_actions"]
        if not is_correlated:
            return super().act(observations, state, mask, explore, rng)
        _, state, extras = super().act(observations, state, mask, False, rng)
        assert isinstance(self.distribution, SquashedGaussian)
        before, fresh = state[NOISE], rng.standard_normal(state[NOISE].shape, np.float32)
        noise = np.float32(self.correlation) * before + np.float32(math.sqrt(1 - self.correlation**2)) * fresh
        noise = np.where(np.isnan(before), fresh, noise)
        return self.distribution.with_noise(extras["dist"], noise), {**state, NOISE: noise}, extras


class ConservativePolicy(BoxPolicy):
    """The policy of CQL: that of SAC, without random actions."""

    name = "CQL"


class GaussianPolicy(BoxPolicy):
    """The policy of IQL: a normal distribution that is clipped to the Box, a categorical one for Discrete actions."""

    name = "IQL"

    def _make_distribution(self) -> ActingDistribution:
        return distribution_for(self.action_space)


@dataclass(frozen=True)
class NoiseOptions:
    """The Ornstein-Uhlenbeck process; None: the noise is Gaussian."""

    theta: float
    sigma: float


class DeterministicPolicy(BoxPolicy):
    """The policy of TD3 and DDPG: one action per observation. While exploring, noise is added to it.

    The standard deviation of Gaussian noise comes with the Weights as "stddev". With `NoiseOptions`, the noise is an
    Ornstein-Uhlenbeck process, which is part of the policy's state and starts at 0 in each episode; "stddev" is a
    factor on it.
    """

    name = "TD3"
    takes_discrete = False

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.process: NoiseOptions | None = spec.options
        self.exploration = {"random_actions": 0.0, "stddev": 0.0}

    @staticmethod
    def options_from(config: Any) -> NoiseOptions | None:
        exploration = config.exploration_config
        if exploration.type != "OrnsteinUhlenbeckNoise":
            return None
        return NoiseOptions(exploration.ou_theta, exploration.ou_sigma)

    def _make_distribution(self) -> ActingDistribution:
        return Deterministic(math.prod(self.action_space.shape or ()))

    def initial_state(self, lanes: int) -> dict[str, Array]:
        state = super().initial_state(lanes)
        return (
            state if self.process is None else {**state, NOISE: np.zeros((lanes, *self.distribution.shape), np.float32)}
        )

    def act(
        self,
        observations: tuple[Array, ...],
        state: dict[str, Array],
        mask: Array | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        actions, state, extras = super().act(observations, state, mask, explore, rng)
        if not explore or self.exploration["random_actions"]:
            return actions, state, extras
        noise = rng.standard_normal(actions.shape, np.float32)
        if self.process is not None:
            before = state[NOISE]
            noise = before - self.process.theta * before + self.process.sigma * noise
            state = {**state, NOISE: noise}
        return (actions + self.exploration["stddev"] * noise).clip(-1, 1).astype(np.float32), state, extras


def is_box(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, gymnasium.spaces.Box)


def check_space(spec: PolicySpec, algorithm: str, takes_discrete: bool) -> None:
    """Raise EnvError or ConfigError if an actor-critic algorithm with a replay buffer cannot use these actions."""
    space = spec.action_space
    if not is_box(space) and not (takes_discrete and isinstance(space, gymnasium.spaces.Discrete)):
        discrete = " or Discrete" if takes_discrete else ""
        other = "PPO takes any" if takes_discrete else "SAC takes Discrete actions, too, and PPO any"
        raise EnvError(f"{algorithm} needs a Box{discrete} action space, and this one is {in_one_line(space)}; {other}")
    if isinstance(space, gymnasium.spaces.Box):
        if not bounds(space)[2].all():
            raise EnvError(
                f"{algorithm} needs finite bounds of the actions, and this space is {in_one_line(space)}; give the "
                "environment an action space with bounds (gymnasium.wrappers.TransformAction), or use PPO"
            )
        if not spec.normalize_actions:
            raise ConfigError(
                f"normalize_actions: the actions of {algorithm} are in [-1, 1] and are mapped to the space's bounds; "
                "leave it true"
            )
    if spec.model.custom_action_dist is not None:
        raise ConfigError(
            f"model.custom_action_dist: {algorithm} has an action distribution of its own; PPO, A2C and PG take others"
        )
