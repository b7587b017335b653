"""Networks: from observations to the parameters of an action distribution, and to a value."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.config import ModelConfig
from outplay.errors import ConfigError
from outplay.memory import check_parameters
from outplay.spaces import Leaf

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "linear": nn.Identity,
}
# Mnih et al., Nature 2015, for images of about 84 × 84; small ones keep their size.
_LARGE_IMAGE = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
_SMALL_IMAGE = [(16, 3, 1), (32, 3, 1)]
_LARGE = 36
FURTHEST = 10.0  # a normalised number is cut there

Normaliser = tuple[Tensor, Tensor]  # what is subtracted, and what is multiplied by then
Normalisers = list[Normaliser | None]  # one for each leaf


class Encoder(nn.Module):
    """Observations become one vector of features: images by convolutions, choices as one-hot, numbers as they are."""

    def __init__(self, leaves: tuple[Leaf, ...], model: ModelConfig) -> None:
        super().__init__()
        self.leaves = leaves
        self.is_sparse = model.sparse_inputs
        self.keeps_bytes = model.sparse_inputs and len(leaves) == 1 and isinstance(leaves[0].space, spaces.Box)
        self.convolutions = nn.ModuleList(_convolutions(leaf, model) for leaf in leaves if leaf.is_image)
        self.num_features = sum(
            _conv_features(self.convolutions[i], leaf)
            for i, leaf in enumerate(leaf for leaf in leaves if leaf.is_image)
        ) + sum(_flat_features(leaf) for leaf in leaves if not leaf.is_image)

    def forward(self, observations: tuple[Tensor, ...], normalisers: Normalisers, dtype: torch.dtype) -> Tensor:
        """Of observations that were arranged, with normalisers in `dtype`, which images are to have."""
        if self.keeps_bytes and normalisers[0] is None:
            return observations[0].reshape(len(observations[0]), -1)
        convolutions = iter(self.convolutions)
        parts = [
            next(convolutions)(_as_image(x, normaliser, dtype)).flatten(1)
            if leaf.is_image
            else _as_features(x, leaf, normaliser)
            for x, leaf, normaliser in zip(observations, self.leaves, normalisers, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _as_image(x: Tensor, normaliser: Normaliser | None, dtype: torch.dtype) -> Tensor:
    """In [0, 1], or normalised."""
    image = x.to(dtype, copy=True)
    return image.div_(255.0) if normaliser is None else image.sub_(normaliser[0]).mul_(normaliser[1])


def _arranged(x: Tensor, leaf: Leaf) -> Tensor:
    """Images of any layout as (B, C, H, W), with the channels last in memory: convolutions on CPUs are faster so."""
    shape = leaf.shape
    if len(shape) == 2:
        return x.unsqueeze(1).contiguous(memory_format=torch.channels_last)
    if len(shape) == 4:  # stacked frames with channels last
        return x.permute(0, 1, 4, 2, 3).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    if shape[-1] < shape[0]:
        return x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return torch.stack(x.unbind(1), -1).permute(0, 3, 1, 2)  # twice as fast as contiguous()


def _as_features(x: Tensor, leaf: Leaf, normaliser: Normaliser | None) -> Tensor:
    space = leaf.space
    if normaliser is not None:
        mean, scale = normaliser
        x = x.float() if x.dtype == torch.bool else x
        x = ((x - mean) * scale).clamp(-FURTHEST, FURTHEST)
    if isinstance(space, spaces.Discrete):
        # Clamped: what is out of range is told with the environment's name when the Fragment is whole.
        return nn.functional.one_hot((x.long() - int(space.start)).clamp(0, int(space.n) - 1), int(space.n)).float()
    if isinstance(space, spaces.MultiDiscrete):
        shifted = (x.long() - torch.as_tensor(space.start, device=x.device)).reshape(len(x), -1)
        hot = [
            nn.functional.one_hot(part.clamp(0, int(n) - 1), int(n))
            for part, n in zip(shifted.unbind(-1), space.nvec.ravel(), strict=True)
        ]
        return torch.cat(hot, -1).float()
    return x.reshape(len(x), -1).float()


def _flat_features(leaf: Leaf) -> int:
    if isinstance(leaf.space, spaces.Discrete):
        return int(leaf.space.n)
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return int(leaf.space.nvec.sum())
    return int(np.prod(leaf.shape))


def _convolutions(leaf: Leaf, model: ModelConfig) -> nn.Sequential:
    example = _arranged(torch.zeros(1, *leaf.shape), leaf)
    chosen = model.conv_filters or (_LARGE_IMAGE if min(example.shape[-2:]) >= _LARGE else _SMALL_IMAGE)
    channels, layers = example.shape[1], []
    for out, kernel, stride in chosen:
        check_parameters(channels * out * kernel * kernel, "model.conv_filters")
        layers += [nn.Conv2d(channels, out, kernel, stride, bias=model.use_bias), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _conv_features(layers: nn.Module, leaf: Leaf) -> int:
    example = _arranged(torch.zeros(1, *leaf.shape), leaf)
    try:
        with torch.no_grad():
            return int(layers(example).numel())
    except RuntimeError as error:
        raise ConfigError(f"model.conv_filters do not fit an image of {tuple(example.shape[-2:])}: {error}") from error


class SparseLinear(nn.Module):
    """A linear layer that reads only what is not zero, (B, n) to (B, m). Its weight is (n, m): a row for each input."""

    def __init__(self, num_inputs: int, num_outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = set_entries(x)
        begins = torch.searchsorted(rows, torch.arange(len(x), device=x.device))
        values = x[rows, columns].to(self.weight.dtype)
        summed = nn.functional.embedding_bag(columns, self.weight, begins, mode="sum", per_sample_weights=values)
        return summed if self.bias is None else summed + self.bias


def set_entries(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) of what is not zero, row by row. Bytes are looked at in words of eight: most of them are empty.

    >>> set_entries(torch.tensor([[0, 3], [1, 0]]))
    (tensor([0, 1]), tensor([1, 0]))
    """
    if x.dtype != torch.int8 or x.shape[1] % 8:
        rows, columns = x.nonzero(as_tuple=True)
        return rows, columns
    words = x.contiguous().view(torch.int64)
    rows, columns = words.nonzero(as_tuple=True)
    inside, byte = words[rows, columns].view(torch.int8).view(-1, 8).nonzero(as_tuple=True)
    return rows[inside], columns[inside] * 8 + byte


