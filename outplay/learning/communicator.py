"""What data-parallel learners exchange: sums of gradients and metrics, rows, arrays. With torch.distributed.

Each learner has a Communicator with a process group of its own, not torch's default group: several trainers can live in
one process. Sums are made by all-reduce. For a given number of learners they are the same bytes each time, and the same
on all learners.
"""

from __future__ import annotations

import datetime
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroupGloo, Store, TCPStore

from outplay.errors import LearnerDiedError
from outplay.learning.shares import Share

Array = np.ndarray

DIED = "a learner process died; if it was killed for lack of memory, use fewer learners (num_learners)"

_POLL = datetime.timedelta(seconds=1)  # between two checks whether the other learners are alive
_JOIN = datetime.timedelta(seconds=120)  # for all learners to connect
_POLLS_PER_CHECK = 100_000  # of a GPU operation: less than a second
_FOREVER = datetime.timedelta(days=365)  # operations end when a learner ends, not by time
_environment = threading.Lock()  # of the environment variables of this process


@dataclass(frozen=True)
class Address:
    """Where learners find each other: a file on one machine, a port of learner 0 on several."""

    host: str
    path: Path | None = None
    port: int = 0

    def store(self, size: int) -> Store:
        if self.path is not None:
            return FileStore(str(self.path), size)
        return TCPStore(self.host, self.port, size, is_master=False, timeout=_JOIN, wait_for_workers=False)


class Communicator:
    """Learner `rank` of `size`. It is used while `active`: in calls that all learners make.

    `check` is called while an operation waits; it raises if another learner has failed.
    """

    def __init__(self, store: Store, host: str, rank: int, size: int, check: Callable[[], None] | None = None):
        self.rank = rank
        self.size = size
        self.is_active = False
        self._check = check
        self._share: Share | None = None
        self._pending: Any = None  # the operation that is waited for
        self._is_sum = False  # whether losses are sums over rows
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = _JOIN
        self._nccl: Any = None
        try:
            self._gloo: Any = ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as error:
            raise LearnerDiedError(f"the learners could not connect: {error}") from error
        self._gloo._set_default_timeout(_FOREVER)

    def use_gpu(self, store: Store, identity: int) -> bool:
        """Sum gradients by NCCL if every learner has a GPU of its own. `identity` is a number that names the GPU."""
        everyone = torch.zeros(self.size, dtype=torch.int64)
        everyone[self.rank] = identity
        if len(set(self.sum(everyone).tolist())) < self.size:
            return False
        from torch._C._distributed_c10d import ProcessGroupNCCL  # torch for CPUs does not have it

        options = ProcessGroupNCCL.Options()
        options._timeout = _FOREVER
        with _nccl_raises_errors():
            self._nccl = ProcessGroupNCCL(PrefixStore("nccl", store), self.rank, self.size, options)
        return True

    @contextmanager
    def active(self) -> Iterator[None]:
        self.is_active = True
        try:
            yield
        finally:
            self.is_active, self._share = False, None

    @contextmanager
    def sharing(self, share: Share, is_sum: bool = False) -> Iterator[None]:
        """Losses in this block are means over the rows of `share`, or sums over them. Otherwise: over all rows."""
        self._share, self._is_sum = share, is_sum
        try:
            yield
        finally:
            self._share = None

    @property
    def share(self) -> Share | None:
        return self._share

    @property
    def weight(self) -> float:
        """The weight of this learner's gradients and metrics in their sum over all learners."""
        if self._share is None:
            return 1.0 / self.size
        return float(self._share.counts) if self._is_sum else self._share.weight

    def weighted_sum(self, gradient: Tensor) -> Tensor:
        """The gradient for the rows of all learners."""
        return self.sum(gradient * self.weight)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all learners, on each of them. Overwrites `tensor`."""
        if not tensor.is_cuda:
            self._wait(lambda: self._gloo.allreduce([tensor]))
        elif self._nccl is not None:
            self._wait_on_gpu(self._nccl.allreduce([tensor]))
        else:
            tensor.copy_(self.sum(tensor.cpu()))
        return tensor

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows of all learners, in order, from those of this one's share."""
        share = self._share
        assert share is not None
        everything = rows.new_zeros((share.total, *rows.shape[1:]))
        if share.counts:
            everything[share.rows] = rows
        return self.sum(everything)

    def send(self, arrays: Sequence[Array], numbers: Sequence[int], to: int) -> None:
        """Send arrays and numbers to another learner."""
        described = [(array.dtype.str, array.shape) for array in arrays]
        header = json.dumps([described, list(map(int, numbers))]).encode()
        data = b"".join([header, *(np.ascontiguousarray(array).tobytes() for array in arrays)])
        sizes = torch.tensor([len(header), len(data)])
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._wait(lambda: self._gloo.send([sizes], to, 0))
        self._wait(lambda: self._gloo.send([content], to, 0))

    def receive(self, source: int) -> tuple[list[Array], list[int]]:
        """Receive what `send` sends."""
        sizes = torch.zeros(2, dtype=torch.int64)
        self._wait(lambda: self._gloo.recv([sizes], source, 0))
        data = torch.empty(int(sizes[1]), dtype=torch.uint8)
        self._wait(lambda: self._gloo.recv([data], source, 0))
        content, at = data.numpy(), int(sizes[0])
        described, numbers = json.loads(content[:at].tobytes())
        arrays = []
        for name, shape in described:
            dtype, number = np.dtype(name), int(np.prod(shape))
            arrays.append(np.frombuffer(content[at : at + number * dtype.itemsize].tobytes(), dtype).reshape(shape))
            at += number * dtype.itemsize
        return arrays, numbers

    def _wait(self, start: Callable[[], Any]) -> None:
        """Start an operation and wait for it. In between, signals are handled, failures of other learners noticed."""
        try:
            self._pending = work = start()
        except RuntimeError as error:  # gloo has noticed before the operation starts that a connection is closed
            raise LearnerDiedError(DIED) from error
        while True:
            try:
                work.wait(_POLL)
            except RuntimeError as error:
                if work.is_completed():  # it has failed
                    raise LearnerDiedError(DIED) from error
                if self._check is not None:
                    self._check()
            else:
                self._pending = None
                return

    def _wait_on_gpu(self, work: Any) -> None:
        """As `_wait`. NCCL may not notice that another process has died: without `check`, it would wait forever."""
        polls = 0
        while not work.is_completed():  # completed, or failed
            polls += 1
            if polls % _POLLS_PER_CHECK == 0 and self._check is not None:
                self._check()
        try:
            work.wait()
        except RuntimeError as error:
            raise LearnerDiedError(DIED) from error

    @property
    def is_waiting(self) -> bool:
        """Whether an operation waits for other learners, or was abandoned."""
        return self._pending is not None and not self._pending.is_completed()

    def close(self) -> None:
        """Close the connections: operations of the other learners fail. If one waits here, they must be closed first.

        torch would wait for the operation without handling signals.
        """
        while self.is_waiting:
            with suppress(RuntimeError):
                self._pending.wait(_POLL)
        if self._nccl is not None:
            self._nccl.abort()
        self._gloo = self._nccl = self._pending = None


@contextmanager
def _nccl_raises_errors() -> Iterator[None]:
    """Process groups of NCCL that are made here raise the errors of an operation in `wait`.

    By default, torch ends the whole process when a connection of NCCL fails. It reads this variable while it makes a
    process group.
    """
    name = "TORCH_NCCL_BLOCKING_WAIT"
    with _environment:
        before = os.environ.get(name)
        os.environ[name] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
