"""Q-networks: Q-values of all actions, or distributions of the return (C51, QR)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from outplay.errors import ConfigError
from outplay.groups import ModelConfig
from outplay.memory import check_parameters
from outplay.policies.fused import ACTIVATIONS, Layers
from outplay.policies.network import Network
from outplay.policies.qpass import QPass
from outplay.policies.recurrent import Memory
from outplay.spaces import Leaf


@dataclass(frozen=True)
class QOptions:
    """The options of a QPolicy: its network and its exploration."""

    dueling: bool = True
    distributional: str | None = None  # "c51", "qr"
    num_atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0
    noisy: bool = False
    noisy_sigma: float = 0.5
    epsilon_spread: float = 0.0
    algorithm: str = "DQN"  # in messages


class NoisyLinear(nn.Module):
    """A noisy linear layer with factorised Gaussian noise of learned scale (Fortunato et al. 2018).

    Until `draw` is called with a generator, it uses the mean weights.
    """

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float, bias: bool = True) -> None:
        super().__init__()
        spread = sigma / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_inputs))
        self.weight_spread = nn.Parameter(torch.full((num_outputs, num_inputs), spread))
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None
        self.bias_spread = nn.Parameter(torch.full((num_outputs,), spread)) if bias else None
        self.noise: tuple[Tensor, Tensor] | None = None  # of the inputs and of the outputs

    def draw(self, rng: np.random.Generator | None) -> None:
        """Draw new noise. With None, switch the noise off."""
        if rng is None:
            self.noise = None
            return
        outputs, inputs = self.weight.shape
        x = torch.from_numpy(rng.standard_normal(inputs + outputs, np.float32)).to(self.weight.device)
        x = x.sign() * x.abs().sqrt()
        self.noise = (x[:inputs], x[inputs:])

    def forward(self, x: Tensor) -> Tensor:
        if self.noise is None:
            return nn.functional.linear(x, self.weight, self.bias)
        inputs, outputs = self.noise
        weight = self.weight + self.weight_spread * outputs[:, None] * inputs
        bias = None
        if self.bias is not None and self.bias_spread is not None:
            bias = self.bias + self.bias_spread * outputs
        return nn.functional.linear(x, weight, bias)


class QNetwork(Network):
    """Q-values of all actions: scalars, distributions over atoms (C51) or quantiles (QR)."""

    default_hiddens: ClassVar[list[int]] = [256, 256]
    default_activation: ClassVar[str] = "relu"
    may_act_in_float32: ClassVar[bool] = True

    atoms: Tensor

    _fused: Layers | None = None
    _fused_heads: Sequence[tuple[Tensor, Tensor]] = ()

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        num_actions: int,
        model: ModelConfig,
        q: QOptions,
        generator: torch.Generator,
        num_previous: int = 0,
    ) -> None:
        self.is_noisy, self._sigma = q.noisy, q.noisy_sigma  # before super().__init__(), which creates the layers
        super().__init__(leaves, model, generator, num_previous)
        self.kind = q.distributional
        self.num_actions = num_actions
        self.num_atoms = 1 if self.kind is None else q.num_atoms
        check_parameters(self.num_hidden * num_actions * self.num_atoms, "num_atoms")
        num_outputs = self._num_outputs(num_actions)
        if self.embeddings is not None and q.dueling:
            raise ConfigError("model.action_embeddings needs dueling: false")
        self.advantage_head = self._linear(self.num_hidden, num_outputs * self.num_atoms)
        self.value_head = self._linear(self.num_hidden, self.num_atoms) if q.dueling else None
        # Not part of the weights: the settings determine the atoms.
        self.register_buffer("atoms", torch.linspace(q.v_min, q.v_max, self.num_atoms), persistent=False)
        # Small heads: all initial Q-values are close to 0, so no action is preferred.
        self._initialize(generator, dict.fromkeys(self._heads(), 0.1))

    def _linear(self, inputs: int, outputs: int, bias: bool = True) -> nn.Linear | NoisyLinear:
        return NoisyLinear(inputs, outputs, self._sigma, bias) if self.is_noisy else nn.Linear(inputs, outputs, bias)

    def _make_hidden(self) -> nn.Sequential:
        return nn.Sequential(
            *(
                self._linear(layer.in_features, layer.out_features, layer.bias is not None)
                if isinstance(layer, nn.Linear)
                else layer
                for layer in super()._make_hidden()
            )
        )

    @property
    def acts_in_low_precision(self) -> bool:
        return super().acts_in_low_precision and not self.is_noisy  # a copy would lack the noise

    def _heads(self) -> list[nn.Module]:
        return [self.advantage_head] if self.value_head is None else [self.advantage_head, self.value_head]

    @torch.no_grad()
    def head(self) -> tuple[Tensor, Tensor] | None:
        """Head for the Q-values: value and advantages combined."""
        advantages, value = self.advantage_head, self.value_head
        if self.num_atoms > 1 or not isinstance(advantages, nn.Linear) or self.embeddings is not None:
            return None
        if not isinstance(value, nn.Linear):  # there is none
            return advantages.weight, advantages.bias
        return (
            value.weight + advantages.weight - advantages.weight.mean(0),
            value.bias + advantages.bias - advantages.bias.mean(),
        )

    @property
    def capturable(self) -> bool:
        return super().capturable and not self.is_noisy

    def forward(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        """(B, A, N): values (N = 1), logits of atoms, or quantiles."""
        hidden = self._last_hidden(observations, memory)
        outputs: Tensor = self.advantage_head(hidden).view(hidden.shape[0], -1, self.num_atoms)
        advantages = self._scores(outputs, observations)
        if self.value_head is None:
            return advantages
        value: Tensor = self.value_head(hidden)[:, None]
        return value + advantages - advantages.mean(1, keepdim=True)

    @cached_property
    def is_written_out(self) -> bool:
        """Whether the network has `record`: if it is an MLP for values, and nothing else."""
        layers = [*list(self.hidden)[::2], *self._heads()]
        if self.core is not None or self.kind is not None or self.has_images or self.embeddings is not None:
            return False
        is_plain = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        return is_plain and len(self.hidden) > 0 and self._activation in ACTIVATIONS and not self.encoder_is_trained

    def record(self, observations: tuple[Tensor, ...]) -> QPass:
        """Q-values (B, A) of an MLP, with their gradients for given slopes."""
        if self._fused is None or not self._fused.is_valid:
            linear = [layer for layer in self.hidden if isinstance(layer, nn.Linear)]
            tensors = [tensor for layer in linear for tensor in (layer.weight, layer.bias)]
            self._fused = Layers(tensors, self._activation, self.dtype, True, uses_linear=True, activates_last=True)
            heads = [head for head in self._heads() if isinstance(head, nn.Linear)]
            self._fused_heads = [(head.weight.detach().mT, head.bias.detach()) for head in heads]
        return QPass(self.inputs(observations), self._fused, self._fused_heads)

    def expected(self, outputs: Tensor) -> Tensor:
        """Expected Q-values (B, A) from the network's outputs (B, A, N)."""
        if self.kind == "c51":
            return (outputs.softmax(-1) * self.atoms).sum(-1)
        return outputs.squeeze(-1) if self.num_atoms == 1 else outputs.mean(-1)

    def values(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        return self.expected(self(observations, memory))

    def draw_noise(self, rng: np.random.Generator | None) -> None:
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.draw(rng)
