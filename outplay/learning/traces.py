"""Traced steps: on a CPU, what CUDA graphs are on a GPU. Operations are recorded once and replayed without Python.

For small networks, Python takes as long as what it computes. The record is a graph of TorchScript, whose interpreter
makes the same calls in the same order: results are those of the plain step, bit by bit.

With several threads, each computes the gradients of its own rows of a minibatch, and they meet once per step. Torch's
own threads meet in every operation, and do not sleep while they wait: that takes longer, and many times as long where
other programs use the cores.

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
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from outplay.cudagraphs import Minibatch
from outplay.learning.shares import Share, share_of
from outplay.policies.fused import buffers_of_part

M = TypeVar("M", bound=Minibatch)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of mallopt, see malloc.h
_TRIM, _PAD, _MMAP = 1 << 28, 1 << 26, 1 << 25


class TracedStep(Generic[M]):
    """A traced gradient step without autograd: `step(minibatch, *scalars)` returns a gradient norm and metrics.

    The trace computes gradients; the optimizer changes the parameters after each call. The norm is that of the first
    gradient of the step. All minibatches have the shapes of the example.

    With several threads, each computes on adjacent rows, as data-parallel learners do. So losses and metrics have to be
    means over the rows, or have one entry per row.

    >>> traced = TracedStep(step, minibatch, [lr], optimizer)  # the first scalar is the learning rate
    >>> norm, metrics = traced(minibatch, lr)
    """

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, dict[str, Tensor]]],
        example: M,
        scalars: Sequence[float],
        optimizer: DeferringOptimizer,
        threads: int = 1,
    ) -> None:
        self._optimizer = optimizer
        self._shares = [share_of(len(example), rank, threads) for rank in range(threads)]
        self._parts: list[_Part] = []
        for number, share in enumerate(self._shares):
            with buffers_of_part(number):  # parts are computed at the same time
                self._parts.append(_Part(step, _rows(example, share), scalars, optimizer))

    def __call__(self, minibatch: M, *scalars: float) -> tuple[Tensor, dict[str, Tensor]]:
        values = list(map(_scalar, scalars))
        if len(self._parts) == 1:
            found = self._parts[0](minibatch, values)
        else:
            found = self._computed_in_threads(minibatch, values)
        updates = zip(self._parts[0].updates, found.gradients, strict=True)
        norms = [
            self._optimizer.finish(update.groups, gradient, scalars[0], update.grad_clip)
            for update, gradient in updates
        ]
        return norms[0], found.metrics

    def _computed_in_threads(self, minibatch: M, values: list[Tensor]) -> _Found:
        rows = [_rows(minibatch, share) for share in self._shares]
        threads = _threads(len(rows) - 1)
        others = [threads.submit(part, own, values) for part, own in zip(self._parts[1:], rows[1:], strict=True)]
        try:
            first = self._parts[0](rows[0], values)
        finally:
            wait(others)  # their buffers are used again by the next call
        return _joined([first, *(other.result() for other in others)], self._shares)


@dataclass
class _Found:
    """What a step computes from its rows."""

    metrics: dict[str, Tensor]
    gradients: list[Tensor]  # of each update of the optimizer


class _Part:
    """A trace of the step on some of the rows."""

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, dict[str, Tensor]]],
        example: Minibatch,
        scalars: Sequence[float],
        optimizer: DeferringOptimizer,
    ) -> None:
        self.updates: Sequence[DeferredUpdate] = []
        self._metrics: list[str] = []

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors)
            rows = example.each(lambda _: next(left))
            with optimizer.deferred() as updates:
                _, metrics = step(rows, *left)
            self._metrics, self.updates = list(metrics), updates
            return *metrics.values(), *(update.gradient for update in updates)

        inputs = (*example.tensors(), *map(_scalar, scalars))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shapes become constants, as they should
            run(*inputs)  # what is made on first use must not be made while tracing
            self._traced: Any = torch.jit.trace(run, inputs, check_trace=False)  # type: ignore[no-untyped-call]

    def __call__(self, rows: Minibatch, scalars: Sequence[Tensor]) -> _Found:
        # Without optimisation: fused operations would round in other ways.
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            found = self._traced(*rows.tensors(), *scalars)
        number = len(self._metrics)
        return _Found(dict(zip(self._metrics, found[:number], strict=True)), list(found[number:]))


def _rows(minibatch: M, share: Share) -> M:
    return minibatch if share.end - share.begin == share.total else minibatch.each(lambda tensor: tensor[share.rows])


def _joined(parts: Sequence[_Found], shares: Sequence[Share]) -> _Found:
    """Gradients and metrics of all rows: means are weighted by the rows of the parts."""
    joined = parts[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        weight = (share.end - share.begin) / share.end  # among the rows so far
        for all_, own in zip(joined.gradients, part.gradients, strict=True):
            all_.lerp_(own, weight)
        for name, value in joined.metrics.items():
            own = part.metrics[name]
            joined.metrics[name] = torch.cat([value, own]) if value.dim() else value.lerp(own, weight)
    return joined


@functools.cache
def _threads(number: int) -> ThreadPoolExecutor:
    """Threads beside this one. Torch computes with one thread in each."""
    return ThreadPoolExecutor(number, "outplay-learner", torch.set_num_threads, (1,))


os.register_at_fork(after_in_child=_threads.cache_clear)  # threads are not copied


class DeferredUpdate(Protocol):
    """An update that the optimizer has not made yet."""

    @property
    def groups(self) -> list[str]: ...

    @property
    def gradient(self) -> Tensor: ...

    @property
    def grad_clip(self) -> float | None: ...


class DeferringOptimizer(Protocol):
    """What a traced step needs of `learning.Optimizer`."""

    def deferred(self) -> AbstractContextManager[Sequence[DeferredUpdate]]: ...

    def finish(self, names: Sequence[str], gradient: Tensor, lr: float | Tensor, grad_clip: float | None) -> Tensor: ...


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
