"""CUDA graphs: GPU computations that are captured once and replayed, without the launch overhead of each kernel.

The memory that a captured function reads and writes must stay at the same address; its values may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from outplay import cuda

Array = np.ndarray
Scalar = float | Tensor

_WARM_UPS = 3  # calls before capture: the initialisation of CUDA libraries must not be captured


class CapturedActing:
    """A captured function of arrays with fixed shapes. The result is an array.

    The copies to the device and back are part of the graph, so that a call is one launch.

    >>> captured = CapturedActing(network, (example,), device)
    >>> outputs = captured((observations,))
    """

    def __init__(
        self, function: Callable[[tuple[Tensor, ...]], Tensor], examples: tuple[Array, ...], device: torch.device
    ) -> None:
        staged = tuple(_pinned(torch.from_numpy(np.array(example, order="C"))) for example in examples)
        inputs = tuple(torch.empty_like(tensor, device=device) for tensor in staged)
        results = _pinned(function(tuple(tensor.to(device) for tensor in staged)))

        def transferred() -> None:
            for there, here in zip(inputs, staged, strict=True):
                there.copy_(here, non_blocking=True)
            results.copy_(function(inputs), non_blocking=True)

        _warm_up(transferred)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            transferred()
        self._kept = inputs, staged, results  # the graph has their addresses
        self._inputs, self._results = tuple(tensor.numpy() for tensor in staged), results.numpy()

    def __call__(self, values: tuple[Array, ...]) -> Array:
        for own, given in zip(self._inputs, values, strict=True):
            own[...] = given
        self._graph.replay()
        torch.cuda.current_stream().synchronize()
        return self._results.copy()


def _pinned(example: Tensor) -> Tensor:
    """A tensor like this one in memory of the host that the device can read and write. Its values are a copy."""
    return torch.empty_like(example, device="cpu", pin_memory=True).copy_(example)


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

    def rows(self, rows: slice) -> Self:
        """Some of the rows."""
        return self.each(lambda tensor: tensor[rows])


M = TypeVar("M", bound=Minibatch)


class CapturedStep(Generic[M]):
    """A captured gradient step: `step(minibatch, *scalars)` returns metrics, and updates `state`.

    >>> captured = CapturedStep(step, minibatch, [lr], [weights, moments])
    >>> metrics = captured(minibatch, lr)
    """

    def __init__(
        self,
        step: Callable[..., dict[str, Tensor]],
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
            metrics = step(self._minibatch, *self._scalars)
            self._outputs = torch.cat([value.reshape(-1) for value in metrics.values()])
        self._shapes = {name: value.shape for name, value in metrics.items()}

    def __call__(self, minibatch: M, *scalars: float) -> dict[str, Tensor]:
        for own, given in zip(self._minibatch.tensors(), minibatch.tensors(), strict=True):
            own.copy_(given)
        for scalar, value in zip(self._scalars, scalars, strict=True):
            scalar.fill_(value)
        self._graph.replay()
        metrics = torch.split(self._outputs.clone(), [shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), metrics, strict=True)
        return {name: values.view(shape) for (name, shape), values in named}


def _warm_up(function: Callable[[], object]) -> None:
    cuda.wait()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
