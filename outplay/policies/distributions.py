"""Action distributions, parametrised by the network's outputs.

Each distribution has pure functions of `params` (B, num_params). Acting uses numpy, learning uses torch.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from outplay.spaces import action_parts, is_composite

Array = np.ndarray


class ActingDistribution(Protocol):
    """What acting needs."""

    num_params: int
    num_constant: int  # the last `num_constant` params do not depend on the observation
    shape: tuple[int, ...]  # of one action: () or (n,)

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        """Sample actions, (B,) or (B, n)."""

    def mode(self, params: Array) -> Array:
        """The most likely actions."""


class Distribution(ActingDistribution, Protocol):
    """What on-policy learning needs, too."""

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """log π(a|s), (B,)."""

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy, (B,)."""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new), (B,)."""


def distribution_for(space: spaces.Space[Any]) -> Distribution:
    """The distribution for an action space."""
    if is_composite(space):
        return Independent([distribution_for(part) for part in action_parts(space)])
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical([int(n) for n in space.nvec.ravel()])
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(int(np.prod(space.shape)))
    assert isinstance(space, spaces.Box), f"check_action_space() accepted {space}"
    return DiagonalGaussian(int(np.prod(space.shape)))


# Logit of a forbidden action. Its probability is exactly 0. It is finite, so entropy and KL divergence stay
# finite: 0 · -1e30 is 0.
_FORBIDDEN = -1e30


def masked(params: Tensor, mask: Tensor | None) -> Tensor:
    """Set the logits (B, n) of forbidden actions to -1e30. `mask` (B, n): True where allowed; None allows all.

    Samples, mode, log-probabilities, entropy and KL divergence of masked logits consider only allowed actions.
    """
    return params if mask is None else params.masked_fill(~mask, _FORBIDDEN)


def masked_array(params: Array, mask: Array) -> Array:
    """`masked` in numpy."""
    return np.where(mask, params, np.float32(_FORBIDDEN))


_TINY = np.float32(1e-30)  # float32 draws can be 0


class Categorical:
    """One of n actions. The params are logits."""

    num_constant = 0
    shape: tuple[int, ...] = ()

    def __init__(self, n: int) -> None:
        self.num_params = n

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        # Gumbel-max trick: argmax of logits + Gumbel noise is a sample from the softmax.
        noise = np.log(np.maximum(rng.standard_exponential(params.shape, np.float32), _TINY))
        best: Array = (params - noise).argmax(-1)
        return best

    def mode(self, params: Array) -> Array:
        best: Array = params.argmax(-1)
        return best

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        old, new = old.log_softmax(-1), new.log_softmax(-1)
        return (old.exp() * (old - new)).sum(-1)


class MultiCategorical:
    """Independent categorical variables. The params are their concatenated logits."""

    num_constant = 0

    def __init__(self, sizes: list[int]) -> None:
        self.shape: tuple[int, ...] = (len(sizes),)
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
    """n independent binary variables. The params are the logits of 1."""

    num_constant = 0

    def __init__(self, n: int) -> None:
        self.num_params = n
        self.shape: tuple[int, ...] = (n,)

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
    """n independent normal variables. The params are the means, then the log standard deviations."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.num_params = 2 * n
        self.num_constant = n
        self.shape: tuple[int, ...] = (n,)

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


class Independent:
    """Independent distributions for the parts of a Dict or Tuple action. Actions are concatenated as floats.

    The params are, part by part, those that depend on the observation, followed by all constant ones.
    """

    def __init__(self, parts: list[Distribution]) -> None:
        self.parts = parts
        self.num_params = sum(part.num_params for part in parts)
        self.num_constant = sum(part.num_constant for part in parts)
        sizes = [int(np.prod(part.shape)) for part in parts]
        self.shape: tuple[int, ...] = (sum(sizes),)
        self._numbers = _ranges(sizes, 0)
        self._varying = _ranges([part.num_params - part.num_constant for part in parts], 0)
        self._constant = _ranges([part.num_constant for part in parts], self.num_params - self.num_constant)

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        return self._joined([part.sample(self._part_array(i, params), rng) for i, part in enumerate(self.parts)])

    def mode(self, params: Array) -> Array:
        return self._joined([part.mode(self._part_array(i, params)) for i, part in enumerate(self.parts)])

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        chosen = [
            actions[..., self._numbers[i]] if part.shape else actions[..., self._numbers[i].start]
            for i, part in enumerate(self.parts)
        ]
        return _total([part.log_prob(self._part_params(i, params), chosen[i]) for i, part in enumerate(self.parts)])

    def entropy(self, params: Tensor) -> Tensor:
        return _total([part.entropy(self._part_params(i, params)) for i, part in enumerate(self.parts)])

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return _total(
            [part.kl(self._part_params(i, old), self._part_params(i, new)) for i, part in enumerate(self.parts)]
        )

    def _joined(self, actions: list[Array]) -> Array:
        rows = len(actions[0])
        return np.concatenate([action.reshape(rows, -1).astype(np.float32) for action in actions], -1)

    def split(self, params: Array, action: Array) -> list[tuple[Distribution, Array, Array]]:
        """Each part with its params and its numbers of one action."""
        return [
            (part, self._part_array(i, params), np.atleast_1d(action[self._numbers[i]]))
            for i, part in enumerate(self.parts)
        ]

    def _part_array(self, part: int, params: Array) -> Array:
        return np.concatenate([params[..., self._varying[part]], params[..., self._constant[part]]], -1)

    def _part_params(self, part: int, params: Tensor) -> Tensor:
        return torch.cat([params[..., self._varying[part]], params[..., self._constant[part]]], -1)


def _ranges(sizes: list[int], begin: int) -> list[slice]:
    """The slices of consecutive pieces with these sizes."""
    ends = (begin + np.cumsum(sizes)).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
