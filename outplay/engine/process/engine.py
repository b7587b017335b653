"""The process engine's API. The driver and every worker run the same code."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from outplay.engine import serialize
from outplay.engine.base import Callee, Method, Ref, packed_types, result_types
from outplay.engine.options import Options, Reservation
from outplay.engine.process.calls import ActorLink, Call, Running
from outplay.engine.process.cancelling import cancel, cancel_for_another
from outplay.engine.process.entries import ActorToken, Entries, Entry, ProcessRef
from outplay.engine.process.exports import Exports
from outplay.engine.process.payload import CallSpec, Payload, RefArgument, WorkSpec
from outplay.engine.process.post import Post
from outplay.engine.process.store import Store
from outplay.engine.process.waiting import Waits
from outplay.engine.process.wire import HUB, Message
from outplay.engine.slots import this_node
from outplay.engine.typed import TypedSignature
from outplay.errors import ActorDiedError, EngineError, GetTimeoutError, OutplayError

_COLLECT_EVERY_S = 0.5


class ProcessEngine:
    """`put`, `get`, tasks and actors, from the driver or from inside a task or actor."""

    name = "process"

    def __init__(self, folder: str, key: bytes, index: int) -> None:
        self.running = Running()
        self.on_hub_lost: Callable[[], None] = lambda: None
        self.post = Post(folder, key, index, self._on_message, self._on_closed)
        self.store = Store(self.post)
        self.entries = Entries(self.post, self.store)
        self.waits = Waits(self.post, self.running)
        self._sent: dict[int, Call] = {}  # by the id of the first result
        self._links: weakref.WeakValueDictionary[int, ActorLink] = weakref.WeakValueDictionary()
        self._queued: set[ActorLink] = set()  # links with queued calls: keeps them alive
        self._reserved: set[int] = set()
        self._collected_at = 0.0
        self._exports = Exports(self.post, self.entries)
        self.handlers: dict[str, Callable[..., None]] = {
            "result": self._on_result,
            "failed": self._on_failed,
            "segment": lambda _, *segment: self.store.map(*segment),
            "value": self._on_value,
            "located": self._on_located,
            "unmap": lambda _, segments: self.store.forget(segments),
            "trim": self._on_trim,
            "reserved": lambda _, number: self._reserved.add(number),
            "cancel": lambda _, number, force: cancel_for_another(self, number, force),
        }

    def start(self) -> None:
        self.post.start(self.flush_notes)

    # Objects

    def put(self, value: Any) -> Ref:
        return ProcessRef(self.entries.own(serialize.dumps(value, "the object given to put()")), type(value))

    def get(self, refs: list[Ref], timeout: float | None) -> list[Any]:
        wanted = [self._entry_of(ref) for ref in refs]
        self.entries.want(wanted)
        position, failures = 0, -1

        def is_settled() -> bool:
            """Whether all objects exist, or one of them is an error."""
            nonlocal position, failures
            while position < len(wanted) and wanted[position].payload is not None:
                position += 1
            if position == len(wanted):
                return True
            if failures != self.entries.failures:  # only search for errors if a new one has arrived
                failures = self.entries.failures
                return any(entry.failed for entry in wanted)
            return False

        if not self.waits.wait(is_settled, timeout, lambda: wanted):
            missing = len(wanted) - position
            raise GetTimeoutError(f"{missing} of {len(wanted)} objects were not ready in {timeout:g} s")
        if position < len(wanted):
            wanted = [entry for entry in wanted if entry.failed]
        return [self.entries.load(entry) for entry in wanted]

    def wait(self, refs: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        wanted = [self._entry_of(ref) for ref in refs]
        self.entries.want(wanted)
        self.waits.wait(lambda: sum(e.payload is not None for e in wanted) >= num_returns, timeout, lambda: wanted)
        ready: list[Ref] = []
        others: list[Ref] = []
        for ref, entry in zip(refs, wanted, strict=True):
            (ready if entry.payload is not None and len(ready) < num_returns else others).append(ref)
        return ready, others

    def load(self, entry: Entry) -> Any:
        """The value of one object. Waits until it exists."""
        if entry.payload is None:
            self.entries.want([entry])
            self.waits.wait(lambda: entry.payload is not None, None, lambda: [entry])
        return self.entries.load(entry)

    def _entry_of(self, ref: Ref) -> Entry:
        if not isinstance(ref, ProcessRef) or ref._entry.table is not self.entries:
            raise EngineError(f"{ref} belongs to an engine that was shut down")
        return ref._entry

    def is_idle(self) -> bool:
        """Whether this process can exit without losing anything that another process needs."""
        unfinished = self._sent or self._queued or self.entries.is_promised()
        return not unfinished and not self.post.has_pending()

    # Tasks and actors

    def submit(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> list[Ref]:
        cpus = self._checked_cpus(callee, options, 1.0)
        exported = self._exports.export(callee)
        call, refs = self._prepare(callee, exported.name, args, kwargs, options.num_returns, exported.captured)
        with self.post.uninterrupted, self.post.lock:
            self._sent[call.results[0]] = call
            work = self._work(call, cpus, options, options.max_retries, lend=True)
            work = work._replace(retry_on=packed_types(options.retry_on))
            self.post.send(HUB, ("submit", *work.to_wire()))
        return refs

    def create(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> ActorToken:
        cpus = self._checked_cpus(callee, options, 0.0)
        exported = self._exports.export(callee)
        call, refs = self._prepare(callee, exported.name, args, kwargs, 1, exported.captured)
        entry = self._entry_of(refs[0])
        with self.post.uninterrupted:
            if options.name is not None:
                self.post.request("claim", options.name, entry.id, callee.interface())
            with self.post.lock:
                entry.holds, entry.shared = 1, True
                # The arguments are granted, not lent: the constructor runs again at each restart.
                work = self._work(call, cpus, options, options.max_restarts, lend=False)
                work = work._replace(max_concurrency=options.max_concurrency)
                self.post.send(HUB, ("create", *work.to_wire()))
                self._link(entry, callee.name)
        return ActorToken(entry, callee.name)

    def get_actor(self, name: str) -> tuple[ActorToken, Callee]:
        self._check_open()
        with self.post.uninterrupted:
            number, interface = self.post.request("find", name)
            (entry,) = self.entries.adopt((number,))
        callee: Callee = serialize.loads(interface, [])
        return ActorToken(entry, callee.name), callee

    def call(
        self, token: Any, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], num_returns: int
    ) -> list[Ref]:
        self._check_open()
        if token.entry.table is not self.entries:
            raise EngineError(f"actor {token.name} belongs to an engine that was shut down")
        call, refs = self._prepare(method, method.name, args, kwargs, num_returns, actor=token)
        with self.post.uninterrupted, self.post.lock:
            link: ActorLink = token.entry.link or self._link(token.entry, token.name)
            if link.death is not None:
                self._settle(call, [link.death] * num_returns)
            elif link.process is None:
                link.queue.append(call)
                self._queued.add(link)
                self.post.kick()
            else:
                self._send_call(link, call)
        return refs

    def cancel(self, ref: Ref, force: bool) -> None:
        cancel(self, self._entry_of(ref).id, force)

    def unfinished_calls(self) -> list[Call]:
        """The calls without a reply. Sent calls come first, the oldest first."""
        return [*self._sent.values(), *(call for link in self._queued for call in link.queue)]

    def fail_unsent(self, call: Call, error: OutplayError) -> None:
        self._settle(call, [self.entries.error_payload(error)] * len(call.results))

    def kill(self, token: Any) -> None:
        self.post.request("kill", token.entry.id)

    def reserve(self, bundles: tuple[tuple[float, float], ...], timeout: float | None) -> Reservation:
        number = self.entries.new_id()
        self.post.request("reserve", number, bundles)
        granted = False
        try:
            granted = self.waits.wait(lambda: number in self._reserved, timeout)
        finally:
            if not granted:  # a timeout, or Ctrl-C
                self.post.request("release", number)
            self._reserved.discard(number)
        if not granted:
            raise GetTimeoutError(f"the resources of reserve() were not free within {timeout:g} s")
        return Reservation(number, bundles)

    def release(self, reservation: Reservation) -> None:
        self.post.request("release", reservation.id)

    def nodes(self) -> list[dict[str, Any]]:
        totals, _ = self.post.request("resources")
        return [this_node(totals)]

    def available_resources(self) -> dict[str, float]:
        _, free = self.post.request("resources")
        return free  # type: ignore[no-any-return]

    def shutdown(self) -> None:
        raise EngineError("only the driver ends the engine")

    def is_inside_call(self) -> bool:
        return False  # api.attach marks workers

    def join_call(self) -> None:
        self.running.is_call = True

    def _check_open(self) -> None:
        if self.post.closed is not None:
            raise EngineError(self.post.closed)

    def _checked_cpus(self, callee: Callee, options: Options, default: float) -> float:
        """The CPUs of a call. Raises if this machine has too few. One CPU is always there, and needs no request."""
        self._check_open()
        cpus = options.cpus(default)
        if cpus > 1 or options.num_gpus > 0 or options.reservation is not None:
            self.post.request("check", callee.name, cpus, options.num_gpus, _reservation_id(options))
        return cpus

    # Calls

    def _prepare(
        self,
        what: Callee | Method,
        target: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_returns: int,
        captured: Sequence[Entry] = (),
        actor: ActorToken | None = None,
    ) -> tuple[Call, list[Ref]]:
        name = what.full_name
        signature: TypedSignature | None = what.signature
        packed, refs = serialize.dumps_call(name, args, kwargs, lambda arg: isinstance(arg, Ref))
        if self.entries.dropped:  # memory that is free already may be what the call needs
            self.entries.flush_dropped()
        arguments = self.entries.own(packed, is_argument=True)
        results = [self.entries.new_result() for _ in range(num_returns)]
        ref_arguments = [(place, self._entry_of(ref)) for place, ref in refs]
        numbers = tuple(entry.id for entry in results)
        defined = self._exports.export_definitions()
        all_captured = [*captured, *(defined.captured if defined else ())]
        parent = self.running.number
        call = Call(
            name, target, arguments, ref_arguments, numbers, defined and defined.name, all_captured, actor, parent
        )
        types = result_types(signature, num_returns)
        return call, [ProcessRef(entry, known) for entry, known in zip(results, types, strict=True)]

    def _work(self, call: Call, cpus: float, options: Options, retries: int, lend: bool) -> WorkSpec:
        return WorkSpec(self._spec(call, HUB, lend), cpus, options.num_gpus, _reservation_id(options), retries)

    def _spec(self, call: Call, to: int, lend: bool = True) -> CallSpec:
        """The call as a message to process `to`. Its objects are lent or granted here, see entries.py."""
        granted = [entry.id for entry in call.captured]
        lent: list[int] = []
        for entry in call.captured:
            self.entries.share(entry)
        for entry in (call.arguments, *(entry for _, entry in call.ref_arguments)):
            if entry.payload is None:
                self.entries.share(entry)
                granted.append(entry.id)
                continue
            granted.extend(entry.payload.refs)
            if entry.payload.place is None:
                continue
            if lend:
                lent.append(entry.id)
            else:
                self.entries.share(entry)
                granted.append(entry.id)
        self.entries.grant(tuple(granted), to)
        assert call.arguments.payload is not None
        ref_arguments: tuple[RefArgument, ...] = tuple(
            (place, entry.id, entry.payload) for place, entry in call.ref_arguments
        )
        return CallSpec(
            call.name,
            call.target,
            call.arguments.payload,
            ref_arguments,
            tuple(granted),
            tuple(lent),
            call.results,
            self.post.index,
            call.definitions,
        )

    def _send_call(self, link: ActorLink, call: Call) -> None:
        assert link.process is not None
        self._sent[call.results[0]] = call
        try:
            # Connect before granting: without a connection, the process would never release what it was granted.
            reached = self.post.connect(link.process)
        except EngineError as error:
            self._fail(call.results[0], self.entries.error_payload(error))
            return
        if not reached or not self.post.send(link.process, ("call", *self._spec(call, link.process).to_wire())):
            self._on_closed(link.process)

    def _link(self, actor: Entry, name: str) -> ActorLink:
        """Make the link to an actor, and ask the hub where the actor lives."""
        link = actor.link = self._links[actor.id] = ActorLink(actor.id, name)
        self.post.send(HUB, ("locate", actor.id, 0))
        return link

    def flush_notes(self) -> None:
        """Tell the hub about the objects and exports that finalizers have recorded as deleted."""
        self._exports.flush_deleted()
        self.entries.flush_dropped()

    # Messages

    def _on_message(self, sender: int, message: Message) -> None:
        self.handlers[message[0]](sender, *message[1:])

    def _on_result(
        self, _: int, number: int, payloads: list[Any], granted: tuple[int, ...], kept: tuple[int, ...]
    ) -> None:
        held = self.entries.adopt(granted)
        self._share_kept(kept)
        call = self._sent.pop(number, None)  # None: it was cancelled, or failed before this reply
        if call is not None:
            self._settle(call, [Payload._make(payload) for payload in payloads])
        del held  # releases what no entry refers to

    def _share_kept(self, kept: tuple[int, ...]) -> None:
        """The callee still uses arguments that it was lent: from now on, the hub counts them."""
        for entry in [self.entries.find(number) for number in kept]:
            if entry is not None:
                self.entries.share(entry)

    def _on_failed(
        self,
        _: int,
        number: int,
        worker: int,
        error: Payload,
        may_retry: bool,
        granted: tuple[int, ...] = (),
        kept: tuple[int, ...] = (),
    ) -> None:
        """A task failed. Decide whether to retry it: only the caller knows whether its results have arrived."""
        held = self.entries.adopt(granted)
        self._share_kept(kept)
        if worker != HUB:  # the task had started
            self.post.catch_up(worker)  # its results may have arrived already
        call = self._sent.get(number)
        if call is not None:
            # The worker may have stored a result before it died. Granted results are released with their entries.
            self.post.send(HUB, ("forget", tuple(result for result in call.results if result not in granted)))
        self.post.send(HUB, ("retry", number, may_retry and call is not None))
        if call is not None and not may_retry:
            self._fail(number, error)
        del held

    def _fail(self, number: int, error: Payload) -> None:
        call = self._sent.pop(number, None)
        if call is not None:
            self._settle(call, [error] * len(call.results))

    def _settle(self, call: Call, payloads: list[Payload]) -> None:
        for number, payload in zip(call.results, payloads, strict=True):
            entry = self.entries.find(number)
            if entry is not None and entry.payload is None:
                self.entries.resolve(entry, payload)

    def _on_value(self, _: int, number: int, payload: Payload, granted: tuple[int, ...]) -> None:
        held = self.entries.adopt(granted)
        entry = self.entries.find(number)
        if entry is not None and entry.payload is None:
            self.entries.resolve(entry, payload)
        del held

    def _on_located(self, _: int, number: int, incarnation: int, process: int | None, death: Payload | None) -> None:
        held = self.entries.adopt(death.refs) if death is not None else []
        link = self._links.get(number)
        if link is None:
            return
        link.contained = held
        lost, link.lost = link.lost, []
        link.incarnation, link.process, link.death = incarnation, process, death
        if lost:
            restarted = ActorDiedError(f"actor {link.name} died while it ran this call; it has been restarted")
            error = death or self.entries.error_payload(restarted)
            for call_number in lost:
                if call_number in self._sent:
                    self.post.send(HUB, ("forget", self._sent[call_number].results))
                    self._fail(call_number, error)
        while link.queue and link.process is not None:
            self._send_call(link, link.queue.popleft())
        while link.queue and death is not None:
            self._settle(call := link.queue.popleft(), [death] * len(call.results))
        if not link.queue:
            self._queued.discard(link)

    def _on_trim(self, _: int) -> None:
        """Another process needs memory: return free segments to the hub."""
        self.entries.flush_dropped()
        self.store.return_free()
        now = time.monotonic()
        if now - self._collected_at > _COLLECT_EVERY_S:
            self._collected_at = now
            self.post.later(gc.collect)  # reference cycles, such as tracebacks, may hold large objects

    def _on_closed(self, process: int) -> None:
        if process == HUB:
            self.on_hub_lost()
            return
        self.post.catch_up(process)  # it may have replied over another connection
        for link in [link for link in self._links.values() if link.process == process]:
            # The hub knows why the actor died, and whether it was restarted.
            link.lost += [n for n, call in self._sent.items() if call.actor and call.actor.entry.link is link]
            link.process = None
            self.post.send(HUB, ("locate", link.id, link.incarnation))


def _reservation_id(options: Options) -> int | None:
    return None if options.reservation is None else options.reservation.id
