"""Traced steps: on a CPU, what CUDA graphs are on a GPU. Operations are recorded once and replayed without Python.

For small networks, Python takes as long as what it computes. The record is a graph of TorchScript, whose interpreter
makes the same calls in the same order: results are those of the plain step, bit by bit.

With several threads, each computes other gradients of an update (of the critics, of the policy), or on its own rows of
a minibatch, and they meet once per update. Torch's own threads meet in every operation, and do not sleep while they
wait: that takes longer, and many times as long where other programs use the cores.

What this module sets concerns the whole process: freed memory stays with it (`keep_freed_memory`), and inside of
`one_dnn()` matrix products are those of oneDNN.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from outplay.cudagraphs import Minibatch
from outplay.learning.shares import Share, share_of
from outplay.policies.fused import buffers_of_part

M = TypeVar("M", bound=Minibatch)
Step = Callable[..., tuple[Tensor, dict[str, Tensor]]]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of mallopt, see malloc.h
_TRIM, _PAD, _MMAP = 1 << 28, 1 << 26, 1 << 25


class TracedSteps(Generic[M]):
    """Traced gradient steps without autograd, which start from the same parameters, by name.

    `traced(minibatch, *scalars)` returns the metrics of all steps, and under the name of each step the norm of its
    first gradient. The traces compute gradients; the optimizer changes the parameters after all of them. All
    minibatches have the shapes of the example.

    With as many threads as steps, each step has its own thread. With more threads for each step, they compute on
    adjacent rows, as data-parallel learners do. So losses and metrics have to be means over the rows, or have one entry
    per row.

    >>> steps = {"grad_norm": critic_step, "actor_grad_norm": actor_step}
    >>> traced = TracedSteps(steps, minibatch, [lr], optimizer)  # the first scalar is the learning rate
    >>> metrics = traced(minibatch, lr)
    """

    def __init__(
        self,
        steps: Mapping[str, Step],
        example: M,
        scalars: Sequence[float],
        optimizer: DeferringOptimizer,
        threads: int = 1,
    ) -> None:
        self._optimizer = optimizer
        self._uses_threads = threads >= max(2, len(steps))
        number = max(1, threads // len(steps))
        self._shares = [share_of(len(example), rank, number) for rank in range(number)]
        self._parts: dict[str, list[_Part]] = {name: [] for name in steps}  # of each step, one per share of the rows
        for i, ((name, step), share) in enumerate(product(steps.items(), self._shares)):
            # What is computed at the same time has its own memory.
            with buffers_of_part(i if self._uses_threads else 0):
                self._parts[name].append(_Part(step, _rows(example, share), scalars, optimizer))

    def __call__(self, minibatch: M, *scalars: float) -> dict[str, Tensor]:
        values = list(map(_scalar, scalars))
        rows = [_rows(minibatch, share) for share in self._shares]
        calls = [(part, own) for parts in self._parts.values() for part, own in zip(parts, rows, strict=True)]
        if self._uses_threads:
            computed = iter(self._in_threads(calls, values, scalars[0]))
        else:
            computed = iter([part(own, values) for part, own in calls])
        steps = [(name, _joined(list(islice(computed, len(rows))), self._shares)) for name in self._parts]
        metrics: dict[str, Tensor] = {}
        for name, found in steps:
            metrics |= {name: self._change(found, scalars[0]), **found.metrics}
        return metrics

    def _change(self, found: _Found, lr: float) -> Tensor:
        """Change the parameters. Returns the norm of the step's first gradient."""
        if found.prepared:
            for _, change in found.prepared:
                change()
            return found.prepared[0][0]
        norms = []
        for update, gradient in zip(found.updates, found.gradients, strict=True):
            norms.append(self._optimizer.finish(update.groups, gradient, lr, update.grad_clip))
        return norms[0]

    def _in_threads(self, calls: list[tuple[_Part, M]], values: list[Tensor], lr: float) -> list[_Found]:
        """The results of the calls: of the first in this thread, of each other one in another."""
        left = iter(range(len(calls) - 1, -1, -1))  # how many threads compute, after each one that ends
        computed = [partial(self._and_prepare, part, own, values, lr, left) for part, own in calls]
        others = [thread.begin(compute) for thread, compute in zip(_threads(len(calls) - 1), computed[1:], strict=True)]
        try:
            first = computed[0]()
        finally:
            outcomes = [other.get() for other in others]  # all: their buffers are used again by the next call
        return [first, *(_value(outcome) for outcome in outcomes)]

    def _and_prepare(self, part: _Part, own: M, values: list[Tensor], lr: float, left: Iterator[int]) -> _Found:
        found = part(own, values)
        if next(left):  # the last one need not: nobody else uses the old parameters any more
            self._prepare(found, lr)
        return found

    def _prepare(self, found: _Found, lr: float) -> None:
        """Compute the new parameters, while others still use the old ones."""
        if len(self._shares) == 1:  # the whole gradient is known
            pairs = zip(found.updates, found.gradients, strict=True)
            prepare = self._optimizer.prepare
            found.prepared = [prepare(update.groups, gradient, lr, update.grad_clip) for update, gradient in pairs]


