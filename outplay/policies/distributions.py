"""Action distributions: what a network's outputs mean.

Each one is a few pure functions of `params`, the network's outputs (B, num_params): acting uses numpy, learning torch.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

Array = np.ndarray


class Distribution(Protocol):
    num_params: int

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        """Actions drawn at random, (B,) or (B, n)."""

    def mode(self, params: Array) -> Array:
        """The most likely actions."""

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """log π(a|s), (B,)."""

    def entropy(self, params: Tensor) -> Tensor:
        """(B,)"""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new), (B,)."""


def distribution_for(space: spaces.Space[Any]) -> Distribution:
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical([int(n) for n in space.nvec])
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(int(np.prod(space.shape)))
    assert isinstance(space, spaces.Box), f"{space} was let through"
    return DiagonalGaussian(int(np.prod(space.shape)))


_TINY = np.float32(1e-30)  # float32 draws can be 0


class Categorical:
    """One of n actions. The params are logits."""

    def __init__(self, n: int) -> None:
        self.num_params = n

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        # Gumbel's trick: the largest of logit + noise is a draw from the softmax.
        noise = np.log(np.maximum(rng.standard_exponential(params.shape, np.float32), _TINY))
        best: Array = (params - noise).argmax(-1)
        return best

    def mode(self, params: Array) -> Array:
        best: Array = params.argmax(-1)
        return best

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        old, new = old.log_softmax(-1), new.log_softmax(-1)
        return (old.exp() * (old - new)).sum(-1)


class MultiCategorical:
    """Several independent choices, each one of n."""

    def __init__(self, sizes: list[int]) -> None:
        self.parts = [Categorical(n) for n in sizes]
        self.sizes = sizes
        self.num_params = sum(sizes)
        self._cuts = np.cumsum(sizes)[:-1]

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        pieces = np.split(params, self._cuts, -1)
        return np.stack([part.sample(p, rng) for part, p in zip(self.parts, pieces, strict=True)], -1)

    def mode(self, params: Array) -> Array:
        return np.stack([p.argmax(-1) for p in np.split(params, self._cuts, -1)], -1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        pieces = torch.split(params, self.sizes, -1)
        return _total(
            [part.log_prob(p, actions[..., i]) for i, (part, p) in enumerate(zip(self.parts, pieces, strict=True))]
        )

    def entropy(self, params: Tensor) -> Tensor:
        return _total(
            [part.entropy(p) for part, p in zip(self.parts, torch.split(params, self.sizes, -1), strict=True)]
        )

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        pairs = zip(self.parts, torch.split(old, self.sizes, -1), torch.split(new, self.sizes, -1), strict=True)
        return _total([part.kl(a, b) for part, a, b in pairs])


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, -1).sum(-1)


class Bernoulli:
    """n independent switches. The params are the logits of "on"."""

    def __init__(self, n: int) -> None:
        self.num_params = n

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        # u < sigmoid(logit), written as logit(u) < logit
        u = rng.random(params.shape, np.float32).clip(1e-7, 1 - 1e-7)
        drawn: Array = (np.log(u) - np.log1p(-u) < params).astype(np.int8)
        return drawn

    def mode(self, params: Array) -> Array:
        return (params > 0).astype(np.int8)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return -torch.nn.functional.binary_cross_entropy_with_logits(
            params, actions.to(params.dtype), reduction="none"
        ).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(params, params.sigmoid(), reduction="none").sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        p = old.sigmoid()
        on = torch.nn.functional.logsigmoid(old) - torch.nn.functional.logsigmoid(new)
        off = torch.nn.functional.logsigmoid(-old) - torch.nn.functional.logsigmoid(-new)
        return (p * on + (1 - p) * off).sum(-1)


_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class DiagonalGaussian:
    """n independent normal numbers. The params are the means, then the logarithms of the standard deviations."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.num_params = 2 * n

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        mean, log_std = params[..., : self.n], params[..., self.n :]
        drawn: Array = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        return drawn

    def mode(self, params: Array) -> Array:
        return params[..., : self.n]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return (-0.5 * ((actions - mean) * (-log_std).exp()) ** 2 - log_std - _LOG_SQRT_2PI).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        _, log_std = params.chunk(2, -1)
        return (log_std + 0.5 + _LOG_SQRT_2PI).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
        spread = ((2 * log_std).exp() + (mean - new_mean) ** 2) / (2 * (2 * new_log_std).exp())
        return (new_log_std - log_std + spread - 0.5).sum(-1)
