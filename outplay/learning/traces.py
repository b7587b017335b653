"""Traced steps: on a CPU, what CUDA graphs are on a GPU. Operations are recorded once and replayed without Python.

For small networks, Python takes as long as what it computes. The record is a graph of TorchScript, whose interpreter
makes the same calls in the same order: results are those of the plain step, bit by bit.

What this module sets concerns the whole process: freed memory stays with it (`keep_freed_memory`), and inside of
`one_dnn()` matrix products are those of oneDNN.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from outplay.cudagraphs import Minibatch

M = TypeVar("M", bound=Minibatch)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of mallopt, see malloc.h
_TRIM, _PAD, _MMAP = 1 << 28, 1 << 26, 1 << 25


class TracedStep(Generic[M]):
    """A traced gradient step without autograd: `step(minibatch, *scalars)` returns a scalar and metrics.

    The optimizer changes the parameters after each call; the trace computes the gradients. All minibatches have the
    shapes of the example.

    >>> traced = TracedStep(step, minibatch, [lr], optimizer)  # the first scalar is the learning rate
    >>> norm, metrics = traced(minibatch, lr)
    """

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, dict[str, Tensor]]],
        example: M,
        scalars: Sequence[float],
        optimizer: DeferringOptimizer,
    ) -> None:
        self._optimizer = optimizer
        self._metrics: list[str] = []
        self._updates: list[list[str]] = []  # the parameter groups of each update

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors)
            rows = example.each(lambda _: next(left))
            with optimizer.deferred() as updates:
                number, metrics = step(rows, *left)
            self._metrics, self._updates = list(metrics), [groups for groups, _ in updates]
            return number, *metrics.values(), *(gradient for _, gradient in updates)

        inputs = (*example.tensors(), *map(_scalar, scalars))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shapes become constants, as they should
            run(*inputs)  # what is made on first use must not be made while tracing
            self._traced: Any = torch.jit.trace(run, inputs, check_trace=False)  # type: ignore[no-untyped-call]

    def __call__(self, minibatch: M, *scalars: float) -> tuple[Tensor, dict[str, Tensor]]:
        # Without optimisation: fused operations would round in other ways.
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            number, *rest = self._traced(*minibatch.tensors(), *map(_scalar, scalars))
        for groups, gradient in zip(self._updates, rest[len(self._metrics) :], strict=True):
            self._optimizer.update(groups, gradient, scalars[0])
        return number, dict(zip(self._metrics, rest, strict=False))


class DeferringOptimizer(Protocol):
    """What a traced step needs of `learning.Optimizer`."""

    def deferred(self) -> AbstractContextManager[list[tuple[list[str], Tensor]]]: ...

    def update(self, names: Sequence[str], gradient: Tensor, lr: float | Tensor) -> None: ...


def can_trace() -> bool:
    """Whether this version of torch can trace."""
    return hasattr(torch, "jit") and hasattr(torch.jit, "trace") and sys.version_info < (3, 14)


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@functools.cache
def keep_freed_memory() -> None:
    """Let malloc keep freed memory for this process, up to 256 MB, instead of returning it to the system.

    A gradient step allocates and frees the same megabytes again and again. Returned memory is mapped anew, page by
    page, which can take longer than the step. Variables of glibc in the environment (MALLOC_…) have precedence.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        for option, value in ((_M_TRIM_THRESHOLD, _TRIM), (_M_TOP_PAD, _PAD), (_M_MMAP_THRESHOLD, _MMAP)):
            libc.mallopt(option, value)


@contextmanager
def one_dnn() -> Iterator[None]:
    """In this block, matrix products in float32 on the CPU are those of oneDNN, where they have the same precision.

    On CPUs of AMD, those of MKL take twice as long. With Intel's AMX, oneDNN would round to bfloat16, so MKL stays.
    """
    settings = _products()
    if settings is None:
        yield
        return
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


@functools.cache
def _products() -> Any:
    """The settings of oneDNN's matrix products, if they are to be used."""
    settings = getattr(torch.backends.mkldnn, "matmul", None)
    if not torch._C._has_mkldnn or not hasattr(settings, "fp32_precision"):
        return None
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)()
    return None if has_amx else settings
