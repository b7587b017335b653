"""The Network: base class of all networks, from observations to the last hidden layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.errors import ConfigError
from outplay.groups import ModelConfig
from outplay.memory import check_parameters
from outplay.policies.custom import CustomCore, CustomEncoder, FlatEncoder, is_recurrent, make_model
from outplay.policies.encoder import Encoder, Normalisers, embedding_leaf, image_layout, is_normalisable
from outplay.policies.recurrent import Core, Memory, make_core
from outplay.policies.sparse import SparseLinear
from outplay.spaces import Leaf, joined

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "linear": nn.Identity,
}


class Network(nn.Module):
    """Base of all networks: `encoder`, then the hidden layers `hidden`. A subclass adds its heads.

    Observation normalisers are buffers of the network. They are sent and saved with its parameters, and do not change
    during rollouts or evaluation.
    """

    default_hiddens: ClassVar[list[int]] = [64, 64]
    default_activation: ClassVar[str] = "tanh"
    # Whether vectors are acted on in float32 although the network learns in lower precision. Not for on-policy
    # algorithms, which compare probabilities of acting and of learning.
    may_act_in_float32: ClassVar[bool] = False

    encoder: Encoder | CustomEncoder | FlatEncoder
    hidden: nn.Sequential
    preprocessor: nn.Module | None  # from observations to those with `leaves`; set by the policy

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        config: ModelConfig,
        generator: torch.Generator | None = None,
        num_previous: int = 0,
    ) -> None:
        """`generator`: for the weights of a custom model. `num_previous`: inputs of the recurrent core for the previous
        action and reward."""
        super().__init__()
        self.leaves = leaves
        self.preprocessor = None
        self.embeddings = embedding_leaf(leaves, config.action_embeddings)
        self.is_custom = config.custom_model is not None
        self.has_images = any(leaf.is_image for leaf in leaves) and not self.is_custom
        hiddens = [] if self.is_custom else [512] if self.has_images else self.default_hiddens
        hiddens = config.fcnet_hiddens if config.fcnet_hiddens is not None else hiddens
        if config.sparse_inputs and (self.has_images or not hiddens):
            raise ConfigError("model.sparse_inputs: the first layer must be one of fcnet_hiddens, not a convolution")
        self._config, self._generator = config, generator
        self._activation = _ACTIVATIONS[
            config.fcnet_activation or ("relu" if self.has_images else self.default_activation)
        ]
        self.encoder, core = self._make_encoder()
        self._sizes = [self.encoder.num_features, *hiddens]
        self.hidden = self._make_hidden()
        self.core = core or make_core(config, self._sizes[-1] + num_previous)
        self.num_hidden = self._sizes[-1] if self.core is None else self.core.num_outputs  # inputs of the heads
        for i, leaf in enumerate(leaves):
            if is_normalisable(leaf):
                self.register_buffer(f"observation_mean_{i}", torch.zeros(leaf.shape))
                self.register_buffer(f"observation_scale_{i}", torch.ones(() if leaf.is_image else leaf.shape))
        self.normalises = False
        self.autocasts = config.precision == "bfloat16"
        self.dtype = torch.bfloat16 if self.autocasts else torch.float32
        self._frozen: tuple[Normalisers, dict[nn.Module, nn.Module]] | None = None

    def _make_encoder(self) -> tuple[Encoder | CustomEncoder | FlatEncoder, Core | None]:
        """The encoder, and the core if it comes with a recurrent custom model."""
        config = self._config
        if not self.is_custom:
            return Encoder(self.leaves, config), None
        model = make_model(config.custom_model, config.custom_model_config, joined(self.leaves), self._generator)
        if not is_recurrent(model):
            return CustomEncoder(model, self.leaves), None
        chosen = [name for name in ("fcnet_hiddens", "use_lstm", "use_gru", "use_attention") if getattr(config, name)]
        if chosen:
            previous = ", and gets no previous action or reward" * (
                config.lstm_use_prev_action or config.lstm_use_prev_reward
            )
            raise ConfigError(
                f"model.{chosen[0]}: a recurrent custom model replaces the whole network before the heads{previous}; "
                "leave it out"
            )
        return FlatEncoder(self.leaves), CustomCore(model, self.leaves)

    def _make_hidden(self) -> nn.Sequential:
        return _mlp(self._sizes, self._activation, self._config)

    def _initialize(self, generator: torch.Generator, gains: dict[nn.Module, float]) -> None:
        """Draw the initial weights of all layers; `gains` are those of the heads."""
        own = {
            part for module in self.modules() if isinstance(module, (Core, CustomEncoder)) for part in module.modules()
        }
        for module in self.modules():
            if module not in own:
                initialize(module, self._config.initializer, generator, gains.get(module, 2**0.5))
        if self.core is not None:
            self.core.initialize(generator)

    def _num_outputs(self, num_actions: int) -> int:
        """The outputs of a head: one per action, or with action embeddings one per number of an embedding."""
        if self.embeddings is None:
            return num_actions
        rows, size = self.leaves[self.embeddings].shape
        if rows != num_actions:
            name = self.leaves[self.embeddings].name
            raise ConfigError(f"model.action_embeddings: {name} has {rows} rows, but there are {num_actions} actions")
        return size

    def _scores(self, outputs: Tensor, observations: tuple[Tensor, ...]) -> Tensor:
        """With action embeddings (B, n, d), their dot products with the outputs: (B, d, …) to (B, n, …)."""
        if self.embeddings is None:
            return outputs
        return torch.einsum("bnd,bd...->bn...", observations[self.embeddings].to(outputs.dtype), outputs)

    def _trunks(self) -> list[nn.Module]:
        """The encoders and hidden layers, which `_features` uses."""
        return [self.encoder, self.hidden]

    @cached_property
    def encoder_is_trained(self) -> bool:
        """Whether the encoder has parameters: that of vectors has none."""
        return any(True for _ in self.encoder.parameters())

    @cached_property
    def _takes_vectors(self) -> bool:
        """Whether an observation is a vector of float32, which the encoder only normalises."""
        leaf = self.leaves[0]
        is_vector = isinstance(leaf.space, spaces.Box) and len(leaf.shape) == 1 and leaf.dtype == np.float32
        return type(self.encoder) is Encoder and len(self.leaves) == 1 and is_vector and not self.has_images

    def inputs(self, observations: tuple[Tensor, ...]) -> Tensor:
        """The inputs of the first layer."""
        if self._takes_vectors and not self.normalises:
            return observations[0]
        inputs: Tensor = self.encoder(observations, self.normalisers(), self.dtype)
        return inputs.float()

    def normalisers(self) -> Normalisers:
        """(mean, scale) of each normalised leaf, else None. For images in `image_layout`."""
        normalisers: Normalisers = [None] * len(self.leaves)
        for i, leaf in enumerate(self.leaves):
            if self.normalises and is_normalisable(leaf):
                mean, scale = getattr(self, f"observation_mean_{i}"), getattr(self, f"observation_scale_{i}")
                if self.has_images and leaf.is_image:
                    mean, scale = image_layout(mean[None], leaf).to(self.dtype), scale.to(self.dtype)
                normalisers[i] = (mean, scale)
        return normalisers

    @property
    def values_when_acting(self) -> bool:
        """Whether acting also computes values."""
        return False

    def is_for_acting(self, name: str) -> bool:  # noqa: ARG002 - a critic is not
        """Whether acting needs this parameter or buffer."""
        return True

    def head(self) -> tuple[Tensor, Tensor] | None:
        """The acting output as a linear function of the last hidden layer, (weight, bias); None if it is not linear."""
        return None

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can capture it: no shapes that depend on values, no constants copied from the host."""
        kinds = (spaces.MultiDiscrete, spaces.Discrete)
        fixed = self.core is None and not self.is_custom and not self.encoder.is_sparse
        return fixed and not any(isinstance(leaf.space, kinds) for leaf in self.leaves)

    @property
    def acts_in_low_precision(self) -> bool:
        """Whether acting uses a copy of the weights in lower precision."""
        return self.autocasts and self.has_images

    @property
    def acts_in_float32(self) -> bool:
        """Whether it is acting, and does so in float32 although it learns in lower precision.

        Policies act in inference mode, which learners never use.
        """
        return torch.is_inference_mode_enabled() and self.may_act_in_float32 and not self.has_images

    @property
    def is_frozen(self) -> bool:
        return self._frozen is not None

    @torch.no_grad()
    def freeze(self) -> None:
        """Precompute everything that depends only on the weights, for acting. Call it after each change of weights."""
        if self._frozen is None:
            low = self.acts_in_low_precision
            self._frozen = ([], {part: copy.deepcopy(part).to(self.dtype) if low else part for part in self._trunks()})
        for part, frozen in self._frozen[1].items():
            if frozen is not part:
                for parameter, new in zip(frozen.parameters(), part.parameters(), strict=True):
                    parameter.copy_(new)
        normalisers = self.normalisers()
        if not self._frozen[0]:
            self._frozen[0][:] = normalisers
        for held, normaliser in zip(self._frozen[0], normalisers, strict=True):  # in place, for CUDA graphs
            if held is not None and normaliser is not None:
                held[0].copy_(normaliser[0])
                held[1].copy_(normaliser[1])

    def arranged(self, observations: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Convert observations for the other methods: by the preprocessor, then images to `image_layout`."""
        if self.preprocessor is not None:
            observations = self.preprocessor(observations)
        if not self.has_images:
            return observations
        return tuple(
            image_layout(x, leaf) if leaf.is_image else x for x, leaf in zip(observations, self.leaves, strict=True)
        )

    def _features(self, encoder: nn.Module, hidden: nn.Module, observations: tuple[Tensor, ...]) -> Tensor:
        """The last hidden layer, as float32: only layers up to here use lower precision."""
        normalisers = self.normalisers() if self._frozen is None else self._frozen[0]
        features: Tensor
        if self._frozen is not None and (frozen := self._frozen[1])[hidden] is not hidden:
            features = frozen[hidden](frozen[encoder](observations, normalisers, self.dtype).to(self.dtype))
        elif self.autocasts and not self.acts_in_float32:
            with torch.autocast(observations[0].device.type, torch.bfloat16, cache_enabled=False):
                features = hidden(encoder(observations, normalisers, self.dtype))
        else:
            features = hidden(encoder(observations, normalisers, self.dtype))
        return features.float()

    def _last_hidden(self, observations: tuple[Tensor, ...], memory: Memory | None) -> Tensor:
        """The inputs of the heads. A recurrent network needs a `memory`, see recurrent.py."""
        features = self._features(self.encoder, self.hidden, observations)
        if self.core is None:
            return features
        assert memory is not None, "a recurrent network needs a Memory"
        return self.core.run(features, memory)

    @property
    def base_model(self) -> Self:
        """The network itself: an alias for code written for RLlib, `policy.model.base_model.summary()`."""
        return self

    def summary(self) -> None:
        """Print a table of the layers, the shapes of their parameters, and the number of parameters."""
        rows = [
            (name or "(own)", type(module).__name__, _shapes(module), f"{count:,}")
            for name, module in self.named_modules()
            if (count := sum(p.numel() for p in module.parameters(recurse=False)))
        ]
        total = sum(p.numel() for p in self.parameters())
        rows = [("layer", "type", "shapes", "parameters"), *rows, ("total", "", "", f"{total:,}")]
        name, kind, shape, count = (max(len(row[i]) for row in rows) for i in range(4))
        print("\n".join(f"{a:<{name}}  {b:<{kind}}  {c:<{shape}}  {d:>{count}}" for a, b, c, d in rows))


def _shapes(module: nn.Module) -> str:
    """64×4, 64."""
    return ", ".join("×".join(map(str, p.shape)) or "1" for p in module.parameters(recurse=False))


def _mlp(sizes: list[int], activation: type[nn.Module], config: ModelConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    check_parameters(sum(a * b for a, b in pairwise(sizes)), "model.fcnet_hiddens")
    for i in range(len(sizes) - 1):
        kind = SparseLinear if config.sparse_inputs and i == 0 else nn.Linear
        norm = [nn.LayerNorm(sizes[i + 1], bias=config.use_bias)] if config.layer_norm else []
        layers += [kind(sizes[i], sizes[i + 1], bias=config.use_bias), *norm, activation()]
    return nn.Sequential(*layers)


_leaves_out: ContextVar[bool] = ContextVar("leaves out initial weights", default=False)


@contextmanager
def without_initial_weights() -> Iterator[None]:
    """Networks made in this block are only to be loaded: orthogonal weights of large layers take tenths of a second."""
    token = _leaves_out.set(True)
    try:
        yield
    finally:
        _leaves_out.reset(token)


@torch.no_grad()
def initialize(module: nn.Module, initializer: str, generator: torch.Generator, gain: float) -> None:
    """Initialize a layer: orthogonal weights times `gain`, or normal weights with standard deviation 1/√inputs.

    A LayerNorm keeps its first weights: ones, and zeros as bias.
    """
    if _leaves_out.get() or not hasattr(module, "weight") or isinstance(module, nn.LayerNorm):
        return
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    is_sparse = isinstance(module, SparseLinear)
    # Convolution weights are channels-last in memory; orthogonal_ needs the plain layout.
    first = torch.empty(weight.T.shape if is_sparse else weight.shape)
    if initializer == "normal":
        first.normal_(generator=generator).div_(first[0].numel() ** 0.5)
    else:
        nn.init.orthogonal_(first, gain, generator=generator)
    weight.copy_(first.T if is_sparse else first)
    if isinstance(bias, Tensor):
        bias.zero_()
