"""A worker: a fresh interpreter that runs tasks, or hosts one actor."""

from __future__ import annotations

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
from outplay.engine.base import Callee, CarriedError, invoke, task_error
from outplay.engine.definitions import ReusableValues, definitions, reusable_values
from outplay.engine.process.engine import ProcessEngine
from outplay.engine.process.entries import Entry
from outplay.engine.process.payload import CallSpec, Payload, WorkSpec
from outplay.engine.process.reaping import raise_file_limit
from outplay.engine.process.wire import HUB
from outplay.engine.typed import TypedSignature
from outplay.errors import ActorDiedError, EngineError, OutplayError

_LEAVE_S = 2.0  # for a worker that has nothing more to do

# A call that arrived, with the entries of all that it mentions: they must outlive it.
Job = tuple[CallSpec, list[Entry]]


class Worker:
    """Takes jobs one at a time: tasks from the hub, or the construction of an actor and then its callers' calls."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.values = ReusableValues()
        self.instance: Any = None
        self.actor: Callee | None = None
        self.leaving = False
        self.tasks: deque[tuple[WorkSpec, list[Entry]]] = deque()
        self.construction: tuple[WorkSpec, list[Entry]] | None = None
        self.calls: deque[Job] = deque()
        self._callees: dict[str, Callee] = {}
        engine.on_hub_lost = _end_with_children
        handlers: dict[str, Callable[..., None]] = {
            "run": self._on_run,
            "make": self._on_make,
            "call": self._on_call,
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

    def _on_exit(self, _: int) -> None:
        self.leaving = True

    def _on_retire(self, _: int) -> None:
        if self.engine.is_quiet() and not self.tasks:
            self.leaving = True
        else:
            self.engine.post.send(HUB, ("stay",))

    def let_go(self) -> None:
        """Drop what the user's code made, while there is still a whole interpreter for it to end in."""
        self.instance, self.values = None, ReusableValues()
        gc.collect()

    def run(self) -> None:
        while True:
            self.engine.post.wait_until(self._has_work)
            if self.tasks:
                work, held = self.tasks.popleft()
                self.engine.in_call_with_slot = work.cpus > 0
                self._run_task(work.call)
                del work, held
                # Before anything can go wrong: a task whose answer is out must not be repeated.
                self.engine.post.send(HUB, ("done",))
                self._after_call()
            elif self.construction is not None:
                (work, held), self.construction = self.construction, None
                self.engine.in_call_with_slot = work.cpus > 0
                self._construct(work.call)
                del work, held
                self._after_call()
            elif self.calls and self.actor is not None:
                spec, held = self.calls.popleft()
                self._run_method(spec)
                del spec, held
                self._after_call()
            else:
                return

    def _has_work(self) -> bool:
        return bool(
            self.tasks or self.construction is not None or self.leaving or (self.calls and self.actor is not None)
        )

    def _run_task(self, spec: CallSpec) -> None:
        def run() -> list[Any]:
            callee = self._callee(spec)
            return self._invoke(spec, callee.target, callee.signature)

        self._answer(spec, run)
        self.engine.post.flush(spec.caller)

    def _run_method(self, spec: CallSpec) -> None:
        def run() -> list[Any]:
            assert self.actor is not None
            function = getattr(self.instance, spec.target)
            return self._invoke(spec, function, self.actor.methods.get(spec.target))

        self._answer(spec, run)

    def _construct(self, spec: CallSpec) -> None:
        try:
            self._learn_definitions(spec)
            with reusable_values(self.values):
                callee = self._callee(spec)
                self.instance = self._invoke(spec, callee.target, None)[0]
                self.actor = callee
        except OutplayError as error:
            death = ActorDiedError(f"actor {spec.name} died: its constructor failed", error)
            self.engine.post.send(HUB, ("unmade", self.engine.entries.error_payload(death)))
            self.leaving = True

    def _callee(self, spec: CallSpec) -> Callee:
        """The function or class of a call; the hub is asked for it once."""
        if spec.target not in self._callees:
            data = self.engine.post.request("fetch", spec.target)

            def unpack() -> tuple[tuple[Any, ...], dict[str, Any]]:
                path, callee = serialize.loads(data, [])
                _extend_path(path)
                return (callee,), {}

            # Unpickling imports the user's modules; what that raises is an error of the call.
            (self._callees[spec.target],) = invoke(spec.name, lambda callee: callee, unpack, 1, None)
        return self._callees[spec.target]

    def _learn_definitions(self, spec: CallSpec) -> None:
        if spec.definitions is None or definitions.knows(spec.definitions):
            return
        data = self.engine.post.request("fetch", spec.definitions)
        try:
            definitions.merge(spec.definitions, data)
        except Exception as error:  # noqa: BLE001 - unpickling imports the user's modules
            failure = task_error(spec.name, error, error.__traceback__)
            raise failure from failure.cause

    def _invoke(self, spec: CallSpec, function: Any, signature: TypedSignature | None) -> list[Any]:
        return invoke(spec.name, function, lambda: self._arguments(spec), len(spec.results), signature)

    def _arguments(self, spec: CallSpec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        keeper = self.engine.entries.entry(spec.payload.place.object) if spec.payload.place else None
        args, kwargs = self.engine.store.read(spec.payload, keeper)
        values = []
        for place, number, payload in spec.slots:
            entry = self.engine.entries.entry(number)
            if entry.payload is None and payload is not None:
                entry.payload = payload
                entry.contained = [self.engine.entries.entry(inner) for inner in payload.refs]
            try:
                values.append((place, self.engine.load(entry)))
            except OutplayError as error:
                raise CarriedError(error) from None
        return serialize.join_call(args, kwargs, values)

    def _answer(self, spec: CallSpec, run: Any) -> None:
        """Run the call and send its caller the results, or the error in place of each."""
        entries = self.engine.entries
        payloads: list[Payload] = []
        carried: list[Any] = []  # the entries of what is inside the results: kept until they are granted
        try:
            self._learn_definitions(spec)
            with reusable_values(self.values):
                self._pack(spec, run(), payloads, carried)
            granted = tuple(number for payload in payloads for number in payload.mentions)
        except OutplayError as error:
            # Results that were stored before another failed are the caller's already, to be dropped.
            granted = tuple(payload.place.object for payload in payloads if payload.place is not None)
            payloads = [entries.error_payload(error)] * len(spec.results)
            granted += payloads[0].refs * len(payloads)
        # What lies in the store is the caller's already; what is inside the results becomes so here.
        entries.grant(tuple(number for payload in payloads for number in payload.refs), spec.caller)
        kept = entries.keep(spec.lent)
        wire_form = [tuple(payload) for payload in payloads]
        try:
            self.engine.post.send(spec.caller, ("result", spec.id, wire_form, granted, kept))
        except EngineError as error:
            problem = entries.error_payload(error)
            self.engine.post.send(HUB, ("undelivered", spec.caller, spec.id, problem, granted, kept))
        del carried

    def _pack(self, spec: CallSpec, results: list[Any], payloads: list[Payload], carried: list[Any]) -> None:
        for number, value in zip(spec.results, results, strict=True):
            packed = serialize.dumps(value, f"the result of {spec.name}")
            payloads.append(self.engine.entries.to_payload(packed, number, spec.caller))
            carried.append(packed.carried)

    def _after_call(self) -> None:
        with reusable_values(self.values):
            self.values.end_of_call()
        sys.stdout.flush()
        sys.stderr.flush()
        self.engine.entries.flush_dropped()


def _extend_path(path: list[str]) -> None:
    known = set(sys.path)
    sys.path.extend(entry for entry in path if entry not in known)


def _end_with_children() -> None:
    """The hub is gone: end at once, and take what this worker started along."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _end_soon() -> None:
    time.sleep(_LEAVE_S)
    _end_with_children()


def main(settings: dict[str, Any]) -> None:
    """Entry point of a worker process."""
    # Ctrl-C in a terminal is for the driver, which ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    worker.let_go()
    engine.entries.flush_dropped()
    engine.post.flush()
    # Threads that the user's code left running would keep the process, and what it holds, for ever.
    threading.Thread(target=_end_soon, daemon=True).start()