def _mlp(sizes: list[int], activation: type[nn.Module], model: ModelConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    check_parameters(sum(a * b for a, b in pairwise(sizes)), "model.fcnet_hiddens")
    for i in range(len(sizes) - 1):
        kind = SparseLinear if model.sparse_inputs and i == 0 else nn.Linear
        layers += [kind(sizes[i], sizes[i + 1], bias=model.use_bias), activation()]
    return nn.Sequential(*layers)


@torch.no_grad()
def initialised(module: nn.Module, initializer: str, generator: torch.Generator, gain: float) -> None:
    """Give a layer its first weights: orthogonal, times `gain`; or normal with deviation 1/√inputs."""
    if not hasattr(module, "weight"):
        return
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    is_sparse = isinstance(module, SparseLinear)
    # Conv weights lie channels-last; orthogonal_ wants them plain.
    first = torch.empty(weight.T.shape if is_sparse else weight.shape)
    if initializer == "normal":
        first.normal_(generator=generator).div_(first[0].numel() ** 0.5)
    else:
        nn.init.orthogonal_(first, gain, generator=generator)
    weight.copy_(first.T if is_sparse else first)
    if isinstance(bias, Tensor):
        bias.zero_()


class Network(nn.Module):
    """What all networks share: from observations to the last hidden layer, through `encoder` and `hidden`.

    The normalisers are part of it, as buffers: so they travel with the weights, are saved with them, and do not change
    while experience is collected or the policy is evaluated.
    """

    default_hiddens: ClassVar[list[int]] = [64, 64]
    default_activation: ClassVar[str] = "tanh"

    encoder: Encoder
    hidden: nn.Sequential

    def __init__(self, leaves: tuple[Leaf, ...], model: ModelConfig) -> None:
        super().__init__()
        self.leaves = leaves
        self.has_images = any(leaf.is_image for leaf in leaves)
        hiddens = [512] if self.has_images else self.default_hiddens
        hiddens = model.fcnet_hiddens if model.fcnet_hiddens is not None else hiddens
        if model.sparse_inputs and (self.has_images or not hiddens):
            raise ConfigError("model.sparse_inputs: the first layer must be one of fcnet_hiddens, not a convolution")
        self._model = model
        self._activation = _ACTIVATIONS[
            model.fcnet_activation or ("relu" if self.has_images else self.default_activation)
        ]
        self.encoder = Encoder(leaves, model)
        self._sizes = [self.encoder.num_features, *hiddens]
        self.num_hidden = self._sizes[-1]
        self.hidden = self._make_hidden()
        for i, leaf in enumerate(leaves):
            if is_normalisable(leaf):
                self.register_buffer(f"observation_mean_{i}", torch.zeros(leaf.shape))
                self.register_buffer(f"observation_scale_{i}", torch.ones(() if leaf.is_image else leaf.shape))
        self.normalises = False
        self.autocasts = model.precision == "bfloat16"
        self.dtype = torch.bfloat16 if self.autocasts else torch.float32
        self._still: tuple[Normalisers, dict[nn.Module, nn.Module]] | None = None

    def _make_hidden(self) -> nn.Sequential:
        return _mlp(self._sizes, self._activation, self._model)

    def _trunks(self) -> list[nn.Module]:
        """The layers that `_features` goes through."""
        return [self.encoder, self.hidden]

    def normalisers(self) -> Normalisers:
        """(mean, scale) of each leaf that is normalised; those of images as images are."""
        normalisers: Normalisers = [None] * len(self.leaves)
        for i, leaf in enumerate(self.leaves):
            if self.normalises and is_normalisable(leaf):
                mean, scale = getattr(self, f"observation_mean_{i}"), getattr(self, f"observation_scale_{i}")
                if leaf.is_image:
                    mean, scale = _arranged(mean[None], leaf).to(self.dtype), scale.to(self.dtype)
                normalisers[i] = (mean, scale)
        return normalisers

    def head(self) -> tuple[Tensor, Tensor] | None:
        """What acting asks for as a linear function of the last hidden layer, (weight, bias); None if it is not one."""
        return None

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it: not where sizes depend on values, or constants come from the host."""
        kinds = (spaces.MultiDiscrete, spaces.Discrete)
        return not self.encoder.is_sparse and not any(isinstance(leaf.space, kinds) for leaf in self.leaves)

    @property
    def lowers(self) -> bool:
        """Whether acting takes a copy of the weights in lower precision."""
        return self.autocasts and self.has_images

    @property
    def stands_still(self) -> bool:
        return self._still is not None

    @torch.no_grad()
    def stand_still(self) -> None:
        """The weights are new, and stay until this is called again: what follows from them alone is computed now."""
        if self._still is None:
            parts = self._trunks()
            self._still = ([], {part: copy.deepcopy(part).to(self.dtype) if self.lowers else part for part in parts})
        for part, still in self._still[1].items():
            if still is not part:
                for parameter, new in zip(still.parameters(), part.parameters(), strict=True):
                    parameter.copy_(new)
        normalisers = self.normalisers()
        if not self._still[0]:
            self._still[0][:] = normalisers
        for held, normaliser in zip(self._still[0], normalisers, strict=True):  # in their old places, for CUDA graphs
            if held is not None and normaliser is not None:
                held[0].copy_(normaliser[0])
                held[1].copy_(normaliser[1])

    def arranged(self, observations: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Observations as the other methods take them: images are laid out as convolutions want them."""
        return tuple(
            _arranged(x, leaf) if leaf.is_image else x for x, leaf in zip(observations, self.leaves, strict=True)
        )

    def _features(self, encoder: nn.Module, hidden: nn.Module, observations: tuple[Tensor, ...]) -> Tensor:
        """The last hidden layer. Lower precision ends there: outputs are computed in float32."""
        normalisers = self.normalisers() if self._still is None else self._still[0]
        features: Tensor
        if self._still is not None and (still := self._still[1])[hidden] is not hidden:
            features = still[hidden](still[encoder](observations, normalisers, self.dtype).to(self.dtype))
        elif self.autocasts:
            with torch.autocast(observations[0].device.type, torch.bfloat16, cache_enabled=False):
                features = hidden(encoder(observations, normalisers, self.dtype))
        else:
            features = hidden(encoder(observations, normalisers, self.dtype))
        return features.float()

    @property
    def base_model(self) -> Self:
        return self

    def summary(self) -> str:
        """Print, and return, a table of the layers and the number of their parameters."""
        rows = [
            (name or "(own)", type(module).__name__, f"{count:,}")
            for name, module in self.named_modules()
            if (count := sum(p.numel() for p in module.parameters(recurse=False)))
        ]
        width = max(len(name) for name, _, _ in rows)
        lines = [f"{name:<{width}}  {kind:<10} {count:>12}" for name, kind, count in rows]
        total = sum(p.numel() for p in self.parameters())
        text = "\n".join([*lines, f"{'total':<{width}}  {'':<10} {total:>12,}"])
        print(text)
        return text


class ActorCritic(Network):
    """A policy and a value over the same observations, with shared or separate layers."""

    value_mean: Tensor
    value_scale: Tensor

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        num_params: int,
        num_constant: int,
        model: ModelConfig,
        with_value: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(leaves, model)
        self.shares_layers = model.vf_share_layers if model.vf_share_layers is not None else self.has_images
        self.with_value = with_value
        # A Gaussian's spread does not depend on the observation: it comes after the parameters that do.
        self.log_std = nn.Parameter(torch.zeros(num_constant)) if num_constant else None
        self.policy_head = nn.Linear(self.num_hidden, num_params - num_constant, bias=model.use_bias)
        if with_value:
            if not self.shares_layers:
                self.value_encoder = Encoder(leaves, model) if self.has_images else self.encoder
                self.value_hidden = self._make_hidden()
            self.value_head = nn.Linear(self.num_hidden, 1)  # with a bias, which follows the scale of the values
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_scale", torch.ones(()))
        for module in self.modules():
            gain = 2**0.5
            if module is self.policy_head:
                gain = 0.01
            elif with_value and module is self.value_head:
                gain = 1.0
            initialised(module, model.initializer, generator, gain)

    def _trunks(self) -> list[nn.Module]:
        separate = self.with_value and not self.shares_layers
        return [*super()._trunks(), *([self.value_encoder, self.value_hidden] if separate else [])]

    def _params(self, hidden: Tensor) -> Tensor:
        params: Tensor = self.policy_head(hidden)
        return params if self.log_std is None else torch.cat([params, self.log_std.expand(len(params), -1)], -1)

    @torch.no_grad()
    def head(self) -> tuple[Tensor, Tensor]:
        """The parameters of the action distribution, and with shared layers the value."""
        rows: list[Tensor] = [self.policy_head.weight]
        bias: Tensor | None = self.policy_head.bias
        biases = [rows[0].new_zeros(len(rows[0])) if bias is None else bias]
        if self.log_std is not None:
            rows.append(rows[0].new_zeros(len(self.log_std), rows[0].shape[1]))
            biases.append(self.log_std)
        if self.with_value and self.shares_layers:
            rows.append(self.value_head.weight * self.value_scale)
            biases.append(self.denormalised(self.value_head.bias))
        return torch.cat(rows), torch.cat(biases)

    def policy(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The parameters of the action distribution, (B, P)."""
        return self._params(self._features(self.encoder, self.hidden, observations))

    def normalised_value(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The value as the network says it, (B,): `value()` without the normaliser."""
        if self.shares_layers:
            hidden = self._features(self.encoder, self.hidden, observations)
        else:
            hidden = self._features(self.value_encoder, self.value_hidden, observations)
        return self.value_head(hidden).squeeze(-1)  # type: ignore[no-any-return]

    def value(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The value in units of reward, (B,)."""
        return self.denormalised(self.normalised_value(observations))

    def denormalised(self, value: Tensor) -> Tensor:
        return value * self.value_scale + self.value_mean

    def normalised(self, value: Tensor) -> Tensor:
        return (value - self.value_mean) / self.value_scale

    def both(self, observations: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """`policy()` and `normalised_value()` of the same observations, through shared layers once."""
        if not self.shares_layers:
            return self.policy(observations), self.normalised_value(observations)
        hidden = self._features(self.encoder, self.hidden, observations)
        return self._params(hidden), self.value_head(hidden).squeeze(-1)


def is_normalisable(leaf: Leaf) -> bool:
    return isinstance(leaf.space, spaces.Box)
