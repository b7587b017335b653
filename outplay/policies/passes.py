"""Forward passes whose gradients are asked for afterwards: for learners that know the slopes of their loss.

>>> forward = critics.record(observations, actions)
>>> slopes = 2 * (forward.outputs - targets) / len(targets)  # ∂ loss / ∂ outputs
>>> optimizer.apply(forward.weight_gradients(slopes), lr)

For an MLP, the backward pass is written out (`fused.MLPPass`), which takes much less time than autograd for networks of
a few hundred units. Other networks use autograd (`AutogradPass`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class ForwardPass(Protocol):
    """The outputs of a network, and its gradients for given slopes: those of a loss with respect to the outputs."""

    outputs: Tensor

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        """The gradients of the loss with respect to the parameters, in their order; neighbours may be joined."""

    def input_gradient(self, slopes: Tensor) -> Tensor:
        """The gradient of the loss with respect to the actions that are inputs of a critic."""


class AutogradPass:
    """A forward pass of any network. `run` computes the outputs, from the actions if there are any."""

    def __init__(
        self,
        run: Callable[[Tensor | None], Tensor],
        parameters: Sequence[Tensor],
        actions: Tensor | None = None,
    ) -> None:
        with torch.enable_grad():
            self._actions = None if actions is None else actions.detach().requires_grad_()
            self._computed = run(self._actions)
        self._parameters = parameters
        self.outputs = self._computed.detach()

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(
            [self._computed], self._parameters, [slopes], allow_unused=True, materialize_grads=True
        )

    def input_gradient(self, slopes: Tensor) -> Tensor:
        assert self._actions is not None, "without actions, there is no such gradient"
        return torch.autograd.grad([self._computed], [self._actions], [slopes])[0]


def slopes_of(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """(the loss, its gradient with respect to the outputs of a network), by autograd.

    >>> slopes_of(lambda x: (x**2).sum(), torch.tensor([3.0]))
    (tensor(9.), tensor([6.]))
    """
    with torch.enable_grad():
        variable = outputs.detach().requires_grad_()
        found = loss(variable)
    return found.detach(), torch.autograd.grad(found, variable)[0]
