"""A worker: a fresh interpreter that runs tasks, or hosts one actor."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from outplay.engine import api, serialize
from outplay.engine.base import Callee, CarriedError, invoke, method_of, task_error
from outplay.engine.definitions import ReusableValues, definitions, reusable_values
from outplay.engine.endings import CLOSE_S, close, exit_status, left
from outplay.engine.process.cancelling import cancel_children
from outplay.engine.process.engine import ProcessEngine
from outplay.engine.process.entries import Entry
from outplay.engine.process.interrupts import Interrupts
from outplay.engine.process.payload import CallSpec, Payload, WorkSpec
from outplay.engine.process.reaping import raise_file_limit
from outplay.engine.process.threads import CallThreads
from outplay.engine.process.wire import HUB
from outplay.engine.typed import TypedSignature
from outplay.errors import ActorDiedError, EngineError, OutplayError, TaskCancelledError

# A call that arrived, with the entries of all that it mentions: they must outlive it.
Job = tuple[CallSpec, list[Entry]]


class _RepeatError(Exception):
    """The task raised what it is to be repeated for: its caller gets no answer yet."""


class _Thread(threading.local):
    """What each thread that runs calls has of its own."""

    def __init__(self) -> None:
        self.values = ReusableValues()


class Worker:
    """Takes jobs: tasks from the hub, one at a time, or the construction of an actor and then its callers' calls."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.thread = _Thread()
        self.threads: CallThreads | None = None  # of an actor that runs several calls at once
        self.instance: Any = None
        self.actor: Callee | None = None
        self.leaving = False
        self.exited = False  # the actor's own code called sys.exit(): no other call begins
        self.exit_status = 0
        self.running: set[int] = set()  # the ids of the calls that run
        self.cancelled: set[int] = set()  # those that run, or are about to, and are not wanted any more
        self.interrupts = Interrupts(engine.post.uninterrupted)
        self.tasks: deque[tuple[WorkSpec, list[Entry]]] = deque()
        self.construction: tuple[WorkSpec, list[Entry]] | None = None
        self.calls: deque[Job] = deque()
        self._callees: dict[str, Callee] = {}
        engine.on_hub_lost = _end_with_children
        handlers: dict[str, Callable[..., None]] = {
            "run": self._on_run,
            "make": self._on_make,
            "call": self._on_call,
            "interrupt": self._on_interrupt,
            "unexport": self._on_unexport,
            "exit": self._on_exit,
            "retire": self._on_retire,
        }
        engine.handlers |= handlers

    def _on_run(self, _: int, *fields: Any) -> None:
        work = WorkSpec.from_wire(fields)
        self.tasks.append((work, self.engine.entries.adopt(work.call.granted)))

    def _on_make(self, _: int, *fields: Any) -> None:
        work = WorkSpec.from_wire(fields)
        self.construction = (work, self.engine.entries.adopt(work.call.granted))

    def _on_call(self, _: int, *fields: Any) -> None:
        spec = CallSpec.from_wire(fields)
        self.calls.append((spec, self.engine.entries.adopt(spec.granted) if spec.granted else []))
        if late := [self.engine.entries.entry(number) for _, number, payload in spec.slots if payload is None]:
            self.engine.entries.want(late)

    def _on_interrupt(self, _: int, number: int) -> None:
        """A task that this worker was given, or a call of its actor, is not wanted any more."""
        for job in [job for job in self.calls if job[0].id == number]:
            self._remove(job)
            self._send_error(job[0], TaskCancelledError(f"{job[0].name} was cancelled before it started"))
        if number in self.running:
            self.cancelled.add(number)
            cancel_children(self.engine, number)
            if self.actor is None:  # an actor's method is not interrupted: others rely on the actor's state
                self.interrupts.ask()
        elif any(work.call.id == number for work, _ in self.tasks):
            self.cancelled.add(number)

    def _on_unexport(self, _: int, name: str) -> None:
        """A function that has captured Refs is gone where it was made. A call of it that still comes fetches it."""
        self._callees.pop(name, None)

    def _on_exit(self, _: int) -> None:
        self.leaving = True

    def _on_retire(self, _: int) -> None:
        if self.engine.is_quiet() and not self.tasks:
            self.leaving = True
        else:
            self.engine.post.send(HUB, ("stay",))

    def let_go(self) -> None:
        """Drop what the user's code made, while there is still a whole interpreter for it to end in."""
        if self.threads is not None:
            self.threads.stop()
        self.engine.post.send(HUB, ("closing",))
        if self.actor is not None:
            close(self.actor.name, self.instance)
        self.instance, self.thread = None, _Thread()
        gc.collect()

    # What is next

    def run(self) -> None:
        while True:
            self.engine.post.wait_until(self._has_news)
            with self.engine.post.lock:
                is_ready = self._has_work()
            if not is_ready:
                self.engine.waits.wait(self._has_work, None, self._late_arguments)
            if self.tasks:
                work, held = self.tasks.popleft()
                self._run_task(work)
                del work, held
                self._after_call()
            elif self.construction is not None:
                (work, held), self.construction = self.construction, None
                self._construct(work)
                del work, held
                self._after_call()
            elif jobs := self._take_call():
                if self.threads is None:
                    self._run_call(jobs)
                else:
                    self.threads.start(functools.partial(self._run_call, jobs))
            else:
                return

    def _has_news(self) -> bool:
        """Whether there is work, or a call that waits for its arguments: meanwhile others may use the slot."""
        return self._has_work() or (bool(self.calls) and self.actor is not None and not self._is_full())

    def _has_work(self) -> bool:
        if self.exited or self.tasks or self.construction is not None or self._next_call() is not None:
            return True
        return self.leaving and not self._is_full()

    def _is_full(self) -> bool:
        return self.threads is not None and self.threads.full

    def _next_call(self) -> Job | None:
        """The oldest call whose arguments are there; one that waits for them holds up its own caller alone."""
        if not self.calls or self.actor is None or self.exited or self._is_full():
            return None
        if not self.calls[0][0].slots:
            return self.calls[0]
        held_up: set[int] = set()
        entry = self.engine.entries.entry
        for job in self.calls:
            spec = job[0]
            if spec.caller not in held_up:
                if all(payload is not None or entry(number).payload is not None for _, number, payload in spec.slots):
                    return job
                held_up.add(spec.caller)
        return None

    def _late_arguments(self) -> list[Entry]:
        slots = [slot for spec, _ in self.calls for slot in spec.slots]
        return [self.engine.entries.entry(number) for _, number, payload in slots if payload is None]

    def _take_call(self) -> list[Job]:
        """The next call, in a list from which who runs it can take it: then nothing else holds on to it."""
        with self.engine.post.lock:
            job = self._next_call()
            if job is None:
                return []
            self._remove(job)
            return [job]

    def _remove(self, job: Job) -> None:
        if self.calls[0] is job:
            self.calls.popleft()
            return
        position = next(i for i, other in enumerate(self.calls) if other is job)
        del self.calls[position]

    # Running it

    def _run_task(self, work: WorkSpec) -> None:
        """Run a task, answer its caller, and tell the hub."""
        spec = work.call
        with self.engine.post.lock:
            self.interrupts.reset()
            self._begin(spec)
            if spec.id in self.cancelled:
                self.interrupts.ask()

        def run() -> list[Any]:
            callee = self._callee(spec)
            try:
                return self._invoke(spec, callee.target, callee.signature, guard=self.interrupts)
            except OutplayError:
                self._check_wanted(spec)
                if self._is_to_be_repeated(work):
                    raise _RepeatError from None
                raise

        kept: tuple[int, ...] | None = None  # if it is to be repeated: what of its arguments is still used
        try:
            self._answer(spec, run)
        except _RepeatError:
            kept = self.engine.entries.keep(spec.lent)
        self.engine.post.flush(spec.caller)
        # Before anything can go wrong: a task whose answer is out must not be repeated. And before the caller's next
        # task is at the hub, which would need another worker.
        self.engine.post.send(HUB, ("done", kept))
        self._end(spec)
        self.interrupts.reset()

    def _is_to_be_repeated(self, work: WorkSpec) -> bool:
        if self.interrupts.raised is None or work.again == 0 or not work.retry_on:
            return False
        return isinstance(self.interrupts.raised, self._unpack(work.call, work.retry_on))

    def _run_call(self, jobs: list[Job]) -> None:
        spec, held = jobs.pop()
        self._run_method(spec)
        del spec, held
        self._after_call()

    def _run_method(self, spec: CallSpec) -> None:
        def run() -> list[Any]:
            assert self.actor is not None
            function = method_of(self.instance, spec.target)
            try:
                return self._invoke(spec, function, self.actor.methods[spec.target].signature, passes=(SystemExit,))
            finally:
                self._check_wanted(spec)

        self._begin(spec)
        try:
            self._answer(spec, run)
        except SystemExit as leaving:
            self._exit(spec, leaving)
        self._end(spec)

    def _exit(self, spec: CallSpec, leaving: SystemExit) -> None:
        """The actor's own code ends it. Its callers learn of it when the process is gone."""
        assert self.actor is not None
        self.exit_status = exit_status(leaving)
        if self.exit_status == 0:  # any other counts as a crash, after which it may be started again
            death = left(self.actor.name, spec.name)
            self.engine.post.send(HUB, ("ended", self.engine.entries.error_payload(death)))
        self.exited = True

    def _construct(self, work: WorkSpec) -> None:
        spec = work.call
        self._begin(spec)
        try:
            self._learn_definitions(spec)
            with reusable_values(self.thread.values):
                callee = self._callee(spec)
                self.instance = self._invoke(spec, callee.target, None)[0]
                self.actor = callee
        except OutplayError as error:
            death = ActorDiedError(f"actor {spec.name} died: its constructor failed", error)
            self.engine.post.send(HUB, ("ended", self.engine.entries.error_payload(death)))
            self.leaving = True
        if work.max_concurrency > 1:
            self.threads = CallThreads(work.max_concurrency, self.engine.post)
        self._end(spec)

    def _begin(self, spec: CallSpec) -> None:
        self.running.add(spec.id)
        self.engine.running.number, self.engine.running.is_call = spec.id, True

    def _check_wanted(self, spec: CallSpec) -> None:
        if spec.id in self.cancelled:
            raise TaskCancelledError(f"{spec.name} was cancelled while it ran") from None

    def _end(self, spec: CallSpec) -> None:
        with self.engine.post.lock:
            self.running.discard(spec.id)
            self.cancelled.discard(spec.id)
        self.engine.running.number = None

    def _callee(self, spec: CallSpec) -> Callee:
        """The function or class of a call; the hub is asked for it once."""
        known = self._callees.get(spec.target)
        if known is None:
            path, known = self._unpack(spec, self.engine.post.request("fetch", spec.target))
            _extend_path(path)
            self._callees[spec.target] = known
        return known

    @staticmethod
    def _unpack(spec: CallSpec, data: bytes) -> Any:
        """Unpickling imports the user's modules; what that raises is an error of the call."""
        return invoke(spec.name, lambda value: value, lambda: ((serialize.loads(data, []),), {}), 1, None)[0]

    def _learn_definitions(self, spec: CallSpec) -> None:
        if spec.definitions is None or definitions.knows(spec.definitions):
            return
        data = self.engine.post.request("fetch", spec.definitions)
        try:
            definitions.merge(serialize.Exported(spec.definitions, data, []))
        except Exception as error:  # noqa: BLE001 - unpickling imports the user's modules
            failure = task_error(spec.name, error, error.__traceback__)
            raise failure from failure.cause

    def _invoke(self, spec: CallSpec, function: Any, signature: TypedSignature | None, **how: Any) -> list[Any]:
        return invoke(spec.name, function, lambda: self._arguments(spec), len(spec.results), signature, **how)

    def _arguments(self, spec: CallSpec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        keeper = self.engine.entries.entry(spec.payload.place.object) if spec.payload.place else None
        args, kwargs = self.engine.store.read(spec.payload, keeper)
        values = []
        for place, number, payload in spec.slots:
            entry = self.engine.entries.entry(number)
            if entry.payload is None and payload is not None:
                self.engine.entries.resolve(entry, payload)
            try:
                values.append((place, self.engine.load(entry)))
            except OutplayError as error:
                raise CarriedError(error) from None
        return serialize.join_call(args, kwargs, values)

    def _answer(self, spec: CallSpec, run: Any) -> None:
        """Run the call and send its caller the results, or the error in place of each."""
        payloads: list[Payload] = []
        carried: list[Any] = []  # what holds on to the entries of what is inside the results, until they are granted
        try:
            self._learn_definitions(spec)
            with reusable_values(self.thread.values):
                self._pack(spec, run(), payloads, carried)
            granted = tuple(number for payload in payloads for number in payload.mentions)
        except OutplayError as error:
            carried.append(error)
            # Results that were stored before another failed are the caller's already, to be dropped.
            granted = tuple(payload.place.object for payload in payloads if payload.place is not None)
            self._send_error(spec, error, granted)
            return
        self._send_results(spec, payloads, granted)
        del carried

    def _send_error(self, spec: CallSpec, error: OutplayError, granted: tuple[int, ...] = ()) -> None:
        payloads = [self.engine.entries.error_payload(error)] * len(spec.results)
        self._send_results(spec, payloads, granted + payloads[0].refs * len(payloads))

    def _send_results(self, spec: CallSpec, payloads: list[Payload], granted: tuple[int, ...]) -> None:
        entries = self.engine.entries
        # What lies in the store is the caller's already; what is inside the results becomes so here.
        entries.grant(tuple(number for payload in payloads for number in payload.refs), spec.caller)
        kept = entries.keep(spec.lent)
        wire_form = [tuple(payload) for payload in payloads]
        try:
            self.engine.post.send(spec.caller, ("result", spec.id, wire_form, granted, kept))
        except EngineError as error:
            problem = entries.error_payload(error)
            self.engine.post.send(HUB, ("undelivered", spec.caller, spec.id, problem, granted, kept))

    def _pack(self, spec: CallSpec, results: list[Any], payloads: list[Payload], carried: list[Any]) -> None:
        for number, value in zip(spec.results, results, strict=True):
            packed = serialize.dumps(value, f"the result of {spec.name}")
            payloads.append(self.engine.entries.result(packed, number, spec.caller))
            carried.append(packed.carried)

    def _after_call(self) -> None:
        with reusable_values(self.thread.values):
            self.thread.values.end_of_call()
        sys.stdout.flush()
        sys.stderr.flush()
        self.engine.flush_notes()


def _extend_path(path: list[str]) -> None:
    known = set(sys.path)
    sys.path.extend(entry for entry in path if entry not in known)


def _end_with_children() -> None:
    """The hub is gone: end at once, and take what this worker started along."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _end_soon() -> None:
    time.sleep(CLOSE_S)
    _end_with_children()


def main(settings: dict[str, Any]) -> None:
    """Entry point of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until there is a task that it could be for, see Interrupts
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    raise_file_limit()
    for stream in (sys.stdout, sys.stderr):
        # A line is written in one piece, also where PYTHONUNBUFFERED is set: others write to the same place.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    engine = ProcessEngine(settings["folder"], bytes.fromhex(settings["key"]), settings["index"])
    engine.start()
    api.attach(engine)
    worker = Worker(engine)
    engine.post.send(HUB, ("ready", os.getpid()))
    worker.run()
    # What the user's code does at its end, or a thread that it left running, could keep the process for ever.
    threading.Thread(target=_end_soon, daemon=True).start()
    worker.let_go()
    engine.entries.flush_dropped()
    engine.post.flush()
    sys.exit(worker.exit_status)
