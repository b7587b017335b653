"""Optimizers over one flat vector of parameters.

A policy's parameters are views of one vector, so a whole update is five operations however many layers there are; and
torch.optim, which takes more than a second to load its compiler, is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outplay.config import OptimizerConfig
from outplay.errors import RunError


class Optimizer:
    """Adam (Kingma & Ba 2015), RMSProp or SGD with momentum, as in torch.optim.

    >>> optimizer = Optimizer(policy.parameters, flat, OptimizerConfig())
    >>> loss = ...
    >>> norm = optimizer.step(loss, lr=3e-4, grad_clip=0.5)
    """

    def __init__(
        self, parameters: list[Tensor], flat: Tensor, config: OptimizerConfig, lr_scales: Sequence[float] | None = None
    ) -> None:
        """`lr_scales`: a factor on the learning rate for each parameter tensor; 1 unless given."""
        self.parameters = parameters
        self.flat = flat[: sum(p.numel() for p in parameters)]
        self.config = config
        self.lr_scale: Tensor | None = None
        if lr_scales is not None:
            sizes = torch.tensor([p.numel() for p in parameters])
            self.lr_scale = torch.tensor(lr_scales).repeat_interleave(sizes).to(flat)
        self.first = torch.zeros_like(self.flat)
        self.second = torch.zeros_like(self.flat)
        self.steps = torch.zeros((), dtype=torch.float64, device=flat.device)

    def step(self, loss: Tensor, lr: float | Tensor, grad_clip: float | None = None) -> Tensor:
        """Go one step down the loss's gradient; the gradient's norm before it was clipped."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return self.apply(gradients, lr, grad_clip)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], lr: float | Tensor, grad_clip: float | None = None) -> Tensor:
        gradient = torch.cat([_flat(g) for g in gradients])
        norm: Tensor = gradient.norm()
        if (
            not gradient.is_cuda
        ):  # on a GPU this may be recorded, and nothing is looked at; who recorded it does so later
            check_norm(float(norm), float(lr))
        if grad_clip is not None:
            gradient *= (grad_clip / norm).clamp(max=1.0)
        self.steps += 1
        update = self._update(gradient, lr)
        self.flat.sub_(update if self.lr_scale is None else update.mul_(self.lr_scale))
        return norm

    def _update(self, gradient: Tensor, lr: float | Tensor) -> Tensor:
        """What is subtracted from the parameters, in a vector of its own."""
        match self.config.type:
            case "adam":
                beta1, beta2 = self.config.betas
                self.first.lerp_(gradient, 1 - beta1)
                self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                scale = self.second.sqrt().div_((1 - beta2**self.steps).sqrt()).add_(self.config.eps)
                return torch.div(self.first, scale, out=scale).mul_(lr / (1 - beta1**self.steps))
            case "rmsprop":
                self.second.mul_(self.config.decay).addcmul_(gradient, gradient, value=1 - self.config.decay)
                return gradient.div_(self.second.sqrt().add_(self.config.eps)).mul_(lr)
            case "sgd":
                self.first.mul_(self.config.momentum).add_(gradient)
                return self.first * lr

    @property
    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [self.flat, self.first, self.second, self.steps]

    def state(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second, "steps": self.steps.long()}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, own in (("first", self.first), ("second", self.second), ("steps", self.steps)):
            if state[name].shape != own.shape:
                raise ValueError(
                    f"the optimizer's {name!r} has shape {tuple(state[name].shape)}, not {tuple(own.shape)}"
                )
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps.copy_(state["steps"])


def check_norm(norm: float, lr: float) -> None:
    if not math.isfinite(norm):
        raise RunError(
            f"learning has run away: the gradient is {norm} (lr {lr:g}); lower lr, set grad_clip, or reward_scale"
        )


def _flat(gradient: Tensor) -> Tensor:
    """In the order in which the parameters lie in memory: convolutions with their channels last."""
    return gradient.permute(0, 2, 3, 1).reshape(-1) if gradient.dim() == 4 else gradient.reshape(-1)
