"""Optimizers over flat parameter vectors, with named parameter groups.

A network's parameters are views of one vector (see `policies.flatten`), so an update is a handful of operations for any
number of layers. torch.optim is not used: it takes more than a second to load its compiler.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outplay.errors import RunError
from outplay.groups import OptimizerConfig

if TYPE_CHECKING:
    from outplay.learning.communicator import Communicator


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are optimised with the same settings: "actor", "critic", "temperature" …

    `flat` is the vector that the parameters are views of, in their order; it may continue after them.
    """

    name: str
    parameters: Sequence[Tensor]
    flat: Tensor
    settings: OptimizerConfig
    lr_scale: float = 1.0  # a factor on the learning rate
    is_fused: bool = False  # Adam as one operation: faster, with other rounding

    @functools.cached_property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def split(self, name: str, parameters: Collection[Tensor], lr_scale: float) -> tuple[ParameterGroup, ...]:
        """This group without its last parameters, which become the group `name`.

        >>> actor, critic = group.split("critic", value_parameters, lr_scale=3.0)
        """
        chosen = {id(parameter) for parameter in parameters}
        first = next(i for i, parameter in enumerate(self.parameters) if id(parameter) in chosen)
        if {id(parameter) for parameter in self.parameters[first:]} != chosen:
            raise ValueError(f"the parameters of group {name!r} must be the last ones of group {self.name!r}")
        before = ParameterGroup(self.name, self.parameters[:first], self.flat, self.settings, self.lr_scale)
        rest = self.flat[before.size :]
        return before, ParameterGroup(name, self.parameters[first:], rest, self.settings, lr_scale)


@dataclass(frozen=True)
class DeferredUpdate:
    """A gradient that has not been applied yet (`Optimizer.deferred`)."""

    groups: list[str]
    gradient: Tensor
    grad_clip: float | None


