"""The engine's calls on processes: the same code in the driver and in every worker.

What a process knows of an object or actor is an Entry. Refs, handles and views hold on to it, and Python counts
them; when the last is gone, the hub is told. Nothing here counts references by hand.

Two rules keep memory alive across processes. What a call's arguments are is lent: the caller holds it until the
answer is here, and the answer says what the callee keeps. Everything else that a message mentions is granted: before
it goes to another process, the hub is told that this process now holds it too.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outplay.engine import serialize
from outplay.engine.base import Callee, Method, Ref, result_types
from outplay.engine.definitions import definitions
from outplay.engine.options import Options, Reservation
from outplay.engine.process.payload import INLINE_BYTES, CallSpec, Payload, Slot, WorkSpec
from outplay.engine.process.post import Post
from outplay.engine.process.store import Store
from outplay.engine.process.wire import HUB, Message
from outplay.errors import ActorDiedError, EngineError, GetTimeoutError

_ID_BITS = 40
_BLOCKED_AFTER_S = 0.001


class Entry:
    """An object or actor as this process knows it."""

    __slots__ = ("__weakref__", "contained", "engine", "holds", "id", "payload", "segment", "shared", "wanted")

    def __init__(self, engine: ProcessEngine, number: int) -> None:
        self.engine = engine
        self.id = number
        self.payload: Payload | None = None  # None: not there yet
        self.holds = 0  # how many holds of this process the hub knows of
        self.shared = False  # the hub knows the object, and is to be told its payload
        self.wanted = False  # the hub was asked for the payload
        self.segment: tuple[int, int] | None = None  # where it lies, and its size, while only this process knows it
        self.contained: list[Entry] = []  # what the payload mentions

    def __del__(self) -> None:
        # A finalizer runs anywhere, in any thread, under any lock: it only leaves a note.
        if self.holds:
            self.engine.dropped.append((self.id, self.holds))
            if self.engine.post.helper_leads:
                self.engine.post.wake()
        elif self.segment is not None:
            self.engine.recycled.append(self.segment)


class ProcessRef(Ref):
    __slots__ = ("_entry",)

    def __init__(self, entry: Entry, known_type: Any) -> None:
        self._entry = entry
        self._type = known_type

    @property
    def id(self) -> int:
        return self._entry.id

    def __reduce__(self) -> Any:
        serialize.carry(self._entry)
        return _ref_again, (self._entry.id, self._type)


class ActorToken:
    """What a handle holds: the actor's entry. The actor ends when nobody holds it any more."""

    __slots__ = ("entry", "name")

    def __init__(self, entry: Entry, name: str) -> None:
        self.entry = entry
        self.name = name

    def __reduce__(self) -> Any:
        serialize.carry(self.entry)
        return _token_again, (self.entry.id, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorToken) and self.entry.id == other.entry.id

    def __hash__(self) -> int:
        return hash(self.entry.id)


def _ref_again(number: int, known_type: Any) -> ProcessRef:
    return ProcessRef(_current().entry(number), known_type)


def _token_again(number: int, name: str) -> ActorToken:
    return ActorToken(_current().entry(number), name)


def _current() -> ProcessEngine:
    from outplay.engine import api

    engine = api.engine()
    assert isinstance(engine, ProcessEngine)
    return engine


@dataclass
class Call:
    """A call that was sent, or waits to be: what must stay alive until its answer is here."""

    name: str
    method: str
    arguments: Entry
    behind: list[tuple[int | str, Entry]]
    results: tuple[int, ...]
    definitions: str | None
    keep: Any
    link: ActorLink | None = None  # of the actor it was sent to


@dataclass
class ActorLink:
    """The way to an actor: where it lives now, and the calls that wait to be told."""

    id: int
    name: str
    process: int | None = None
    incarnation: int = 0
    death: Payload | None = None
    queue: deque[Call] = field(default_factory=deque)
    lost: list[int] = field(default_factory=list)  # calls sent to an incarnation that has died


