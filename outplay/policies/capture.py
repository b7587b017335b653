"""CUDA graphs: a computation recorded once and replayed, without the cost of starting each of its kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UPS = 3  # what CUDA's libraries set up on first use must not be recorded


class Captured:
    """`function` of tensors of fixed shapes, on a GPU, from memory of the host and back to it.

    >>> captured = Captured(network, (example,), device)
    >>> outputs = captured((observations,))

    What else the function reads must stay where it is; its values may change.
    """

    def __init__(
        self, function: Callable[[tuple[Tensor, ...]], Tensor], examples: tuple[Tensor, ...], device: torch.device
    ) -> None:
        self._staged = tuple(torch.empty_like(example, pin_memory=True) for example in examples)
        self._inputs = tuple(example.to(device) for example in examples)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                outputs = function(self._inputs)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = function(self._inputs)
        self._results = torch.empty_like(outputs, device="cpu", pin_memory=True)

    def __call__(self, values: tuple[Tensor, ...]) -> Tensor:
        for staged, inputs, value in zip(self._staged, self._inputs, values, strict=True):
            staged.copy_(value)
            inputs.copy_(staged, non_blocking=True)
        self._graph.replay()
        self._results.copy_(self._outputs, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self._results.clone()
