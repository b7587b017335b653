"""Critics of off-policy actor-critic algorithms: an ensemble of Q-networks, computed together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from outplay.errors import ConfigError
from outplay.groups import ModelConfig
from outplay.memory import check_parameters
from outplay.policies.fused import ACTIVATIONS, Layers, mlp
from outplay.policies.network import Network, initialize
from outplay.policies.passes import AutogradPass, ForwardPass
from outplay.spaces import Leaf

_EPS = 1e-5  # of LayerNorm


@dataclass(frozen=True)
class CriticOptions:
    """How the critics are built.

    `norm`: LayerNorm before each activation, or BatchNorm of the inputs and after each activation.
    `dropout`: probability that a hidden unit is dropped while training.
    """

    number: int = 2
    hiddens: list[int] | None = None  # default: those of the policy
    norm: Literal["layer", "batch"] | None = None
    dropout: float = 0.0


class EnsembleLinear(nn.Module):
    """N linear layers, (N, B, inputs) to (N, B, outputs), in one matrix multiplication."""

    def __init__(self, number: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(number, num_outputs, num_inputs))
        self.bias = nn.Parameter(torch.zeros(number, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], x, self.weight.mT)

    @torch.no_grad()
    def initialize(self, initializer: str, generator: torch.Generator, gain: float) -> None:
        for weight in self.weight:
            layer = nn.Linear(*reversed(weight.shape))
            initialize(layer, initializer, generator, gain)
            weight.copy_(layer.weight)
        self.bias.zero_()


class LayerNorm(nn.Module):
    def __init__(self, number: int, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(number, 1, size))
        self.shift = nn.Parameter(torch.zeros(number, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, nn.functional.layer_norm(x, x.shape[-1:], eps=_EPS), self.scale)


class BatchNorm(nn.Module):
    """Batch normalisation; after `WARM_UP` minibatches, batch renormalisation (Ioffe 2017).

    - While training: by the moments μ, σ of the minibatch, x̂ = (x − μ) / σ. Renormalisation is r x̂ + d, with the
      constants r = σ / σ̄ in [1/3, 3] and d = (μ − μ̄) / σ̄ in [−5, 5], where μ̄, σ̄ are running moments.
    - Otherwise: by the running moments.
    """

    WARM_UP: ClassVar[int] = 100_000
    MOMENTUM: ClassVar[float] = 0.01  # of the running moments
    EPS: ClassVar[float] = 1e-3

    mean: Tensor
    variance: Tensor
    minibatches: Tensor

    def __init__(self, number: int, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(number * size))
        self.shift = nn.Parameter(torch.zeros(number * size))
        self.register_buffer("mean", torch.zeros(number * size))
        self.register_buffer("variance", torch.ones(number * size))
        self.register_buffer("minibatches", torch.zeros(1))  # so far, up to WARM_UP

    def forward(self, x: Tensor) -> Tensor:
        # All critics in one call: their units side by side, (B, N · size).
        flat = x.float().transpose(0, 1).reshape(x.shape[1], -1)
        if self.training:
            r, d = self._correction(flat)
            scale, shift = r * self.scale, torch.addcmul(self.shift, d, self.scale)
            flat = nn.functional.batch_norm(flat, None, None, scale, shift, training=True, eps=self.EPS)
        else:
            flat = nn.functional.batch_norm(flat, self.mean, self.variance, self.scale, self.shift, eps=self.EPS)
        return flat.view(x.shape[1], len(x), -1).transpose(0, 1)

    @torch.no_grad()
    def _correction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(r, d) of a minibatch; then the running moments follow its moments."""
        mean = x.mean(0)
        variance = (x - mean).square_().mean(0)  # on a CPU, torch.var takes several times as long
        running = (self.variance + self.EPS).sqrt()
        is_warm = self.minibatches >= self.WARM_UP  # a tensor: a CUDA graph cannot decide by it
        r = ((variance + self.EPS).sqrt() / running).clamp(1 / 3, 3)
        d = ((mean - self.mean) / running).clamp(-5, 5)
        self.mean.lerp_(mean, self.MOMENTUM)
        self.variance.lerp_(variance, self.MOMENTUM)
        self.minibatches.add_(1).clamp_(max=self.WARM_UP)
        return torch.where(is_warm, r, 1.0), torch.where(is_warm, d, 0.0)


