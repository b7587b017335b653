"""A worker: a new interpreter that runs tasks, or hosts one actor."""

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
from outplay.engine.endings import CLOSE_S, close, exit_status, exited
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

# A received call, with the entries of the objects that it was granted: they must live until it has finished.
Job = tuple[CallSpec, list[Entry]]


class _RetryError(Exception):
    """The task raised an exception after which it is retried: its caller gets no reply yet."""


class _ThreadState(threading.local):
    """The reusable variables of each thread that runs calls."""

    def __init__(self) -> None:
        self.values = ReusableValues()


class Worker:
    """Runs tasks from the hub, one at a time; or constructs an actor, and then runs the calls of its callers."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.thread = _ThreadState()
        self.threads: CallThreads | None = None  # of an actor with max_concurrency > 1
        self.instance: Any = None
        self.actor: Callee | None = None
        self.exiting = False
        self.exited = False  # the actor called sys.exit(): no other call starts
        self.exit_status = 0
        self.running: set[int] = set()  # the ids of the calls that run
        self.cancelled: set[int] = set()  # the ids of cancelled calls that run, or are about to start
        self.interrupts = Interrupts(engine.post.uninterrupted)
        self.tasks: deque[tuple[WorkSpec, list[Entry]]] = deque()
        self.construction: tuple[WorkSpec, list[Entry]] | None = None
        self.calls: deque[Job] = deque()
        self._callees: dict[str, Callee] = {}
        handlers: dict[str, Callable[..., None]] = {
            "run": self._on_run,
            "construct": self._on_construct,
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

    def _on_construct(self, _: int, *fields: Any) -> None:
        work = WorkSpec.from_wire(fields)
        self.construction = (work, self.engine.entries.adopt(work.call.granted))

    def _on_call(self, _: int, *fields: Any) -> None:
        spec = CallSpec.from_wire(fields)
        self.calls.append((spec, self.engine.entries.adopt(spec.granted) if spec.granted else []))
        if missing := [
            self.engine.entries.entry(number) for _, number, payload in spec.ref_arguments if payload is None
        ]:
            self.engine.entries.want(missing)

    def _on_interrupt(self, _: int, number: int) -> None:
        """A task of this worker, or a call of its actor, was cancelled."""
        for job in [job for job in self.calls if job[0].id == number]:
            self._remove(job)
            self._send_error(job[0], TaskCancelledError(f"{job[0].name} was cancelled before it started"))
        if number in self.running:
            self.cancelled.add(number)
            cancel_children(self.engine, number)
            if self.actor is None:  # methods of actors are not interrupted: the actor's state must stay consistent
                self.interrupts.ask()
        elif any(work.call.id == number for work, _ in self.tasks):
            self.cancelled.add(number)

    def _on_unexport(self, _: int, name: str) -> None:
        """Forget a function that has captured Refs: its owner has deleted it. A later call of it fetches it again."""
        self._callees.pop(name, None)

    def _on_exit(self, _: int) -> None:
        self.exiting = True

    def _on_retire(self, _: int) -> None:
        if self.engine.is_idle() and not self.tasks:
            self.exiting = True
        else:
            self.engine.post.send(HUB, ("busy",))

    def close(self) -> None:
        """Close the actor and delete the user's objects, while the interpreter is still intact."""
        if self.threads is not None:
            self.threads.stop()
        self.engine.post.send(HUB, ("closing",))
        if self.actor is not None:
            close(self.actor.name, self.instance)
        self.instance, self.thread = None, _ThreadState()
        gc.collect()

    # The main loop

    def run(self) -> None:
        while True:
            self.engine.post.wait_until(self._has_work_or_call)
            with self.engine.post.lock:
                is_ready = self._has_work()
            if not is_ready:
                self.engine.waits.wait(self._has_work, None, self._missing_arguments)
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

    def _has_work_or_call(self) -> bool:
        """Whether there is work, or a call whose arguments are missing: then the slot is released."""
        return self._has_work() or (bool(self.calls) and self.actor is not None and not self._is_full())

    def _has_work(self) -> bool:
        if self.exited or self.tasks or self.construction is not None or self._next_call() is not None:
            return True
        return self.exiting and not self._is_full()

    def _is_full(self) -> bool:
        return self.threads is not None and self.threads.full

    def _next_call(self) -> Job | None:
        """The oldest call whose arguments exist. One with missing arguments blocks later calls of its caller only."""
        if not self.calls or self.actor is None or self.exited or self._is_full():
            return None
        if not self.calls[0][0].ref_arguments:
            return self.calls[0]
        blocked: set[int] = set()  # callers
        entry = self.engine.entries.entry
        for job in self.calls:
            spec = job[0]
            if spec.caller not in blocked:
                if all(p is not None or entry(number).payload is not None for _, number, p in spec.ref_arguments):
                    return job
                blocked.add(spec.caller)
        return None

    def _missing_arguments(self) -> list[Entry]:
        arguments = [argument for spec, _ in self.calls for argument in spec.ref_arguments]
        return [self.engine.entries.entry(number) for _, number, payload in arguments if payload is None]

    def _take_call(self) -> list[Job]:
        """The next call, in a list. `_run_call` removes it, so that no other reference keeps its objects alive."""
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

    # Running calls

    def _run_task(self, work: WorkSpec) -> None:
        """Run a task, send the results to its caller, and tell the hub."""
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
                self._check_cancelled(spec)
                if self._should_retry(work):
                    raise _RetryError from None
                raise

        kept: tuple[int, ...] | None = None  # if it is retried: the lent arguments that are still in use
        try:
            self._reply(spec, run)
        except _RetryError:
            kept = self.engine.entries.keep(spec.lent)
        self.engine.post.flush(spec.caller)
        # As soon as possible: a task whose reply was sent must not be retried after a crash. And before the caller's
        # next task reaches the hub, which would start another worker for it.
        self.engine.post.send(HUB, ("done", kept))
        self._end(spec)
        self.interrupts.reset()

    def _should_retry(self, work: WorkSpec) -> bool:
        if self.interrupts.raised is None or work.retries == 0 or not work.retry_on:
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
                self._check_cancelled(spec)

        self._begin(spec)
        try:
            self._reply(spec, run)
        except SystemExit as error:
            self._exit(spec, error)
        self._end(spec)

    def _exit(self, spec: CallSpec, error: SystemExit) -> None:
        """A method called sys.exit(). Callers are told when the process has ended."""
        assert self.actor is not None
        self.exit_status = exit_status(error)
        if self.exit_status == 0:  # any other status counts as a crash, after which the actor may be restarted
            death = exited(self.actor.name, spec.name)
            self.engine.post.send(HUB, ("actor_ended", self.engine.entries.error_payload(death)))
        self.exited = True

    def _construct(self, work: WorkSpec) -> None:
        spec = work.call
        self._begin(spec)
        try:
            self._fetch_definitions(spec)
            with reusable_values(self.thread.values):
                callee = self._callee(spec)
                self.instance = self._invoke(spec, callee.target, None)[0]
                self.actor = callee
        except OutplayError as error:
            death = ActorDiedError(f"actor {spec.name} died: its constructor failed", error)
            self.engine.post.send(HUB, ("actor_ended", self.engine.entries.error_payload(death)))
            self.exiting = True
        if work.max_concurrency > 1:
            self.threads = CallThreads(work.max_concurrency, self.engine.post)
        self._end(spec)

    def _begin(self, spec: CallSpec) -> None:
        self.running.add(spec.id)
        self.engine.running.number, self.engine.running.is_call = spec.id, True

    def _check_cancelled(self, spec: CallSpec) -> None:
        if spec.id in self.cancelled:
            raise TaskCancelledError(f"{spec.name} was cancelled while it ran") from None

    def _end(self, spec: CallSpec) -> None:
        with self.engine.post.lock:
            self.running.discard(spec.id)
            self.cancelled.discard(spec.id)
        self.engine.running.number = None

    def _callee(self, spec: CallSpec) -> Callee:
        """The function or class of a call. It is fetched from the hub once."""
        known = self._callees.get(spec.target)
        if known is None:
            path, known = self._unpack(spec, self.engine.post.request("fetch", spec.target))
            _extend_path(path)
            self._callees[spec.target] = known
        return known

    @staticmethod
    def _unpack(spec: CallSpec, data: bytes) -> Any:
        """Unpickle. This imports the user's modules; an exception in them fails the call."""
        return invoke(spec.name, lambda value: value, lambda: ((serialize.loads(data, []),), {}), 1, None)[0]

    def _fetch_definitions(self, spec: CallSpec) -> None:
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
        for place, number, payload in spec.ref_arguments:
            entry = self.engine.entries.entry(number)
            if entry.payload is None and payload is not None:
                self.engine.entries.resolve(entry, payload)
            try:
                values.append((place, self.engine.load(entry)))
            except OutplayError as error:
                raise CarriedError(error) from None
        return serialize.join_call(args, kwargs, values)

    def _reply(self, spec: CallSpec, run: Any) -> None:
        """Run the call and send the results to its caller. If it raises, each result is the error."""
        payloads: list[Payload] = []
        carried: list[Any] = []  # keeps the objects inside the results alive until they are granted
        try:
            self._fetch_definitions(spec)
            with reusable_values(self.thread.values):
                self._pack(spec, run(), payloads, carried)
            granted = tuple(number for payload in payloads for number in payload.mentions)
        except OutplayError as error:
            carried.append(error)
            # The caller holds the results that were stored before another one failed. It must release them.
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
        # The caller holds results in shared memory already. Here it is granted the objects inside all results.
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


def _kill_own_group() -> None:
    """Kill this worker and its process group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _exit_watchdog() -> None:
    time.sleep(CLOSE_S)
    _kill_own_group()


def main(settings: dict[str, Any]) -> None:
    """Entry point of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until there is a task to interrupt, see Interrupts
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    raise_file_limit()
    for stream in (sys.stdout, sys.stderr):
        # Write whole lines, also if PYTHONUNBUFFERED is set: other processes write to the same stream.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    engine = ProcessEngine(settings["folder"], bytes.fromhex(settings["key"]), settings["index"])
    engine.on_hub_lost = _kill_own_group
    engine.start()
    api.attach(engine)
    worker = Worker(engine)
    engine.post.send(HUB, ("ready", os.getpid()))
    worker.run()
    # User code in close(), __del__ or atexit handlers, or a thread of the user, could keep the process alive forever.
    threading.Thread(target=_exit_watchdog, daemon=True).start()
    worker.close()
    engine.entries.flush_dropped()
    engine.post.flush()
    sys.exit(worker.exit_status)
