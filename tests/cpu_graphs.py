"""CUDA graphs on a CPU: operations are recorded as they are dispatched, and replayed on the same tensors.

As on a GPU, capturing computes nothing: what the operations have changed is set back. Replaying calls no Python code of
the recorded function; it reads and writes the memory that the function has read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CpuGraph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for operation, args, kwargs, results in self.operations:
                again = operation(*args, **kwargs)
                for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old is not new:
                        old.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: CpuGraph) -> None:
        super().__init__()
        self.graph = graph
        self._seen: dict[int, tuple[Any, Any]] = {}  # storages and what was in them

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._seen:
                    self._seen[storage.data_ptr()] = storage, storage.clone()
        results = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, results))
        return results

    def set_back(self) -> None:
        for storage, before in self._seen.values():
            storage.copy_(before)


class _Stream:
    def wait_stream(self, _: _Stream) -> None: ...

    def synchronize(self) -> None: ...


@contextmanager
def _capture(graph: CpuGraph) -> Iterator[None]:
    recording = _Recording(graph)
    with recording:
        yield
    recording.set_back()


def use_cpu_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `outplay.cudagraphs` work without a GPU."""
    empty_like: Callable[..., Tensor] = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, pin_memory=False, **kwargs: empty_like(*args, **kwargs))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CpuGraph)
    monkeypatch.setattr(torch.cuda, "graph", _capture)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