class ProcessEngine:
    """`put`, `get`, tasks and actors, from the driver or from inside a task or actor."""

    name = "process"

    def __init__(self, folder: str, key: bytes, index: int) -> None:
        self.index = index
        self.dropped: deque[tuple[int, int]] = deque()
        self.recycled: deque[tuple[int, int]] = deque()
        self.in_call_with_slot = False  # this process runs a call that holds CPUs: waiting gives them up
        self._waiting = 0
        self._ids = itertools.count((index << _ID_BITS) + 1)
        self._entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self._sent: dict[int, Call] = {}  # by the id of the first result
        self._promised: dict[int, Entry] = {}  # shared before they are there: others rely on this process
        self._reserved: set[int] = set()
        self._links: dict[int, ActorLink] = {}
        self._exported: set[str] = set()
        self.handlers: dict[str, Callable[..., None]] = {
            "result": self._on_result,
            "failed": self._on_failed,
            "value": self._on_value,
            "located": self._on_located,
            "gone": lambda _, segments: self.store.forget(segments),
            "trim": lambda _: self.store.give_back(),
            "reserved": lambda _, number: self._reserved.add(number),
        }
        self.on_hub_lost: Callable[[], None] = lambda: None
        self.post = Post(folder, key, index, self._on_message, self._on_closed, self.flush_dropped)
        self.store = Store(self.post)

    # Objects

    def put(self, value: Any) -> Ref:
        return ProcessRef(self._own(serialize.dumps(value, "the object given to put()")), type(value))

    def _own(self, packed: serialize.Packed) -> Entry:
        """An object of this process's own. Nobody else knows it until its Ref travels."""
        entry = self._new_entry()
        entry.payload = self.to_payload(packed, entry.id, self.index)
        entry.contained = packed.carried
        if entry.payload.place is not None:
            entry.segment = (entry.payload.place.segment, entry.payload.place.segment_size)
        return entry

    def get(self, refs: list[Ref], timeout: float | None) -> list[Any]:
        entries = [self._entry_of(ref) for ref in refs]
        self._want(entries)
        position = 0

        def all_there() -> bool:
            nonlocal position
            while position < len(entries) and entries[position].payload is not None:
                position += 1
            return position == len(entries)

        if not self._await(all_there, timeout):
            raise GetTimeoutError(
                f"{len(entries) - position} of {len(entries)} objects were not ready in {timeout:g} s"
            )
        return [self.load(entry) for entry in entries]

    def wait(self, refs: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        entries = [self._entry_of(ref) for ref in refs]
        self._want(entries)
        self._await(lambda: sum(entry.payload is not None for entry in entries) >= num_returns, timeout)
        ready: list[Ref] = []
        others: list[Ref] = []
        for ref, entry in zip(refs, entries, strict=True):
            (ready if entry.payload is not None and len(ready) < num_returns else others).append(ref)
        return ready, others

    def get_entry(self, entry: Entry) -> Any:
        """The value of one object, waiting for it if need be."""
        if entry.payload is None:
            self._want([entry])
            self._await(lambda: entry.payload is not None, None)
        return self.load(entry)

    def is_quiet(self) -> bool:
        """Whether nothing would be missed if this process ended now: no answer is due, no object is its own."""
        return (
            not self._sent
            and not self._promised
            and not any(entry.shared and self._is_mine(entry.id) for entry in self._entries.values())
        )

    def load(self, entry: Entry) -> Any:
        """The value of an object that is there; raises it if it is an error."""
        assert entry.payload is not None
        value = self.store.read(entry.payload, entry)
        if entry.payload.failed:
            raise value
        return value

    def to_payload(self, packed: serialize.Packed, number: int, holder: int) -> Payload:
        """Put a packed object into a message or, if it is large, into the store, held by process `holder`."""
        refs = tuple(entry.id for entry in packed.carried)
        if refs:
            with self.post.lock:
                for entry in packed.carried:
                    self._share(entry)
        if packed.nbytes <= INLINE_BYTES:
            buffers = tuple(bytes(buffer) for buffer in packed.buffers)
            return Payload(packed.data, buffers, refs, tuple(packed.writable))
        self.flush_dropped()
        if holder == self.index:
            return Payload(b"", (), refs, place=self.store.write_own(number, packed))
        return Payload(b"", (), refs, place=self.store.write_for(holder, number, packed))

    def _await(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, and give up this process's slot meanwhile if it takes more than a moment."""
        if not self.in_call_with_slot:
            return self.post.wait_until(done, timeout)
        start = time.monotonic()
        moment = _BLOCKED_AFTER_S if timeout is None else min(_BLOCKED_AFTER_S, timeout)
        if self.post.wait_until(done, moment):
            return True
        with self.post.lock:
            self._waiting += 1
            if self._waiting == 1:
                self.post.send(HUB, ("blocked",))
        try:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
            return self.post.wait_until(done, left)
        finally:
            with self.post.lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self.post.send(HUB, ("unblocked",))

    # Entries

    def entry(self, number: int) -> Entry:
        with self.post.lock:
            entry = self._entries.get(number)
            if entry is None:
                entry = self._entries[number] = Entry(self, number)
            return entry

    def _new_entry(self) -> Entry:
        return self.entry(next(self._ids))

    def _entry_of(self, ref: Ref) -> Entry:
        if not isinstance(ref, ProcessRef) or ref._entry.engine is not self:
            raise EngineError(f"{ref} belongs to an engine that was shut down")
        return ref._entry

    def _is_mine(self, number: int) -> bool:
        return number >> _ID_BITS == self.index

    def _want(self, entries: list[Entry]) -> None:
        with self.post.lock:
            for entry in entries:
                if entry.payload is None and not entry.wanted and not self._is_mine(entry.id):
                    entry.wanted = True
                    self.post.send(HUB, ("want", entry.id))

    def _share(self, entry: Entry) -> None:
        """Let the hub know the object, so that others can hold it and ask for it."""
        if entry.shared or not self._is_mine(entry.id):
            return
        entry.shared = True
        is_new = entry.holds == 0
        entry.holds += is_new
        entry.segment = None  # the hub's from now on
        self.post.send(HUB, ("share", entry.id, entry.payload, is_new))
        if entry.payload is None:
            self._promised[entry.id] = entry
            self.post.kick()  # somebody will wait for it while this process computes

    def adopt(self, granted: tuple[int, ...]) -> list[Entry]:
        """Take over the holds that came with a message. They last as long as the entries returned."""
        entries = [self.entry(number) for number in granted]
        for entry in entries:
            entry.holds += 1
        return entries

    def grant(self, mentioned: tuple[int, ...], to: int) -> None:
        if mentioned:
            self.post.send(HUB, ("grant", mentioned, to))

    def _resolve(self, entry: Entry, payload: Payload) -> None:
        entry.payload = payload
        entry.contained = [self.entry(number) for number in payload.refs]
        if entry.shared and self._is_mine(entry.id):
            self.post.send(HUB, ("resolve", entry.id, payload))
            self._promised.pop(entry.id, None)

    def keep(self, lent: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the lent objects that something here still looks at; the hub learns that this process does."""
        if not lent:
            return ()
        with self.post.lock:
            kept = [entry for number in lent if (entry := self._entries.get(number)) is not None]
            for entry in kept:
                if entry.holds == 0:
                    entry.holds = 1
                    self.post.send(HUB, ("grant", (entry.id,), self.index))
            return tuple(entry.id for entry in kept)

    def flush_dropped(self) -> None:
        while self.recycled:
            self.store.recycle(*self.recycled.popleft())
        if self.dropped:
            with self.post.lock:
                notes = []
                while self.dropped:
                    notes.append(self.dropped.popleft())
                    self._links.pop(notes[-1][0], None)
                self.post.send(HUB, ("drop", notes))

    # Calls

    def submit(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> list[Ref]:
        work, call, refs = self._work(
            callee, args, kwargs, options, 1.0, options.max_retries, options.num_returns, False
        )
        with self.post.lock:
            self._sent[work.call.id] = call
            self.post.send(HUB, ("submit", work))
        return refs

    def create(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> ActorToken:
        work, _, refs = self._work(callee, args, kwargs, options, 0.0, options.max_restarts, 1, True)
        entry = self._entry_of(refs[0])
        with self.post.lock:
            entry.holds, entry.shared = 1, True
            self._links[entry.id] = ActorLink(entry.id, callee.name)
            self.post.send(HUB, ("create", work))
            self.post.send(HUB, ("locate", entry.id, 0))
        return ActorToken(entry, callee.name)

    def call(
        self, token: Any, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], num_returns: int
    ) -> list[Ref]:
        self._check_open()
        if token.entry.engine is not self:
            raise EngineError(f"actor {token.name} belongs to an engine that was shut down")
        call, refs = self._prepare(method.full_name, method.name, args, kwargs, method.signature, num_returns, token)
        with self.post.lock:
            link = self._links.get(token.entry.id)
            if link is None:
                link = self._links[token.entry.id] = ActorLink(token.entry.id, token.name)
                self.post.send(HUB, ("locate", link.id, 0))
            if link.death is not None:
                self._settle(call, [link.death] * num_returns)
            elif link.process is None:
                link.queue.append(call)
                self.post.kick()
            else:
                self._send_call(link, call)
        return refs

    def _check_open(self) -> None:
        if self.post.closed is not None:
            raise EngineError(self.post.closed)

    def _work(
        self,
        callee: Callee,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        cpus: float,
        again: int,
        num_returns: int,
        constructs: bool,
    ) -> tuple[WorkSpec, Call, list[Ref]]:
        self._check_open()
        reservation = None if options.reservation is None else options.reservation.id
        cpus = options.cpus(cpus)
        self._check_resources(callee.name, cpus, options.num_gpus, reservation)
        target = self._export(callee)
        call, refs = self._prepare(callee.name, target, args, kwargs, callee.signature, num_returns, None)
        with self.post.lock:
            spec = self._spec(call, HUB, lend=not constructs)
        return WorkSpec(spec, cpus, options.num_gpus, reservation, again), call, refs

    def _check_resources(self, name: str, cpus: float, gpus: float, reservation: int | None) -> None:
        # The usual request needs no question: every machine has a core.
        if cpus > 1 or gpus > 0 or reservation is not None:
            self.post.request("check", name, cpus, gpus, reservation)

    def _prepare(
        self,
        name: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        signature: Any,
        num_returns: int,
        keep: Any,
    ) -> tuple[Call, list[Ref]]:
        packed, refs = serialize.dumps_call(name, args, kwargs, lambda arg: isinstance(arg, Ref))
        arguments = self._own(packed)
        entries = [self._new_entry() for _ in range(num_returns)]
        call = Call(
            name,
            method,
            arguments,
            [(place, self._entry_of(ref)) for place, ref in refs],
            tuple(entry.id for entry in entries),
            self._export_definitions(),
            keep,
        )
        types = result_types(signature, num_returns)
        return call, [ProcessRef(entry, known) for entry, known in zip(entries, types, strict=True)]

    def _spec(self, call: Call, to: int, lend: bool = True) -> CallSpec:
        """The call as a message to process `to`. A constructor's arguments are not lent: it may run again, later."""
        granted: list[int] = []
        lent: list[int] = []
        for entry in (call.arguments, *(entry for _, entry in call.behind)):
            if entry.payload is None:
                self._share(entry)
                granted.append(entry.id)
                continue
            granted.extend(entry.payload.refs)
            if entry.payload.place is not None:
                if lend:
                    lent.append(entry.id)
                else:
                    self._share(entry)
                    granted.append(entry.id)
        slots: list[Slot] = [(place, entry.id, entry.payload) for place, entry in call.behind]
        self.grant(tuple(granted), to)
        assert call.arguments.payload is not None
        return CallSpec(
            call.name,
            call.method,
            call.arguments.payload,
            tuple(slots),
            tuple(granted),
            tuple(lent),
            call.results,
            self.index,
            call.definitions,
        )

    def _send_call(self, link: ActorLink, call: Call) -> None:
        assert link.process is not None
        spec = self._spec(call, link.process)
        call.link = link
        self._sent[spec.id] = call
        if not self.post.send(link.process, ("call", *spec.to_wire())):
            self._on_closed(link.process)

    def _export(self, callee: Callee) -> str:
        """Give the hub the function or class, once; its name there."""
        known: str | None = callee.exports.get("process")
        if known is None or known not in self._exported:
            data = serialize.function_bytes((list(sys.path), callee), callee.target)
            known = callee.exports["process"] = hashlib.sha256(data).hexdigest()[:32]
            self._export_bytes(known, data)
        return known

    def _export_definitions(self) -> str | None:
        exported = definitions.export()
        if exported is None:
            return None
        self._export_bytes(*exported)
        return exported[0]

    def _export_bytes(self, name: str, data: bytes) -> None:
        if name not in self._exported:
            self._exported.add(name)
            self.post.send(HUB, ("export", name, data))

    def kill(self, token: Any) -> None:
        self.post.request("kill", token.entry.id)

    def reserve(self, bundles: tuple[tuple[float, float], ...], timeout: float | None) -> Reservation:
        number = next(self._ids)
        self.post.request("reserve", number, bundles)
        if not self._await(lambda: number in self._reserved, timeout):
            self.post.request("release", number)
            raise GetTimeoutError(f"the resources of reserve() were not free within {timeout:g} s")
        self._reserved.discard(number)
        return Reservation(number, bundles)

    def release(self, reservation: Reservation) -> None:
        self.post.request("release", reservation.id)

    def shutdown(self) -> None:
        raise EngineError("only the driver ends the engine")

    # Messages

    def _on_message(self, sender: int, message: Message) -> None:
        self.handlers[message[0]](sender, *message[1:])

    def _on_result(
        self, _: int, number: int, payloads: list[Any], granted: tuple[int, ...], kept: tuple[int, ...]
    ) -> None:
        held = self.adopt(granted)
        for entry in [self._entries.get(lent) for lent in kept]:
            if entry is not None:
                self._share(entry)
        call = self._sent.pop(number, None)  # None: it was given up, and this is a late answer
        if call is not None:
            self._settle(call, [Payload._make(payload) for payload in payloads])
        del held  # what no entry has taken over is dropped here

    def _on_failed(self, _: int, number: int, error: Payload) -> None:
        call = self._sent.pop(number, None)
        if call is not None:
            # A result may have reached the store before its worker died.
            self.post.send(HUB, ("forget", call.results))
            self._settle(call, [error] * len(call.results))

    def _settle(self, call: Call, payloads: list[Payload]) -> None:
        for number, payload in zip(call.results, payloads, strict=True):
            entry = self._entries.get(number)
            if entry is not None and entry.payload is None:
                self._resolve(entry, payload)

    def _on_value(self, _: int, number: int, payload: Payload, granted: tuple[int, ...]) -> None:
        held = self.adopt(granted)
        entry = self._entries.get(number)
        if entry is not None and entry.payload is None:
            self._resolve(entry, payload)
        del held

    def _on_located(self, _: int, number: int, incarnation: int, process: int | None, death: Payload | None) -> None:
        link = self._links.get(number)
        if link is None:
            return
        lost, link.lost = link.lost, []
        link.incarnation, link.process, link.death = incarnation, process, death
        if lost:
            error = death or self.error_payload(
                ActorDiedError(f"actor {link.name} died while it ran this call; it has been restarted")
            )
            for call_number in lost:
                self._on_failed(HUB, call_number, error)
        while link.queue and link.process is not None:
            self._send_call(link, link.queue.popleft())
        while link.queue and death is not None:
            self._settle(call := link.queue.popleft(), [death] * len(call.results))

    def _on_closed(self, process: int) -> None:
        if process == HUB:
            self.on_hub_lost()
            return
        for link in [link for link in self._links.values() if link.process == process]:
            # Why it died, and whether it lives on elsewhere, is for the hub to say.
            link.lost.extend(number for number, call in self._sent.items() if call.link is link)
            link.process = None
            self.post.send(HUB, ("locate", link.id, link.incarnation))

    def error_payload(self, error: BaseException) -> Payload:
        """An error as a payload. It always travels whole, so that it cannot fail to."""
        packed = serialize.dumps(error, "an exception")
        with self.post.lock:
            for entry in packed.carried:
                self._share(entry)
        refs = tuple(entry.id for entry in packed.carried)
        return Payload(packed.data, tuple(bytes(b) for b in packed.buffers), refs, failed=True)