@dataclass
class _Found:
    """What a step computes from its rows."""

    metrics: dict[str, Tensor]
    updates: Sequence[DeferredUpdate]
    gradients: list[Tensor]  # of each of the updates
    prepared: list[tuple[Tensor, Callable[[], None]]] = field(default_factory=list)  # see `Optimizer.prepare`


class _Part:
    """A trace of the step on some of the rows."""

    def __init__(
        self,
        step: Step,
        example: Minibatch,
        scalars: Sequence[float],
        optimizer: DeferringOptimizer,
    ) -> None:
        self._updates: Sequence[DeferredUpdate] = []
        self._metrics: list[str] = []

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors)
            rows = example.each(lambda _: next(left))
            with optimizer.deferred() as updates:
                _, metrics = step(rows, *left)
            self._metrics, self._updates = list(metrics), updates
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
        return _Found(dict(zip(self._metrics, found[:number], strict=True)), self._updates, list(found[number:]))


def _rows(minibatch: M, share: Share) -> M:
    return minibatch if share.end - share.begin == share.total else minibatch.rows(share.rows)


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


Outcome = _Found | BaseException


class _Thread(threading.Thread):
    """Computes one thing after the other, beside this thread. An executor takes several times as long to hand it over.

    Each result has a queue of its own, so that those of several callers, or of an interrupted one, are not mixed up.

    >>> thread.begin(compute).get()  # the result, or the exception
    """

    def __init__(self, number: int) -> None:
        super().__init__(name=f"outplay-learner-{number}", daemon=True)
        self._begun: SimpleQueue[tuple[Callable[[], _Found], SimpleQueue[Outcome]]] = SimpleQueue()
        self.start()

    def begin(self, compute: Callable[[], _Found]) -> SimpleQueue[Outcome]:
        ended: SimpleQueue[Outcome] = SimpleQueue()
        self._begun.put((compute, ended))
        return ended

    def run(self) -> None:
        torch.set_num_threads(1)
        while True:
            compute, ended = self._begun.get()
            try:
                outcome: Outcome = compute()
            except BaseException as error:  # noqa: BLE001 - raised where the result is taken
                outcome = error
            ended.put(outcome)
            del compute, ended, outcome  # not kept until the next one


def _value(outcome: Outcome) -> _Found:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@functools.cache
def _threads(number: int) -> list[_Thread]:
    """Threads beside this one. Torch computes with one thread in each."""
    return [_Thread(i) for i in range(number)]


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

    def prepare(
        self, names: Sequence[str], gradient: Tensor, lr: float | Tensor, grad_clip: float | None
    ) -> tuple[Tensor, Callable[[], None]]: ...


def can_trace() -> bool:
    """Whether this version of torch can trace."""
    return hasattr(torch, "jit") and hasattr(torch.jit, "trace") and sys.version_info < (3, 14)


@functools.lru_cache(maxsize=8)
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
