"""The inline engine: calls run in this process, sequentially, inside `.remote()`.

For debugging, tests and small programs. Arguments and results are serialised as in the other engines. So a program
cannot share memory by accident here and fail to do so elsewhere.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from outplay.engine import serialize
from outplay.engine.base import (
    Attempt,
    Callee,
    CarriedError,
    Method,
    Ref,
    force_refused,
    invoke,
    method_of,
    name_taken,
    no_actor,
    result_types,
)
from outplay.engine.definitions import ReusableValues, reusable_values
from outplay.engine.endings import close, exited
from outplay.engine.options import Options, Reservation
from outplay.engine.slots import Lease, Slots, this_node
from outplay.errors import (
    ActorDiedError,
    EngineError,
    GetTimeoutError,
    OutplayError,
    ResourceError,
    TaskCancelledError,
)
from outplay.machine import count_cpus, visible_gpus

_CTRL_C = (KeyboardInterrupt,)
_ids = itertools.count(1)
_by_id: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _Object:
    """An object of the store: a packed value, an error, or neither yet (a queued call to an actor)."""

    def __init__(self) -> None:
        self.id = next(_ids)
        self.packed: serialize.Packed | None = None
        self.error: BaseException | None = None
        _by_id[self.id] = self

    @property
    def ready(self) -> bool:
        return self.packed is not None or self.error is not None

    def store(self, value: Any, what: str) -> None:
        self.keep(serialize.dumps(value, what))

    def keep(self, packed: serialize.Packed) -> None:
        self.packed = packed._replace(stream=[packed.data], buffers=serialize.aligned(packed.buffers))
        self.error = None  # of a previous attempt

    def load(self) -> Any:
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.packed is not None
        return serialize.loads(self.packed.data, self.packed.buffers)


class InlineRef(Ref):
    __slots__ = ("_object",)

    def __init__(self, stored: _Object, known_type: Any) -> None:
        self._object = stored
        self._type = known_type

    @property
    def id(self) -> int:
        return self._object.id

    def __reduce__(self) -> Any:
        serialize.carry(self._object)
        return _rebuild_ref, (self._object.id, self._type)


def _rebuild_ref(number: int, known_type: Any) -> InlineRef:
    return InlineRef(_by_id[number], known_type)


class _QueuedCall(NamedTuple):
    """A call in the queue of an actor."""

    name: str
    refs: list[InlineRef]
    run: Callable[[], None]


class _Actor:
    """An actor: its instance, its queue of calls, and its reusable variables."""

    def __init__(self, engine: InlineEngine, callee: Callee, lease: Lease | None, options: Options) -> None:
        self.id = next(_ids)
        self.engine = engine
        self.reservation = _reservation_id(options)
        self.home = engine._home() if self.reservation is None else self.reservation
        self.lease = lease
        self.callee = callee
        self.instance: Any = None
        self.death: ActorDiedError | None = None
        self.values = ReusableValues()
        self.queue: deque[_QueuedCall] = deque()
        self._running = 0
        self._max_concurrency = options.max_concurrency
        _by_id[self.id] = self
        self._release_lease = None if lease is None else weakref.finalize(self, engine.slots.give, lease)

    @property
    def name(self) -> str:
        return self.callee.name

    def __del__(self) -> None:
        self._close()  # the last handle was deleted

    def _close(self) -> None:
        instance, self.instance = self.instance, None
        if instance is not None:
            close(self.name, instance)

    def end(self, why: ActorDiedError) -> None:
        """Call `close()`, then mark the actor as dead."""
        self._close()
        self.mark_dead(why)

    def mark_dead(self, why: ActorDiedError) -> None:
        self.death = self.death or why
        self.instance = None
        if self._release_lease is not None:
            self._release_lease()

    def run(self, call: _QueuedCall) -> None:
        """Run `call`. If `max_concurrency` methods of the actor run already, they made this call, and it is queued."""
        self.queue.append(call)
        if self._running == self._max_concurrency:
            return
        self._running += 1
        self.engine._calls.append(self)
        try:
            while self.queue:
                self.queue.popleft().run()
        finally:
            self._running -= 1
            self.engine._calls.pop()

    def __reduce__(self) -> Any:
        serialize.carry(self)
        return _rebuild_actor, (self.id,)


def _rebuild_actor(number: int) -> Any:
    return _by_id[number]


class InlineEngine:
    """Runs tasks and actor methods in this process, inside `.remote()`."""

    name = "inline"

    def __init__(self, num_cpus: int | None) -> None:
        self.slots = Slots(num_cpus or count_cpus(), len(visible_gpus()))
        # By nesting depth: in other engines, a nested task runs in another worker, with its own reusable variables.
        self._task_values: list[ReusableValues] = []
        self._depth = 0
        self._calls: list[_Actor] = []  # the actors whose calls run, the innermost last
        self._named: weakref.WeakValueDictionary[str, _Actor] = weakref.WeakValueDictionary()

    def put(self, value: Any) -> Ref:
        stored = _Object()
        stored.store(value, "the object given to put()")
        return InlineRef(stored, type(value))

    def get(self, refs: list[Ref], timeout: float | None) -> list[Any]:
        for ref in refs:
            if not _object(ref).ready:
                if timeout is not None:
                    raise GetTimeoutError(
                        f"{ref} is not ready: on the inline engine, an actor cannot wait for a queued call to itself"
                    )
                raise EngineError(f"get({ref}) would wait forever: an actor waits for a queued call to itself")
        return [_object(ref).load() for ref in refs]

    def wait(self, refs: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        ready = [ref for ref in refs if _object(ref).ready][:num_returns]
        if len(ready) < num_returns and timeout is None:
            raise EngineError("wait() would wait forever: an actor waits for a queued call to itself")
        return ready, [ref for ref in refs if ref not in ready]

    def submit(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> list[Ref]:
        self.slots.check(callee.name, options.cpus(1), options.num_gpus, _reservation_id(options))
        refs = _new_refs(callee.signature, options.num_returns)
        arguments = _pass_by_value(callee.name, args, kwargs)
        if self._depth == len(self._task_values):
            self._task_values.append(ReusableValues())
        values = self._task_values[self._depth]
        self._depth += 1
        retries = options.max_retries
        try:
            with reusable_values(values):
                while True:
                    attempt = Attempt()
                    _run_into(refs, callee.name, lambda guard=attempt: invoke(  # type: ignore[misc]
                        callee.name, callee.target, arguments, options.num_returns, callee.signature, _CTRL_C, guard
                    ))  # fmt: skip
                    values.end_of_call()
                    if retries == 0 or not isinstance(attempt.raised, options.retry_on):
                        return list(refs)
                    retries -= retries > 0
        finally:
            self._depth -= 1

    def create(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> _Actor:
        if options.name is not None and self._living(options.name) is not None:
            raise name_taken(options.name)
        lease = self._lease(callee.name, options)
        actor = _Actor(self, callee, lease, options)
        if options.name is not None:
            self._named[options.name] = actor
        arguments = _pass_by_value(callee.name, args, kwargs)

        def construct() -> None:
            with reusable_values(actor.values):
                try:
                    actor.instance = invoke(callee.name, callee.target, arguments, 1, None, _CTRL_C)[0]
                except OutplayError as error:
                    actor.mark_dead(ActorDiedError(f"actor {callee.name} died: its constructor failed", error))
                actor.values.end_of_call()

        actor.run(_QueuedCall(callee.name, [], construct))
        return actor

    def _living(self, name: str) -> _Actor | None:
        actor = self._named.get(name)
        return actor if actor is not None and actor.death is None else None

    def get_actor(self, name: str) -> tuple[_Actor, Callee]:
        actor = self._living(name)
        if actor is None:
            raise no_actor(name, [known for known in list(self._named) if self._living(known)])
        return actor, actor.callee

    def _lease(self, name: str, options: Options) -> Lease | None:
        cpus, gpus = options.cpus(0), options.num_gpus
        self.slots.check(name, cpus, gpus, _reservation_id(options))
        if not cpus and not gpus:
            return None
        lent = {caller.lease for caller in self._calls if caller.lease is not None and caller.death is None}
        for callers in lent:  # in other engines, a caller that waits for the new actor releases its slot
            self.slots.pause(callers)
        lease = self.slots.take(cpus, gpus, _reservation_id(options), home=self._home())
        for callers in lent:
            self.slots.resume(callers)
        if lease is None:
            raise ResourceError(f"actor {name} would wait forever: other actors or reservations hold the resources")
        return lease

    def call(
        self, token: Any, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], num_returns: int
    ) -> list[Ref]:
        actor: _Actor = token
        refs = _new_refs(method.signature, num_returns)
        arguments = _pass_by_value(method.full_name, args, kwargs)

        def run() -> None:
            if actor.death is not None:
                _fail(refs, actor.death)
                return
            with reusable_values(actor.values):
                function = method_of(actor.instance, method.name)
                try:
                    _run_into(refs, method.full_name, lambda: invoke(
                        method.full_name, function, arguments, num_returns, method.signature, (*_CTRL_C, SystemExit)
                    ))  # fmt: skip
                except SystemExit:
                    death = exited(actor.name, method.full_name)
                    actor.end(death)
                    _fail(refs, death)
                actor.values.end_of_call()

        actor.run(_QueuedCall(method.full_name, refs, run))
        return list(refs)

    def cancel(self, ref: Ref, force: bool) -> None:
        if _object(ref).ready:
            return
        for actor in [known for known in list(_by_id.values()) if isinstance(known, _Actor)]:
            for call in [call for call in actor.queue if ref in call.refs]:
                if force:
                    raise force_refused(call.name)
                actor.queue.remove(call)
                _fail(call.refs, TaskCancelledError(f"{call.name} was cancelled before it started"))

    def kill(self, token: Any) -> None:
        token.mark_dead(ActorDiedError(f"actor {token.name} was killed"))

    def reserve(self, bundles: tuple[tuple[float, float], ...], timeout: float | None) -> Reservation:
        self.slots.check_bundles(bundles)
        number = next(_ids)
        if not self.slots.reserve(number, bundles):
            if timeout is None:
                raise ResourceError("reserve() would wait forever: actors or other reservations hold the resources")
            time.sleep(timeout)
            raise GetTimeoutError(f"the resources of reserve() were not free within {timeout:g} s")
        return Reservation(number, bundles)

    def release(self, reservation: Reservation) -> None:
        self.slots.release(reservation.id)
        for actor in list(_by_id.values()):
            if isinstance(actor, _Actor) and actor.reservation == reservation.id:
                actor.mark_dead(ActorDiedError(f"actor {actor.name} died: its reservation was released"))

    def nodes(self) -> list[dict[str, Any]]:
        return [this_node(self.slots.totals())]

    def available_resources(self) -> dict[str, float]:
        return self.slots.free()

    def shutdown(self) -> None:
        for actor in list(_by_id.values()):
            if isinstance(actor, _Actor) and actor.engine is self:
                actor.end(ActorDiedError(f"actor {actor.name} has ended: the engine was shut down"))
        self._task_values.clear()

    def is_inside_call(self) -> bool:
        return self._depth > 0 or bool(self._calls)

    def join_call(self) -> None:
        pass  # no call of this engine waits for a slot

    def _home(self) -> int | None:
        """The reservation of the innermost actor that runs: actors that it starts use it if it has room."""
        return self._calls[-1].home if self._calls else None


def _object(ref: Ref) -> _Object:
    if not isinstance(ref, InlineRef):
        raise EngineError(f"{ref} belongs to another engine, which was shut down")
    return ref._object


def _new_refs(signature: Any, num_returns: int) -> list[InlineRef]:
    return [InlineRef(_Object(), known) for known in result_types(signature, num_returns)]


def _reservation_id(options: Options) -> int | None:
    return None if options.reservation is None else options.reservation.id


def _pass_by_value(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Serialise the arguments now. Returns a function that deserialises them, with Refs replaced by their values."""
    packed, refs = serialize.dumps_call(name, args, kwargs, lambda arg: isinstance(arg, Ref))
    stored = _Object()
    stored.keep(packed)
    ref_arguments = [(place, _object(ref)) for place, ref in refs]

    def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            values = [(place, item.load()) for place, item in ref_arguments]
        except OutplayError as error:
            raise CarriedError(error) from None
        plain, named = stored.load()
        return serialize.join_call(plain, named, values)

    return arguments


def _run_into(refs: list[InlineRef], name: str, run: Callable[[], list[Any]]) -> None:
    try:
        for ref, value in zip(refs, run(), strict=True):
            ref._object.store(value, f"the result of {name}")
    except OutplayError as error:
        _fail(refs, error)


def _fail(refs: list[InlineRef], error: BaseException) -> None:
    for ref in refs:
        ref._object.packed, ref._object.error = None, error