class Optimizer:
    """Adam (Kingma & Ba 2015), RMSProp or SGD with momentum, as in torch.optim.

    >>> optimizer = Optimizer([ParameterGroup("policy", policy.parameters, policy.flat, OptimizerConfig())])
    >>> norm = optimizer.step(loss, lr=3e-4, grad_clip=0.5)

    With several groups, one loss may train all of them, or some:

    >>> norm = optimizer.step(actor_loss, lr=3e-4, only=["actor"])
    """

    communicator: Communicator | None = None  # of data-parallel learners: gradients are summed over all of them

    def __init__(self, groups: Sequence[ParameterGroup]) -> None:
        self._deferred: list[DeferredUpdate] | None = None
        self._copies: dict[str, Tensor] = {}
        self.groups = {group.name: group for group in groups}
        sizes = [group.size for group in groups]
        device = groups[0].flat.device
        # One vector each for all groups, in their order: this is also the layout in checkpoints.
        self.first_moment = torch.zeros(sum(sizes), device=device)
        self.second_moment = torch.zeros(sum(sizes), device=device)
        self.steps = torch.zeros(len(groups), dtype=torch.float64, device=device)
        first, second = torch.split(self.first_moment, sizes), torch.split(self.second_moment, sizes)
        self._slots = {
            group.name: _Slot(group.flat[:size], first[i], second[i], self.steps[i])
            for i, (group, size) in enumerate(zip(groups, sizes, strict=True))
        }

    def step(
        self,
        loss: Tensor | Sequence[Tensor],
        lr: float | Tensor,
        grad_clip: float | None = None,
        only: Sequence[str] | None = None,
        slopes: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """One gradient step on the loss. Returns the norm of the gradient before clipping.

        `loss` may also be outputs of networks, with the gradients of the loss with respect to them as `slopes`: where
        these are simple, that is faster than autograd.
        """
        groups = self._chosen(only)
        parameters = [parameter for group in groups for parameter in group.parameters]
        gradients = torch.autograd.grad(loss, parameters, slopes, allow_unused=True, materialize_grads=True)
        return self.apply(gradients, lr, grad_clip, only)

    @torch.no_grad()
    def apply(
        self,
        gradients: Sequence[Tensor],
        lr: float | Tensor,
        grad_clip: float | None = None,
        only: Sequence[str] | None = None,
    ) -> Tensor:
        """One step with given gradients, in the order of the groups' parameters."""
        groups = self._chosen(only)
        gradient = _joined(gradients)
        if self.communicator is not None and self.communicator.is_active:
            gradient = self.communicator.weighted_sum(gradient)
        names = [group.name for group in groups]
        if self._deferred is not None:
            self._deferred.append(DeferredUpdate(names, gradient, grad_clip))
            norm: Tensor = torch.linalg.vector_norm(gradient)
            return norm
        return self.finish(names, gradient, lr, grad_clip)

    @torch.no_grad()
    def finish(
        self, names: Sequence[str], gradient: Tensor, lr: float | Tensor, grad_clip: float | None = None
    ) -> Tensor:
        """Clip a gradient of these groups, which is one vector, and change the parameters. Returns its norm before."""
        norm = _clipped(gradient, lr, grad_clip)
        self._update([self._slots[name] for name in names], names, gradient, lr)
        return norm

    @torch.no_grad()
    def prepare(
        self, names: Sequence[str], gradient: Tensor, lr: float | Tensor, grad_clip: float | None = None
    ) -> tuple[Tensor, Callable[[], None]]:
        """`finish` in a thread, while others still use the parameters: they change when the function is called."""
        norm, slots = _clipped(gradient, lr, grad_clip), [self._slots[name] for name in names]
        memory = map(self._copy, names)
        copies = [replace(slot, flat=own.copy_(slot.flat)) for slot, own in zip(slots, memory, strict=True)]
        self._update(copies, names, gradient, lr)

        def change() -> None:
            for slot, copied in zip(slots, copies, strict=True):
                slot.flat.copy_(copied.flat)

        return norm, change

    def _copy(self, name: str) -> Tensor:
        """Memory for a copy of a group's parameters. It is kept: new memory would be slower."""
        if name not in self._copies:
            self._copies[name] = torch.empty_like(self._slots[name].flat)
        return self._copies[name]

    def _update(self, slots: Sequence[_Slot], names: Sequence[str], gradient: Tensor, lr: float | Tensor) -> None:
        end = 0
        for name, slot in zip(names, slots, strict=True):
            group, begin, end = self.groups[name], end, end + len(slot.flat)
            part = gradient[begin:end]
            slot.steps.add_(1)
            if group.is_fused and group.settings.type == "adam":
                _fused_adam(group.settings, slot, part, lr * group.lr_scale)
                continue
            update = _update(group.settings, slot, part, lr)
            slot.flat.sub_(update if group.lr_scale == 1 else update.mul_(group.lr_scale))

    @contextmanager
    def deferred(self) -> Iterator[list[DeferredUpdate]]:
        """In this block, `apply` changes nothing: it appends the arguments of `finish` to the list."""
        self._deferred = []
        try:
            yield self._deferred
        finally:
            self._deferred = None

    def _chosen(self, only: Sequence[str] | None) -> list[ParameterGroup]:
        return list(self.groups.values()) if only is None else [self.groups[name] for name in only]

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [*(slot.flat for slot in self._slots.values()), self.first_moment, self.second_moment, self.steps]

    def state(self) -> dict[str, Tensor]:
        steps = self.steps.long()
        return {
            "first": self.first_moment,
            "second": self.second_moment,
            "steps": steps[0] if len(steps) == 1 else steps,
        }

    def load(self, state: dict[str, Tensor]) -> None:
        for name, own in (("first", self.first_moment), ("second", self.second_moment)):
            if state[name].shape != own.shape:
                raise ValueError(
                    f"the optimizer's {name!r} has shape {tuple(state[name].shape)}, not {tuple(own.shape)}"
                )
        self.first_moment.copy_(state["first"])
        self.second_moment.copy_(state["second"])
        self.steps.copy_(state["steps"])  # a checkpoint of version 0.2 has one number for all groups


@dataclass(frozen=True)
class _Slot:
    """One group's parameters and the optimizer's state for them: views of longer vectors."""

    flat: Tensor
    first: Tensor
    second: Tensor
    steps: Tensor


def _update(settings: OptimizerConfig, slot: _Slot, gradient: Tensor, lr: float | Tensor) -> Tensor:
    """What is subtracted from the parameters. Overwrites `gradient` with RMSProp."""
    match settings.type:
        case "adam":
            beta1, beta2 = settings.betas
            slot.first.lerp_(gradient, 1 - beta1)
            slot.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = slot.second.sqrt().div_((1 - beta2**slot.steps).sqrt()).add_(settings.eps)
            return torch.div(slot.first, scale, out=scale).mul_(lr / (1 - beta1**slot.steps))
        case "rmsprop":
            slot.second.mul_(settings.decay).addcmul_(gradient, gradient, value=1 - settings.decay)
            return gradient.div_(slot.second.sqrt().add_(settings.eps)).mul_(lr)
        case "sgd":
            slot.first.mul_(settings.momentum).add_(gradient)
            return slot.first * lr


def _fused_adam(settings: OptimizerConfig, slot: _Slot, gradient: Tensor, lr: float | Tensor) -> None:
    """The update of Adam in one pass over the parameters."""
    beta1, beta2 = settings.betas
    torch._fused_adam_(
        [slot.flat],
        [gradient],
        [slot.first],
        [slot.second],
        [],
        [slot.steps.float()],
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )


def _clipped(gradient: Tensor, lr: float | Tensor, grad_clip: float | None) -> Tensor:
    """Clip the gradient, in place. Returns its norm before."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if gradient.is_cuda or isinstance(lr, Tensor):  # a captured step cannot read values: its caller checks the norm
        if grad_clip is not None:
            gradient *= (grad_clip / norm).clamp(max=1.0)
        return norm
    value = float(norm)
    check_norm(value, lr)
    if grad_clip is not None and value > grad_clip:
        gradient *= grad_clip / norm
    return norm


def check_norm(norm: float, lr: float) -> None:
    """Raise RunError if a gradient norm is not finite."""
    if not math.isfinite(norm):
        raise RunError(
            f"training diverged: the gradient norm is {norm} (lr {lr:g}); lower lr, set grad_clip, or reward_scale"
        )


def _joined(gradients: Sequence[Tensor]) -> Tensor:
    """The gradients as one vector. Not copied if they lie one after the other in memory, as those of `fused.mlp`."""
    if len(gradients) == 1:
        return _flat(gradients[0])
    first, end = gradients[0], gradients[0].storage_offset()
    for gradient in gradients:
        is_next = gradient.storage_offset() == end and gradient.dim() < 4 and gradient.is_contiguous()
        if not is_next or gradient.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat([_flat(g) for g in gradients])
        end += gradient.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))


def _flat(gradient: Tensor) -> Tensor:
    """In the order in which the parameters lie in memory: convolutions with their channels last."""
    return gradient.permute(0, 2, 3, 1).reshape(-1) if gradient.dim() == 4 else gradient.reshape(-1)
