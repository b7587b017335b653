"""The actor-critic network: a policy and a value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outplay.errors import ConfigError
from outplay.groups import ModelConfig
from outplay.policies.network import Network
from outplay.policies.recurrent import Memory
from outplay.spaces import Leaf


class ActorCritic(Network):
    """A policy and a value over the same observations, with shared or separate layers."""

    value_mean: Tensor
    value_scale: Tensor

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        num_params: int,
        num_constant: int,
        config: ModelConfig,
        with_value: bool,
        generator: torch.Generator,
        num_previous: int = 0,
    ) -> None:
        """`num_params`: parameters of the action distribution. The last `num_constant` do not depend on the
        observation."""
        super().__init__(leaves, config, generator, num_previous)
        shares = config.vf_share_layers
        if self.core is not None and shares is False:
            raise ConfigError("model.vf_share_layers: in recurrent networks, policy and value share their layers")
        self.shares_layers = self.core is not None or (self.has_images if shares is None else shares)
        self.with_value = with_value
        # A Gaussian's standard deviation does not depend on the observation.
        self.log_std = nn.Parameter(torch.full((num_constant,), config.initial_log_std)) if num_constant else None
        if self.embeddings is not None and num_constant:
            raise ConfigError("model.action_embeddings needs a Discrete action space")
        num_outputs = self._num_outputs(num_params - num_constant)
        self.policy_head = nn.Linear(self.num_hidden, num_outputs, bias=config.use_bias)
        if with_value:
            if not self.shares_layers:
                own = self.is_custom or any(True for _ in self.encoder.parameters())
                self.value_encoder = self._make_encoder()[0] if own else self.encoder
                self.value_hidden = self._make_hidden()
            self.value_head = nn.Linear(self.num_hidden, 1)  # always with a bias: value normalisation adjusts it
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_scale", torch.ones(()))
        self._initialize(generator, {self.policy_head: 0.01, **({self.value_head: 1.0} if with_value else {})})

    def _trunks(self) -> list[nn.Module]:
        separate = self.with_value and not self.shares_layers
        return [*super()._trunks(), *([self.value_encoder, self.value_hidden] if separate else [])]

    @property
    def values_when_acting(self) -> bool:
        """Whether acting also computes values: with shared layers the cost is small. Else the learner computes them."""
        return self.with_value and self.shares_layers

    def is_for_acting(self, name: str) -> bool:
        return self.values_when_acting or not name.startswith("value_")

    def _params(self, hidden: Tensor, observations: tuple[Tensor, ...]) -> Tensor:
        params = self._scores(self.policy_head(hidden), observations)
        return params if self.log_std is None else torch.cat([params, self.log_std.expand(params.shape[0], -1)], -1)

    @torch.no_grad()
    def head(self) -> tuple[Tensor, Tensor] | None:
        """Head for the parameters of the action distribution and, with shared layers, the value."""
        if self.embeddings is not None:
            return None
        rows: list[Tensor] = [self.policy_head.weight]
        bias: Tensor | None = self.policy_head.bias
        biases = [rows[0].new_zeros(len(rows[0])) if bias is None else bias]
        if self.log_std is not None:
            rows.append(rows[0].new_zeros(len(self.log_std), rows[0].shape[1]))
            biases.append(self.log_std)
        if self.values_when_acting:
            rows.append(self.value_head.weight * self.value_scale)
            biases.append(self.denormalised(self.value_head.bias))
        return torch.cat(rows), torch.cat(biases)

    def policy(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        """The parameters of the action distribution, (B, P)."""
        return self._params(self._last_hidden(observations, memory), observations)

    def normalised_value(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        """The value before denormalisation, (B,): the raw output of the value head."""
        if self.shares_layers:
            hidden = self._last_hidden(observations, memory)
        else:
            hidden = self._features(self.value_encoder, self.value_hidden, observations)
        return self.value_head(hidden).squeeze(-1)  # type: ignore[no-any-return]

    def value(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        """The value in units of reward, (B,)."""
        return self.denormalised(self.normalised_value(observations, memory))

    def denormalised(self, value: Tensor) -> Tensor:
        return value * self.value_scale + self.value_mean

    def normalised(self, value: Tensor) -> Tensor:
        return (value - self.value_mean) / self.value_scale

    def both(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> tuple[Tensor, Tensor]:
        """(policy(), normalised_value()) for the same observations. Shared layers are computed once."""
        if not self.shares_layers:
            return self.policy(observations), self.normalised_value(observations)
        hidden = self._last_hidden(observations, memory)
        return self._params(hidden, observations), self.value_head(hidden).squeeze(-1)
