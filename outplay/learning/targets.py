"""Target networks: copies of a network that follow it slowly."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from outplay.policies.flat import flatten

N = TypeVar("N", bound=nn.Module)


class TargetNetwork(Generic[N]):
    """A copy of `source`, whose parameters and buffers are views of `source_flat`.

    >>> target = TargetNetwork(policy.q_network, policy.flat)
    >>> target.update(tau=0.005)
    """

    def __init__(self, source: N, source_flat: Tensor) -> None:
        self.network: N = copy.deepcopy(source)
        self.flat = flatten(self.network, source_flat.device)
        self._source = source_flat
        self._num_parameters = sum(parameter.numel() for parameter in source.parameters())

    @torch.no_grad()
    def update(self, tau: float) -> None:
        """Move the parameters towards the source's: by `tau` of the distance, 1 copies them."""
        end = self._num_parameters
        self.flat[:end].lerp_(self._source[:end].detach(), tau)

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Both networks normalise observations alike; only the target's parameters lag."""
        self.flat[self._num_parameters :].copy_(self._source[self._num_parameters :].detach())

    @torch.no_grad()
    def reset(self) -> None:
        """Copy everything."""
        self.flat.copy_(self._source.detach())
