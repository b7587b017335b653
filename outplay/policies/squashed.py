"""Action distributions on [−1, 1]: a normal distribution squashed by tanh (SAC), and single actions (TD3, DDPG)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray

LOG_STD_RANGE = (-20.0, 2.0)  # Haarnoja et al. 2018
_INSIDE = 1 - 1e-3  # the largest action whose log-probability is computed: atanh(1) is infinite
_LOG_2 = math.log(2.0)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class SquashedGaussian:
    """a = tanh(u) with u ~ N(μ, σ²), n independent variables. The params are the means μ, then log σ.

    Haarnoja et al. 2018, appendix C. Other than that of `DiagonalGaussian`, σ depends on the observation.
    """

    num_constant = 0

    def __init__(self, n: int) -> None:
        self.n = n
        self.num_params = 2 * n
        self.shape: tuple[int, ...] = (n,)

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        mean, log_std = params[..., : self.n], params[..., self.n :].clip(*LOG_STD_RANGE)
        drawn: Array = np.tanh(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32))
        return drawn

    def mode(self, params: Array) -> Array:
        best: Array = np.tanh(params[..., : self.n])
        return best

    def reparametrized(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(actions tanh(μ + σ·noise) (B, n), their log-probabilities (B,)), with gradients for μ and σ.

        log π(a) = Σ log N(u; μ, σ) − log(1 − tanh²u). The last term is 2 (log 2 − u − softplus(−2u)), which stays
        finite where tanh u rounds to ±1.

        >>> SquashedGaussian(1).reparametrized(torch.zeros(1, 2), torch.zeros(1, 1))
        (tensor([[0.]]), tensor([-0.9189]))
        """
        found: tuple[Tensor, Tensor] = _Reparametrized.apply(params, noise)  # type: ignore[no-untyped-call]
        return found

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """log π(a) of given actions, (B,). Actions at the bounds, whose density is infinite, are moved inside.

        >>> SquashedGaussian(1).log_prob(torch.zeros(1, 2), torch.zeros(1, 1))
        tensor([-0.9189])
        """
        mean, log_std = params.chunk(2, -1)
        log_std = log_std.clamp(*LOG_STD_RANGE)
        inside = actions.clamp(-_INSIDE, _INSIDE)
        u = inside.atanh()
        log_prob = -0.5 * ((u - mean) * (-log_std).exp()) ** 2 - log_std - _LOG_SQRT_2PI
        return (log_prob - (1 - inside.square()).log()).sum(-1)


class _Reparametrized(torch.autograd.Function):
    """One node of autograd: that of each operation would take several times as long as what it computes."""

    @staticmethod
    def forward(ctx: Any, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, unclipped = params.chunk(2, -1)
        log_std = unclipped.clamp(*LOG_STD_RANGE)
        scaled = log_std.exp() * noise
        u = mean + scaled
        actions = u.tanh()
        log_prob = -0.5 * noise.square() - log_std - _LOG_SQRT_2PI
        log_slope = 2 * (_LOG_2 - u - torch.nn.functional.softplus(-2 * u))
        ctx.save_for_backward(actions, scaled, log_std == unclipped)
        return actions, (log_prob - log_slope).sum(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """∂a/∂u = 1 − a², ∂ log π/∂u = 2a, ∂u/∂μ = 1, ∂u/∂ log σ = σ·noise, and ∂ log π/∂ log σ = −1 beside it."""
        actions, scaled, is_inside = ctx.saved_tensors
        of_actions, of_log_prob = gradients[0], gradients[1][..., None]
        of_u = torch.addcmul(of_actions, actions, 2 * of_log_prob - of_actions * actions)
        return torch.cat([of_u, (of_u * scaled - of_log_prob) * is_inside], -1), None


class Deterministic:
    """a = tanh(params), n variables."""

    num_constant = 0

    def __init__(self, n: int) -> None:
        self.num_params = n
        self.shape: tuple[int, ...] = (n,)

    def sample(self, params: Array, rng: np.random.Generator) -> Array:  # noqa: ARG002
        return self.mode(params)

    def mode(self, params: Array) -> Array:
        action: Array = np.tanh(params)
        return action
