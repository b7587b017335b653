"""The process engine without processes: its own code over a wire in memory, in any order of events that can happen.

Everything that decides is the real thing: `Hub`, `Objects`, `Staff`, `ProcessEngine`, `Entries`, `Store`, `Worker`.
Replaced are the sockets (`SimulatedPost`) and the starting and killing of processes. Every simulated worker is a
thread, and only one thread runs at a time: a worker runs until it waits, and then the simulation chooses the next
event. So a seed decides the order of events, and a run can be repeated.

What the real sockets promise holds here: messages between two processes arrive in order, and what a process told the
hub before it sent a message to another process has arrived when a round of the hub's loop ends that began after.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from outplay.engine import api
from outplay.engine.process import backlog, dismissals, entries, staffing
from outplay.engine.process import engine as engine_module
from outplay.engine.process import worker as worker_module
from outplay.engine.process.crew import Worker as Hired
from outplay.engine.process.engine import ProcessEngine
from outplay.engine.process.hub import _CHECK_S
from outplay.engine.process.wire import DRIVER, HUB, Message
from outplay.engine.process.worker import Worker
from outplay.errors import EngineError
from tests.simulated import (
    Hang,
    Killed,
    Line,
    Process,
    SimulatedHub,
    SimulatedInterrupts,
    SimulatedPost,
    close,
    close_descriptors,
)

INLINE_BYTES = 1024  # so that a few kilobytes count as a large object
_CLOSED = None  # in place of a message: the end of the stream
_PATIENCE_S = 60.0  # real seconds: a simulated worker that runs this long without waiting hangs


_SPEEDS = (1.0, 1.0, 0.02)


class Simulation:
    """All processes of one engine, and the wire between them."""

    current: Simulation

    def __init__(self, seed: int, cpus: int, slowness: float = 0.1, gpus: int = 0) -> None:
        Simulation.current = self
        self.slowness = slowness  # how likely it is that a second passes before anything else happens
        gc.freeze()  # so that collecting costs little: what is here already is none of this simulation's
        gc.disable()  # or the moment of a finalizer would differ from run to run
        self.random = random.Random(seed)
        self.processes: dict[int, Process] = {}
        self.lines: dict[tuple[int, int], Line] = {}
        self.now = 0.0  # the hub's clock
        self.most_workers = 0
        self.any_killed = False  # then objects may be lost
        self.faults: list[str] = []
        self.runs: Counter[int] = Counter()  # how often tasks were begun, if they count it
        self._numbers = itertools.count()
        self.refuse_hires = 0
        self.refuse_connections = 0  # how many of the next ones fail, as they do without free descriptors
        self._connected: set[frozenset[int]] = set()
        self._back = threading.Semaphore(0)
        self._round: dict[tuple[int, int], int] = {}  # how much had been sent to the hub when its round began
        self._patches = contextlib.ExitStack()
        for target, name, value in (
            (engine_module, "Post", SimulatedPost),
            (entries, "INLINE_BYTES", INLINE_BYTES),
            (backlog, "time", SimpleNamespace(monotonic=lambda: self.now)),
            (dismissals, "time", SimpleNamespace(monotonic=lambda: self.now)),
            (dismissals, "kill_group", self._kill_group),
            (staffing, "time", SimpleNamespace(monotonic=lambda: self.now)),
            (worker_module, "Interrupts", SimulatedInterrupts),
            (staffing, "start_worker", self._hire),
            (staffing, "kill_group", self._kill_group),
            (api, "_engine", None),
        ):
            self._patches.enter_context(mock.patch.object(target, name, value))
        self.hub = SimulatedHub(self, cpus, gpus)
        self._add(DRIVER)
        self.driver = self.processes[DRIVER].engine = ProcessEngine("", b"", DRIVER)
        self.driver.start()
        api._engine = self.driver

    def next_number(self) -> int:
        """A number that no other object of this simulation has."""
        return next(self._numbers)

    def living(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def workers(self) -> list[Process]:
        return [process for process in self.living() if process.index != DRIVER]

    def close(self) -> None:
        for process in self.workers():
            self.kill(process)
        for segment in list(self.hub.objects._segments):
            self.hub.objects._destroy(segment)
        for process in self.processes.values():
            if process.engine is not None:
                process.engine.store.forget(list(process.engine.store._mapped))
        for line in self.lines.values():
            close_descriptors(line)
        self._patches.close()
        gc.enable()
        gc.unfreeze()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The wire

    def connect(self, sender: int, to: int) -> bool:
        pair = frozenset((sender, to))
        if HUB in pair:
            return to == HUB or self.processes[to].alive
        if pair not in self._connected:
            if self.refuse_connections > 0:
                self.refuse_connections -= 1
                raise EngineError("no connection to another process could be made: too many open files")
            if not self.processes[to].alive:
                return False
            self._connected.add(pair)
        return True

    def send(self, sender: int, to: int, message: Message, fd: int | None = None) -> bool:
        if not self.connect(sender, to):
            close(fd)
            return False
        if to != HUB and not self.processes[to].alive:
            return True  # as long as the end of a connection is not noticed, what is sent is lost
        line = self.lines[sender, to]
        line.messages.append((pickle.dumps(message, protocol=5), fd))
        line.sent += 1
        return True

    def deliver(self, sender: int, to: int) -> None:
        """Let a process handle the next message from another."""
        line = self.lines[sender, to]
        data, fd = line.messages.popleft()
        line.read += 1
        if to == HUB:
            if data is None:
                self.hub._process_gone(sender)
            else:
                self.hub.dispatch(sender, pickle.loads(data))
            return
        engine = self.processes[to].engine
        assert engine is not None
        post: Any = engine.post
        with self._as(self.processes[to]):
            if data is None:
                self._connected.discard(frozenset((sender, to)))
                post.on_closed(sender)
                return
            message = pickle.loads(data)
            if message[0] == "reply":
                post.replies[message[1]] = message[2]
            else:
                post.on_message(sender, message if fd is None else (*message, fd))

    def _end_round(self) -> None:
        """What had been sent when this round of the hub began has been read when it ends."""
        for pair, sent in self._round.items():
            while self.lines[pair].read < sent:
                self.deliver(*pair)
        self.hub.objects.end_round()
        self._round = {pair: line.sent for pair, line in self.lines.items() if pair[1] == HUB}

    def _look(self) -> None:
        """Time passes, and the hub acts on it."""
        self.now += _CHECK_S + 1e-6
        self.hub.staff.schedule()
        self.hub.staff.retire_surplus()
        self.hub.staff.dismissals.kill_overdue()

    # Processes

    def _add(self, index: int) -> Process:
        process = self.processes[index] = Process(index)
        for other in [HUB, *self.processes]:
            self.lines[index, other] = Line(speed=self.random.choice(_SPEEDS))
            self.lines[other, index] = Line(speed=self.random.choice(_SPEEDS))
        return process

    def _hire(self, index: int, flavour: Any, *_: Any) -> Hired:
        if self.refuse_hires > 0:
            self.refuse_hires -= 1
            raise OSError("too many processes")
        self._add(index)
        self.most_workers = max(self.most_workers, len(self.workers()))
        popen: Any = SimpleNamespace(pid=index, returncode=None)
        return Hired(index, popen, flavour)

    def _boot(self, process: Process) -> None:
        process.thread = threading.Thread(target=self._main, args=(process,), daemon=True)
        process.thread.start()
        self._resume(process)

    def _main(self, process: Process) -> None:
        process.go.acquire()
        try:
            if process.alive:
                engine = process.engine = ProcessEngine("", b"", process.index)
                engine.start()
                api._engine = engine
                worker = Worker(engine)
                engine.post.send(HUB, ("ready", process.index))
                worker.run()
                worker.close()
                engine.entries.flush_dropped()
                self.any_killed |= worker.actor is not None  # an actor takes along what it has started
                self._end(process)
        except Killed:
            pass
        except BaseException as error:
            process.crash = error
        self._back.release()

    def park(self, process: Process, done: Callable[[], bool], may_time_out: bool) -> None:
        """Called in a worker's thread: let the others run until `done()`."""
        process.waits_for, process.may_time_out = done, may_time_out
        self._back.release()
        process.go.acquire()
        process.waits_for = None

    def _resume(self, process: Process) -> None:
        with self._as(process):
            process.go.release()
            if not self._back.acquire(timeout=_PATIENCE_S):
                raise Hang(f"process {process.index} neither waits nor ends")
        if process.crash is not None:
            raise process.crash

    @contextlib.contextmanager
    def _as(self, process: Process) -> Iterator[None]:
        before, api._engine = api._engine, process.engine
        try:
            yield
        finally:
            api._engine = before

    def kill(self, process: Process, by_hand: bool = False) -> None:
        self.any_killed |= by_hand
        if process.alive:
            self._end(process)
            if process.thread is not None:
                self._resume(process)
                process.thread.join()

    def _kill_group(self, pid: int) -> None:
        self.kill(self.processes[pid])

    def _end(self, process: Process) -> None:
        process.alive = False
        for other in self.living():
            close_descriptors(self.lines[other.index, process.index])
            if frozenset((process.index, other.index)) in self._connected:
                self.lines[process.index, other.index].messages.append((_CLOSED, None))
        close_descriptors(self.lines[HUB, process.index])
        self.lines[process.index, HUB].messages.append((_CLOSED, None))
        self.lines[process.index, HUB].sent += 1

    # Events

    def _events(self) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = [
            (self.deliver, *pair)
            for pair, line in self.lines.items()
            if line.messages and (pair[1] == HUB or (self.processes[pair[1]].alive and self.processes[pair[1]].engine))
        ]
        for process in self.living():
            if process.thread is None and process.index != DRIVER:
                events.append((self._boot, process))
            elif process.waits_for is not None and (process.may_time_out or process.waits_for()):
                events.append((self._resume, process))
            if process.engine is not None and (process.engine.entries.dropped or process.engine.entries.recycled):
                events.append((process.engine.flush_notes,))
        if events or any(self.hub.objects._unheld):
            events.append((self._end_round,))
        if self.random.random() < self.slowness if events else self.hub.staff.due_in() is not None:
            events.append((self._look,))
        return events

    def step(self) -> bool:
        """Let one thing happen; False if nothing can."""
        events = self._events()
        if not events:
            return False
        weights = [self.lines[event[1:]].speed if event[0] == self.deliver else 1.0 for event in events]
        ((act, *args),) = self.random.choices(events, weights)
        act(*args)
        return True

    def run_until(self, done: Callable[[], bool], may_give_up: bool = False) -> bool:
        while not done():
            if not self.step():
                if may_give_up:
                    return False
                raise Hang("what is waited for will never be there")
        return True

    def settle(self) -> None:
        """Until nothing is on its way, and no worker has anything left to do."""
        while self.step():
            pass

    # What must hold

    def expect(self, condition: bool, otherwise: str) -> None:
        """For simulated workers, whose exceptions are results like others."""
        if not condition:
            self.faults.append(otherwise)

    def check_counts(self) -> None:
        """Once nothing is on its way, the hub counts exactly the holds that the processes have."""
        for process in self.living():
            counted = dict(self.hub.objects._holds.get(process.index, {}))
            table = process.engine.entries._entries if process.engine else {}
            held = {entry.id: entry.holds for entry in table.values() if entry.holds}
            uncounted = [e.id for e in table.values() if not e.holds and process.engine and not e.table.is_mine(e.id)]
            assert not uncounted, f"process {process.index} uses {uncounted}, which the hub does not know"
            assert counted == held, f"process {process.index} holds {held}, the hub has counted {counted}"

    def check_nothing_is_left(self) -> None:
        """No object is known to the hub, and all memory is free: in its pool, or leased and free."""
        objects = self.hub.objects
        assert not objects._objects, f"{objects._objects} are held by {objects._holds}"
        free = [number for numbers in objects._pool.values() for number in numbers]
        for process in self.living():
            if process.engine is not None:
                free += [number for numbers in process.engine.store._free.values() for number in numbers]
        assert sorted(free) == sorted(objects._segments)
