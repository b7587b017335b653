"""CUDA graphs: GPU computations that are captured once and replayed, without the launch overhead of each kernel.

The memory that a captured function reads and writes must stay at the same address; its values may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

Scalar = float | Tensor

_WARM_UPS = 3  # calls before capture: the initialisation of CUDA libraries must not be captured


class CapturedActing:
    """A captured function of CPU tensors with fixed shapes. The result is a CPU tensor.

    >>> captured = CapturedActing(network, (example,), device)
    >>> outputs = captured((observations,))
    """

    def __init__(
        self, function: Callable[[tuple[Tensor, ...]], Tensor], examples: tuple[Tensor, ...], device: torch.device
    ) -> None:
        self._staged = tuple(torch.empty_like(example, pin_memory=True) for example in examples)
        self._inputs = tuple(example.to(device) for example in examples)
        _warm_up(lambda: function(self._inputs))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = function(self._inputs)
        self._results = torch.empty_like(self._outputs, device="cpu", pin_memory=True)

    def __call__(self, values: tuple[Tensor, ...]) -> Tensor:
        for staged, inputs, value in zip(self._staged, self._inputs, values, strict=True):
            staged.copy_(value)
            inputs.copy_(staged, non_blocking=True)
        self._graph.replay()
        self._results.copy_(self._outputs, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self._results.clone()


@dataclass
class Minibatch:
    """A minibatch of rows. A field is a tensor with one entry per row, a tuple of such tensors, or something else."""

    def __len__(self) -> int:
        return len(self.tensors()[0])

    def tensors(self) -> list[Tensor]:
        fields = [value if isinstance(value, tuple) else (value,) for value in vars(self).values()]
        return [tensor for field in fields for tensor in field if isinstance(tensor, Tensor)]

    def each(self, function: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `function` applied to every tensor."""

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(function, value))
            return function(value) if isinstance(value, Tensor) else value

        return replace(self, **{name: changed(value) for name, value in vars(self).items()})


M = TypeVar("M", bound=Minibatch)


class CapturedStep(Generic[M]):
    """A captured gradient step: `step(minibatch, *scalars)` returns a scalar and metrics, and updates `state`.

    >>> captured = CapturedStep(step, minibatch, [lr], [weights, moments])
    >>> norm, metrics = captured(minibatch, lr)
    """

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, dict[str, Tensor]]],
        example: M,
        scalars: Sequence[float],
        state: Sequence[Tensor],
    ) -> None:
        self._minibatch = example.each(torch.clone)
        device = example.tensors()[0].device
        self._scalars = [torch.tensor(value, device=device) for value in scalars]
        before = [tensor.clone() for tensor in state]
        _warm_up(lambda: step(self._minibatch, *self._scalars))
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            number, metrics = step(self._minibatch, *self._scalars)
            self._outputs = torch.cat([value.reshape(-1) for value in (number, *metrics.values())])
        self._shapes = {name: value.shape for name, value in metrics.items()}

    def __call__(self, minibatch: M, *scalars: float) -> tuple[Tensor, dict[str, Tensor]]:
        for own, given in zip(self._minibatch.tensors(), minibatch.tensors(), strict=True):
            own.copy_(given)
        for scalar, value in zip(self._scalars, scalars, strict=True):
            scalar.fill_(value)
        self._graph.replay()
        number, *metrics = torch.split(self._outputs.clone(), [1, *(shape.numel() for shape in self._shapes.values())])
        named = zip(self._shapes.items(), metrics, strict=True)
        return number.view(()), {name: values.view(shape) for (name, shape), values in named}


def _warm_up(function: Callable[[], object]) -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
