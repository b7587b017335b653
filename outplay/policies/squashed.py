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
        return self.with_noise(params, rng.standard_normal((*params.shape[:-1], self.n), np.float32))

    def with_noise(self, params: Array, noise: Array) -> Array:
        """Actions tanh(μ + σ·noise)."""
        mean, log_std = params[..., : self.n], params[..., self.n :].clip(*LOG_STD_RANGE)
        actions: Array = np.tanh(mean + np.exp(log_std) * noise)
        return actions

    def mode(self, params: Array) -> Array:
        best: Array = np.tanh(params[..., : self.n])
        return best

    def draw(self, params: Tensor, noise: Tensor) -> Reparametrized:
        """Actions tanh(μ + σ·noise), by standard normal noise (B, n), their log-probabilities, and slopes of both.

        >>> drawn = SquashedGaussian(1).draw(torch.zeros(1, 2), torch.zeros(1, 1))
        >>> drawn.actions, drawn.log_prob
        (tensor([[0.]]), tensor([-0.9189]))
        """
        return Reparametrized(params, noise)

    def reparametrized(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(actions, log-probabilities) of `draw`, for autograd."""
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


class Reparametrized:
    """Actions a = tanh(u) (B, n) with u = μ + σ·noise, their log-probabilities (B,), and the slopes for μ and log σ.

    log π(a) = Σ log N(u; μ, σ) − log(1 − tanh²u). The last term is 2 (log 2 − u − softplus(−2u)), which stays finite
    where tanh u rounds to ±1.
    """

    def __init__(self, params: Tensor, noise: Tensor) -> None:
        mean, unclipped = params.chunk(2, -1)
        log_std = unclipped.clamp(*LOG_STD_RANGE)
        self._scaled = log_std.exp().mul_(noise)
        self._is_inside = log_std == unclipped
        u = mean + self._scaled
        self.actions = u.tanh()
        # −½ noise² − log σ − log √2π − 2 (log 2 − u − softplus(−2u)), summed over the variables
        log_density = torch.nn.functional.softplus(-2 * u).add_(u).mul_(2).sub_(log_std)
        self.log_prob = log_density.addcmul_(noise, noise, value=-0.5).sub_(_LOG_SQRT_2PI + 2 * _LOG_2).sum(-1)

    def slopes(self, of_actions: Tensor, of_log_prob: Tensor) -> Tensor:
        """The slopes of a loss for the params (B, 2n), from those for the actions (B, n) and for log π(a).

        ∂a/∂u = 1 − a², ∂ log π/∂u = 2a, ∂u/∂μ = 1, ∂u/∂ log σ = σ·noise, and ∂ log π/∂ log σ = −1 beside it.
        """
        actions = self.actions
        of_u = torch.addcmul(of_actions, actions, 2 * of_log_prob - of_actions * actions)
        return torch.cat([of_u, (of_u * self._scaled).sub_(of_log_prob).mul_(self._is_inside)], -1)


class _Reparametrized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        ctx.drawn = Reparametrized(params, noise)
        return ctx.drawn.actions.clone(), ctx.drawn.log_prob

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        slopes: Tensor = ctx.drawn.slopes(gradients[0], gradients[1][..., None])
        return slopes, None


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
