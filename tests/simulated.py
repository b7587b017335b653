"""The parts of a simulated engine (`tests/simulation.py`): its wire, its processes, and the hub without sockets."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outplay.engine.process.counting import Counted, Objects
from outplay.engine.process.engine import ProcessEngine
from outplay.engine.process.hub import Hub
from outplay.engine.process.staffing import Staff
from outplay.engine.process.wire import DRIVER, HUB, Message
from outplay.engine.slots import Slots

if TYPE_CHECKING:
    from tests.simulation import Simulation

_STORE_BYTES = 1 << 30


def current() -> Simulation:
    """The simulation that runs: one at a time."""
    from tests.simulation import Simulation

    return Simulation.current


class Killed(BaseException):
    """Raised in the thread of a simulated process that was killed, wherever it waits."""


class Hang(AssertionError):
    """Somebody waits, and nothing can happen any more."""


@dataclass
class Line:
    """One direction of a connection."""

    messages: deque[tuple[bytes | None, int | None]] = field(default_factory=deque)  # with descriptors
    sent: int = 0
    read: int = 0
    speed: float = 1.0  # how likely it is that its next message arrives before others


@dataclass(eq=False)
class Process:
    """A simulated process: the driver, or a worker with a thread of its own."""

    index: int
    alive: bool = True
    engine: ProcessEngine | None = None
    thread: threading.Thread | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waits_for: Callable[[], bool] | None = None
    may_time_out: bool = False
    crash: BaseException | None = None


class SimulatedPost:
    """What `Post` does for a process, over the simulation's wire."""

    closed: str | None = None
    helper_leads = False

    def __init__(self, _: str, __: bytes, index: int, on_message: Any, on_closed: Any) -> None:
        self.index = index
        self.lock = contextlib.nullcontext()
        self.uninterrupted = contextlib.nullcontext()
        self.on_message, self.on_closed = on_message, on_closed
        self._simulation = current()
        self._process = self._simulation.processes[index]
        self._requests = itertools.count()
        self.replies: dict[int, Any] = {}

    def start(self, on_idle: Callable[[], None]) -> None:
        self.on_idle = on_idle

    def send(self, to: int, message: Message) -> bool:
        self._check_alive()
        return self._simulation.send(self.index, to, message)

    def connect(self, to: int) -> bool:
        self._check_alive()
        return self._simulation.connect(self.index, to)

    def request(self, kind: str, *args: Any) -> Any:
        number = next(self._requests)
        self.send(HUB, (kind, number, *args))
        self.wait_until(lambda: number in self.replies)
        answer = self.replies.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        self._check_alive()
        if done():
            return True
        if self.index == DRIVER:
            return self._simulation.run_until(done, may_give_up=timeout is not None)
        self._simulation.park(self._process, done, timeout is not None)
        self._check_alive()
        return done()

    def catch_up(self, process: int) -> None:
        while self._simulation.lines[process, self.index].messages:
            self._simulation.deliver(process, self.index)

    def flush(self, to: int | None = None) -> None:
        """What was sent is out; others may act on it before this process goes on, or is killed."""
        self._simulation.park(self._process, lambda: True, False)
        self._check_alive()

    def has_pending(self) -> bool:
        return False

    def later(self, function: Callable[[], object]) -> None:
        function()

    def kick(self) -> None: ...

    def wake(self) -> None: ...

    def _check_alive(self) -> None:
        if not self._process.alive:
            raise Killed


class SimulatedInterrupts:
    """A task that was cancelled is interrupted before its function is called: signals reach the main thread alone."""

    def __init__(self, _: object) -> None:
        self.asked = False
        self.raised: BaseException | None = None  # by the function

    def ask(self) -> None:
        self.asked = True

    def reset(self) -> None:
        self.asked, self.raised = False, None

    def __enter__(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.raised = error


class CheckedObjects(Objects):
    """Objects that notice when one is freed too early."""

    def _free(self, number: int, record: Counted) -> None:
        for process in current().living():
            entry = process.engine.entries.find(number) if process.engine else None
            assert entry is None or entry.holds == 0, f"{number:x} was freed while process {process.index} holds it"
        super()._free(number, record)


class SimulatedHub(Hub):
    """The hub without its sockets: messages are dispatched, counted and acted on by its own code."""

    def __init__(self, simulation: Simulation, cpus: int, gpus: int) -> None:
        self._simulation = simulation
        self._exports, self._asked_exports = {}, {}
        self.objects = CheckedObjects(_STORE_BYTES, self._send, self._is_alive)
        self.staff = Staff(Slots(cpus, gpus), [str(gpu) for gpu in range(gpus)], self.objects, self._send, {})

    def _send(self, to: int, message: Message, fd: int | None = None) -> None:
        self._simulation.send(HUB, to, message, None if fd is None else os.dup(fd))

    def dispatch(self, sender: int, message: Message) -> None:
        self._dispatch(sender, message)

    def _process_gone(self, index: int) -> None:
        if index in self.staff.workers:
            self.staff.process_gone(index, -9)
            self.objects.peer_died(index)


def close_descriptors(line: Line) -> None:
    for _, fd in line.messages:
        close(fd)
    line.messages.clear()


def close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
