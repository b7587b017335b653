"""The encoder: from observations to one vector of features."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay.errors import ConfigError, nearest
from outplay.groups import ModelConfig
from outplay.memory import check_parameters
from outplay.policies.pooling import SequencePool
from outplay.sequences import Padded
from outplay.spaces import Leaf

# (channels, kernel, stride). Large images (about 84 × 84): Mnih et al., Nature 2015. Small images: stride 1.
_LARGE_IMAGE = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
_SMALL_IMAGE = [(16, 3, 1), (32, 3, 1)]
_LARGE = 36
CLIP_RANGE = 10.0  # normalised observations are clipped to ± this

Normaliser = tuple[Tensor, Tensor]  # (mean, 1 / standard deviation)
Normalisers = list[Normaliser | None]  # one for each leaf


class Encoder(nn.Module):
    """Encodes an observation as one feature vector: convolutions for images, one-hot for discrete leaves, pooling for
    sequences."""

    def __init__(self, leaves: tuple[Leaf, ...], config: ModelConfig) -> None:
        super().__init__()
        self.leaves = leaves
        self.embeddings = embedding_leaf(leaves, config.action_embeddings)  # not encoded
        seen = [leaf for i, leaf in enumerate(leaves) if i != self.embeddings]
        self.is_sparse = config.sparse_inputs
        self.keeps_bytes = config.sparse_inputs and len(leaves) == 1 and isinstance(leaves[0].space, spaces.Box)
        self.convolutions = nn.ModuleList(_convolutions(leaf, config) for leaf in seen if leaf.is_image)
        pools = [SequencePool(leaf.space, config.sequence_pooling) for leaf in seen if isinstance(leaf.space, Padded)]
        self.pools = nn.ModuleList(pools)
        images = [leaf for leaf in seen if leaf.is_image]
        vectors = [leaf for leaf in seen if not leaf.is_image and not isinstance(leaf.space, Padded)]
        self.num_features = (
            sum(_conv_features(layers, leaf) for layers, leaf in zip(self.convolutions, images, strict=True))
            + sum(pool.num_features for pool in pools)
            + sum(_flat_features(leaf) for leaf in vectors)
        )

    def forward(self, observations: tuple[Tensor, ...], normalisers: Normalisers, dtype: torch.dtype) -> Tensor:
        """Features of observations whose images are in `image_layout`. `dtype`: of images and their normalisers."""
        if self.keeps_bytes and normalisers[0] is None:
            return observations[0].reshape(observations[0].shape[0], -1)
        convolutions, pools = iter(self.convolutions), iter(self.pools)
        parts = []
        for i, (x, leaf, normaliser) in enumerate(zip(observations, self.leaves, normalisers, strict=True)):
            if i == self.embeddings:
                continue
            if leaf.is_image:
                parts.append(next(convolutions)(_scaled_image(x, normaliser, dtype)).flatten(1))
            elif isinstance(leaf.space, Padded):
                parts.append(next(pools)(x))
            else:
                parts.append(_vector_features(x, leaf, normaliser))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def embedding_leaf(leaves: tuple[Leaf, ...], key: str | None) -> int | None:
    """The index of the leaf with the embeddings of the actions."""
    if key is None:
        return None
    found = [i for i, leaf in enumerate(leaves) if leaf.path == (key,)]
    if not found:
        keys = list(dict.fromkeys(str(leaf.path[0]) for leaf in leaves if leaf.path))
        hint = nearest(key, keys) if keys else "; a Dict observation is needed"
        raise ConfigError(f"model.action_embeddings: there is no observation[{key!r}]{hint}")
    leaf = leaves[found[0]]
    if not isinstance(leaf.space, spaces.Box) or len(leaf.shape) != 2 or leaf.is_image:
        raise ConfigError(f"model.action_embeddings: {leaf.name} must be a Box of shape (n, d), not {leaf.space}")
    if len(leaves) == 1:
        raise ConfigError(f"model.action_embeddings: the observation has nothing beside {leaf.name}")
    return found[0]


def is_normalisable(leaf: Leaf) -> bool:
    return isinstance(leaf.space, spaces.Box)


def image_layout(x: Tensor, leaf: Leaf) -> Tensor:
    """Convert images of any layout to (B, C, H, W), channels-last in memory: convolutions on CPUs are faster."""
    shape = leaf.shape
    if len(shape) == 2:
        return x.unsqueeze(1).contiguous(memory_format=torch.channels_last)
    if len(shape) == 4:  # stacked frames with channels last
        return x.permute(0, 1, 4, 2, 3).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    if shape[-1] < shape[0]:
        return x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return torch.stack(x.unbind(1), -1).permute(0, 3, 1, 2)  # twice as fast as contiguous()


def _scaled_image(x: Tensor, normaliser: Normaliser | None, dtype: torch.dtype) -> Tensor:
    """The image scaled to [0, 1], or normalised."""
    image = x.to(dtype, copy=True)
    return image.div_(255.0) if normaliser is None else image.sub_(normaliser[0]).mul_(normaliser[1])


def _vector_features(x: Tensor, leaf: Leaf, normaliser: Normaliser | None) -> Tensor:
    space = leaf.space
    if normaliser is not None:
        mean, scale = normaliser
        x = x.float() if x.dtype == torch.bool else x
        x = ((x - mean) * scale).clamp(-CLIP_RANGE, CLIP_RANGE)
    if isinstance(space, spaces.Discrete):
        # Clamped: an out-of-range value is reported, with the environment's name, when the Fragment is complete.
        return nn.functional.one_hot((x.long() - int(space.start)).clamp(0, int(space.n) - 1), int(space.n)).float()
    if isinstance(space, spaces.MultiDiscrete):
        shifted = (x.long() - torch.as_tensor(space.start, device=x.device)).reshape(x.shape[0], -1)
        hot = [
            nn.functional.one_hot(part.clamp(0, int(n) - 1), int(n))
            for part, n in zip(shifted.unbind(-1), space.nvec.ravel(), strict=True)
        ]
        return torch.cat(hot, -1).float()
    return x.reshape(x.shape[0], -1).float()


def _flat_features(leaf: Leaf) -> int:
    if isinstance(leaf.space, spaces.Discrete):
        return int(leaf.space.n)
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return int(leaf.space.nvec.sum())
    return int(np.prod(leaf.shape))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each pixel, (B, C, H, W). Channels are last in memory, so nothing is copied."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _convolutions(leaf: Leaf, config: ModelConfig) -> nn.Sequential:
    example = image_layout(torch.zeros(1, *leaf.shape), leaf)
    filters = config.conv_filters or (_LARGE_IMAGE if min(example.shape[-2:]) >= _LARGE else _SMALL_IMAGE)
    channels = example.shape[1]
    layers: list[nn.Module] = []
    for out, kernel, stride in filters:
        check_parameters(channels * out * kernel * kernel, "model.conv_filters")
        norm = [ChannelNorm(out, bias=config.use_bias)] if config.layer_norm else []
        layers += [nn.Conv2d(channels, out, kernel, stride, bias=config.use_bias), *norm, nn.ReLU()]
        channels = out
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _conv_features(layers: nn.Module, leaf: Leaf) -> int:
    example = image_layout(torch.zeros(1, *leaf.shape), leaf)
    try:
        with torch.no_grad():
            return int(layers(example).numel())
    except RuntimeError as error:
        raise ConfigError(f"model.conv_filters do not fit an image of {tuple(example.shape[-2:])}: {error}") from error