class Dropout(nn.Module):
    """Dropout with masks from a generator of the run, so that they are the same after a resume."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.keep = 1.0 - probability
        self.generator: torch.Generator | None = None  # None: nothing is dropped
        self.part: tuple[int, int, int] | None = None  # the rows are `begin` to `end` of `total`; None: all

    def __deepcopy__(self, memo: dict[int, object]) -> Dropout:
        return Dropout(1.0 - self.keep)  # generators cannot be copied

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None:
            return x
        if self.part is None:
            drawn = torch.rand(x.shape, generator=self.generator, device=x.device)
        else:  # several learners: each has its rows of one mask
            begin, end, total = self.part
            shape = (*x.shape[:-2], total, x.shape[-1])
            drawn = torch.rand(shape, generator=self.generator, device=x.device)[..., begin:end, :]
        return x * (drawn < self.keep).to(x.dtype) / self.keep


class Critics(Network):
    """N Q-functions with one encoder: Q(s, a) of continuous actions, or Q(s, ·) of all discrete ones.

    >>> critics = Critics(leaves, model, CriticOptions(), num_inputs=1, num_outputs=1, generator)
    >>> critics(observations, actions).shape  # (N, B, num_outputs)
    torch.Size([2, 256, 1])
    """

    default_hiddens: ClassVar[list[int]] = [256, 256]
    default_activation: ClassVar[str] = "relu"

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        model: ModelConfig,
        options: CriticOptions,
        num_inputs: int,
        num_outputs: int,
        generator: torch.Generator,
    ) -> None:
        """`num_inputs`: numbers of a continuous action, which are inputs; 0: the outputs are one per action."""
        self._options, self._num_inputs = options, num_inputs  # before super().__init__(), which makes the layers
        if model.action_embeddings is not None:
            raise ConfigError("model.action_embeddings: critics of actor-critic algorithms have none; use DQN or PPO")
        if model.sparse_inputs:
            raise ConfigError("model.sparse_inputs: critics of actor-critic algorithms cannot use it; leave it out")
        hiddens = model.fcnet_hiddens if options.hiddens is None else options.hiddens
        if hiddens is None and model.custom_model is not None:
            hiddens = self.default_hiddens
        super().__init__(leaves, model.model_copy(update={"fcnet_hiddens": hiddens}), generator)
        self._fused: Layers | None = None
        self._is_plain = options.norm is None and not options.dropout and self._activation in ACTIVATIONS
        inputs = self.num_hidden if len(self._sizes) > 1 else self.num_hidden + num_inputs  # without hidden layers
        self.head_layer = EnsembleLinear(options.number, inputs, num_outputs)
        for part in self.encoder.modules() if not self.is_custom else ():
            initialize(part, model.initializer, generator, 2**0.5)
        for layer in (*self.hidden, self.head_layer):
            if isinstance(layer, EnsembleLinear):
                layer.initialize(model.initializer, generator, 1.0 if layer is self.head_layer else 2**0.5)

    def _make_hidden(self) -> nn.Sequential:
        number, norm = self._options.number, self._options.norm
        sizes = [self._sizes[0] + self._num_inputs, *self._sizes[1:]]
        check_parameters(number * sum(a * b for a, b in pairwise(sizes)), "model.fcnet_hiddens")
        layers: list[nn.Module] = [BatchNorm(number, sizes[0])] if norm == "batch" else []
        for inputs, outputs in pairwise(sizes):
            layers.append(EnsembleLinear(number, inputs, outputs))
            if self._options.dropout:
                layers.append(Dropout(self._options.dropout))
            if norm == "layer":
                layers.append(LayerNorm(number, outputs))
            layers.append(self._activation())
            if norm == "batch":
                layers.append(BatchNorm(number, outputs))
        return nn.Sequential(*layers)

    def forward(
        self,
        observations: tuple[Tensor, ...],
        actions: Tensor | None = None,
        trains: bool = True,
        number: int | None = None,
    ) -> Tensor:
        """(N, B, num_outputs), or only the values of the first `number` critics.

        With `trains` false, gradients flow to the actions, but not to the critics.
        """
        with torch.autocast(observations[0].device.type, torch.bfloat16, enabled=self.autocasts and self.has_images):
            x = self.encoder(observations, self.normalisers(), self.dtype).float()
        x = x if actions is None else torch.cat([x, actions], -1)
        if self._is_plain:
            return mlp(x, self._layers(), trains, number)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocasts, cache_enabled=False):
            x = self.hidden(x.expand(self._options.number, -1, -1))
        outputs: Tensor = self.head_layer(x.float())
        return outputs[:number]

    @property
    def is_written_out(self) -> bool:
        """Whether `record` has a backward pass that is written out, without autograd."""
        return self._is_plain and not self.encoder_is_trained

    def record(
        self, observations: tuple[Tensor, ...], actions: Tensor | None = None, number: int | None = None
    ) -> ForwardPass:
        """The same values, with their gradients for given slopes."""
        if self.is_written_out:
            x = self.inputs(observations)
            x = x if actions is None else torch.cat([x, actions], -1)
            return self._layers().run(x, number, self._num_inputs)
        parameters = list(self.parameters())
        return AutogradPass(lambda given: self(observations, given, number is None, number), parameters, actions)

    def _layers(self) -> Layers:
        if self._fused is None or not self._fused.is_valid:
            parts = [part for part in (*self.hidden, self.head_layer) if isinstance(part, EnsembleLinear)]
            tensors = [tensor for part in parts for tensor in (part.weight, part.bias)]
            self._fused = Layers(tensors, self._activation, self.dtype)
        return self._fused

    def set_dropout(self, generator: torch.Generator | None, part: tuple[int, int, int] | None = None) -> None:
        """Drop hidden units by masks of this generator; None: drop nothing.

        `part`: minibatches are rows `begin` to `end` of `total`, and have these rows of the masks.
        """
        for layer in self.hidden:
            if isinstance(layer, Dropout):
                layer.generator, layer.part = generator, part
