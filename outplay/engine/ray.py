"""The Ray engine: a thin translation to a Ray cluster. The only file that imports Ray."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from outplay.engine import api, serialize
from outplay.engine.base import (
    Attempt,
    Callee,
    Method,
    Ref,
    force_refused,
    invoke,
    method_of,
    name_taken,
    no_actor,
    packed_types,
    result_types,
)
from outplay.engine.definitions import ReusableValues, definitions, reusable_values
from outplay.engine.endings import CLOSE_S, close, exit_status
from outplay.engine.options import Options, Reservation, check_fits
from outplay.engine.serialize import Exported
from outplay.engine.shipping import check_reachable, cluster_runtime_env
from outplay.engine.slots import thread_caps
from outplay.engine.typed import TypedSignature
from outplay.errors import (
    ActorDiedError,
    EngineError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutplayError,
    SerializationError,
    TaskCancelledError,
    WorkerDiedError,
)

try:
    import ray
    import ray._private.ray_constants
    import ray._private.state
    import ray.exceptions
    import ray.experimental.internal_kv as kv
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise EngineError("engine='ray' needs Ray, which is not installed: pip install 'outplay[ray]'") from error


_CLASS_S = 10.0  # until the class of a named actor that was just started is known
_SETTLE_S = 0.1  # until Ray has taken note of a call, or of an actor that has started
_START_S = 60.0  # until an actor has


class RayRef(Ref):
    __slots__ = ("_actor", "_object_ref")

    def __init__(self, object_ref: Any, known_type: Any, actor: Any = None) -> None:
        self._object_ref = object_ref
        self._type = known_type
        self._actor = actor  # Ray's handle, if this is the result of a call of it, made here

    @property
    def id(self) -> Any:
        return self._object_ref.hex()

    def __reduce__(self) -> Any:
        return RayRef, (serialize.capture(self._object_ref, self.id), self._type)


class RayToken:
    """What a handle holds: Ray's own handle of the actor."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayToken) and self.handle._actor_id == other.handle._actor_id

    def __hash__(self) -> int:
        return hash(self.handle._actor_id)

    def __reduce__(self) -> Any:
        return RayToken, (serialize.capture(self.handle, self.handle._actor_id.hex()),)


# What travels to Ray's workers: the definitions that the caller knew, and the function or class.
Known = Exported | None
_callees: dict[str, Callee] = {}
_last_capturing: list[str] = []  # the one of them that keeps alive what it captured
_task_values = ReusableValues()


def _enter(known: Known, exported: Exported) -> Callee:
    """In a Ray worker, before a call: make the engine, the definitions and the function known here."""
    if not api.is_initialized():
        api.attach(RayEngine(connected=False, fixed_resources=False))
    if known is not None and not definitions.knows(known.name):
        definitions.merge(known)
    _tell_ray_serializers()
    callee = _callees.get(exported.name)
    if callee is None:
        path, callee = exported.load()
        sys.path.extend(entry for entry in path if entry not in sys.path and os.path.isdir(entry))
        if exported.captured:  # nobody says when it is gone: the next one takes its place
            for name in _last_capturing:
                _callees.pop(name, None)
            _last_capturing[:] = [exported.name]
        _callees[exported.name] = callee
    return callee


class _RepeatError(Exception):
    """A task raised what it is to be repeated for; what it raised is inside."""

    def __init__(self, original: OutplayError) -> None:
        super().__init__(original)
        self.original = original


def _run_task(exported: Exported, known: Known, num_returns: int, retry_on: bytes, args: Any, kwargs: Any) -> Any:
    callee, attempt = _enter(known, exported), Attempt()
    with reusable_values(_task_values):
        try:
            return _returned(
                invoke(callee.name, callee.target, lambda: (args, kwargs), num_returns, callee.signature, guard=attempt)
            )
        except OutplayError as error:
            if attempt.raised is not None and ray.get_runtime_context().is_canceled():
                raise TaskCancelledError(f"{callee.name} was cancelled while it ran") from None
            if retry_on and isinstance(attempt.raised, serialize.loads(retry_on, [])):
                raise _RepeatError(error) from None
            raise
        finally:
            _task_values.end_of_call()


def _returned(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


class _Thread(threading.local):
    """What each thread that runs an actor's calls has of its own."""

    def __init__(self) -> None:
        self.values = ReusableValues()


class _Host:
    """The Ray actor that hosts an instance of the user's class."""

    # Positional only, as below: the user's own arguments may have any name.
    def __init__(self, exported: Exported, known: Known, /, *args: Any, **kwargs: Any) -> None:
        self._exported = exported
        self._callee = _enter(known, exported)
        self._thread = _Thread()
        self._instance: Any = None
        self._death: ActorDiedError | None = None
        with reusable_values(self._thread.values):
            try:
                (self._instance,) = invoke(self._callee.name, self._callee.target, lambda: (args, kwargs), 1, None)
            except OutplayError as error:
                # Ray would say only in words why; this way the callers get the error itself.
                self._death = ActorDiedError(f"actor {self._callee.name} died: its constructor failed", error)
                kv._internal_kv_put(_key("failed", ray.get_runtime_context().get_actor_id()), b"1")
            self._thread.values.end_of_call()

    def call(self, known: Known, method: str, num_returns: int, /, *args: Any, **kwargs: Any) -> Any:
        if self._death is not None:
            raise self._death
        if ray.get_runtime_context().is_canceled():  # Ray itself would run it all the same
            raise TaskCancelledError(f"{self._callee.name}.{method} was cancelled before it started")
        _enter(known, self._exported)
        name, signature = f"{self._callee.name}.{method}", self._callee.methods[method].signature
        with reusable_values(self._thread.values):
            try:
                function = method_of(self._instance, method)
                return _returned(
                    invoke(name, function, lambda: (args, kwargs), num_returns, signature, passes=(SystemExit,))
                )
            except SystemExit as leaving:
                self.__ray_shutdown__()
                if exit_status(leaving) == 0:
                    ray.actor.exit_actor()  # for good: Ray itself would start it again after sys.exit()
                raise
            finally:
                self._thread.values.end_of_call()

    def end(self) -> tuple[str, int]:
        """Close the instance; the node and the process where this is."""
        self.__ray_shutdown__()
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def __ray_shutdown__(self) -> None:
        """Ray calls this when the actor ends and is not killed; it runs atexit handlers afterwards."""
        instance, self._instance = self._instance, None
        if instance is not None:
            close(self._callee.name, instance)
            engine = api.engine()
            assert isinstance(engine, RayEngine)
            engine.end_actors()  # Ray kills them when this process ends, or when nobody holds this actor any more


class RayEngine:
    """Tasks are Ray tasks, actors are Ray actors, objects are Ray objects."""

    name = "ray"

    def __init__(self, connected: bool, fixed_resources: bool, runtime_env: dict[str, Any] | None = None) -> None:
        self._connected = connected  # by us: then it is ours to disconnect
        self._fixed_resources = fixed_resources  # no node will ever join: what does not fit now never will
        self._runtime_env = runtime_env  # for each call, where the connection was made without ours
        self._actors: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_reservation: dict[Any, weakref.WeakSet[Any]] = {}
        self._for_restarts: list[list[Any]] = []  # what classes captured: Ray lets go of it after the first start
        self._released: set[Any] = set()  # Ray itself would wait forever for room in these
        self._sent_at = 0.0  # when the last call was
        self._started: weakref.WeakSet[Any] = weakref.WeakSet()  # actors that are known to have

    def put(self, value: Any) -> Ref:
        _tell_ray_serializers()
        return RayRef(self._sent("the object given to put()", (value,), {}, lambda: ray.put(value)), type(value))

    def get(self, refs: list[Ref], timeout: float | None) -> list[Any]:
        with _translated(f"not all of {len(refs)} objects were ready in {timeout} s"):
            values: list[Any] = ray.get([_object_ref(ref) for ref in refs], timeout=_bounded(timeout))
            return values

    def wait(self, refs: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        by_object = {_object_ref(ref): ref for ref in refs}
        ready, _ = ray.wait(list(by_object), num_returns=num_returns, timeout=_bounded(timeout))
        chosen = set(ready)
        return (
            [ref for found, ref in by_object.items() if found in chosen],
            [ref for found, ref in by_object.items() if found not in chosen],
        )

    def submit(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> list[Ref]:
        how = self._how(callee.name, options, default_cpus=1)
        count, known, captured = options.num_returns, self._known_definitions(), _export(callee).captured
        retry_on = packed_types(options.retry_on)
        how["retry_exceptions"] = [_RepeatError] if retry_on else False
        task = self._task(callee).options(max_retries=options.max_retries, num_returns=count, **how)
        sent = self._sent(
            callee.name,
            args,
            kwargs,
            lambda: task.remote(known, captured, count, retry_on, *_unwrapped(args), **_unwrapped_named(kwargs)),
        )
        return _refs(sent, callee.signature, count)

    def create(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> RayToken:
        how = self._how(callee.name, options, default_cpus=0) | {"name": options.name}
        if options.max_concurrency > 1:
            how["max_concurrency"] = options.max_concurrency
        host = self._host(callee).options(max_restarts=options.max_restarts, **how)
        exported, known = _export(callee), self._known_definitions()

        def send() -> Any:
            try:
                return host.remote(exported, known, *_unwrapped(args), **_unwrapped_named(kwargs))
            except ray.exceptions.ActorAlreadyExistsError:
                if not self._free_name(str(options.name)):
                    raise name_taken(str(options.name)) from None
                return send()

        handle = self._sent(callee.name, args, kwargs, send)
        if options.name is not None:
            kv._internal_kv_put(
                _key("class", handle._actor_id.hex()), serialize.function_bytes(callee.interface(), callee.target)
            )
        self._actors.add(handle)
        if options.max_restarts != 0:
            self._for_restarts.append(exported.captured)
        if options.reservation is not None:
            self._in_reservation.setdefault(options.reservation.id.id, weakref.WeakSet()).add(handle)
        return RayToken(handle)

    def call(
        self, token: Any, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], num_returns: int
    ) -> list[Ref]:
        known = self._known_definitions()
        sent = self._sent(
            method.full_name,
            args,
            kwargs,
            lambda: token.handle.call.options(num_returns=num_returns).remote(
                known, method.name, num_returns, *_unwrapped(args), **_unwrapped_named(kwargs)
            ),
        )
        return _refs(sent, method.signature, num_returns, token.handle)

    @staticmethod
    def _free_name(name: str) -> bool:
        """To Ray, a handle of a dead actor keeps its name in use, until it is killed too. False if it lives."""
        with suppress(ValueError):
            handle = ray.get_actor(name)
            if not _is_dead(handle):
                return False
            ray.kill(handle)
        return True

    def get_actor(self, name: str) -> tuple[RayToken, Callee]:
        try:
            handle = ray.get_actor(name)
        except ValueError:
            handle = None
        if handle is None or _is_dead(handle):
            raise no_actor(name, [known for known in ray.util.list_named_actors() if known != name])
        deadline = time.monotonic() + _CLASS_S
        while (data := kv._internal_kv_get(_key("class", handle._actor_id.hex()))) is None:
            if time.monotonic() > deadline:
                raise ValueError(f"the actor named {name!r} was not started by Outplay")
            time.sleep(0.01)
        return RayToken(handle), serialize.loads(data, [])

    def cancel(self, ref: Ref, force: bool) -> None:
        object_ref = _object_ref(ref)
        # Ray aborts this process if a task is cancelled before Ray has begun to wait for its arguments (#55131).
        time.sleep(max(0.0, self._sent_at + _SETTLE_S - time.monotonic()))
        if isinstance(ref, RayRef) and ref._actor is not None:
            self._wait_until_started(ref._actor)
        try:
            ray.cancel(object_ref, force=force)
        except ValueError:
            raise force_refused("what is to be cancelled") from None

    def _wait_until_started(self, handle: Any) -> None:
        """An actor that starts would wait in vain for a call that was cancelled before, and run no later one."""
        deadline = time.monotonic() + _START_S
        while handle not in self._started and _state(handle) not in ("ALIVE", "DEAD"):
            if time.monotonic() > deadline:
                raise EngineError(f"on Ray, no call of an actor can be cancelled before it runs; waited {_START_S:g} s")
            time.sleep(0.01)
        if handle not in self._started:
            time.sleep(_SETTLE_S)
            self._started.add(handle)

    def kill(self, token: Any) -> None:
        ray.kill(token.handle)
        _wait_until_dead(token.handle)

    def reserve(self, bundles: tuple[tuple[float, float], ...], timeout: float | None) -> Reservation:
        if self._fixed_resources:
            total = ray.cluster_resources()
            check_fits(
                "reserve()",
                sum(cpus for cpus, _ in bundles),
                sum(gpus for _, gpus in bundles),
                [(total.get("CPU", 0.0), total.get("GPU", 0.0))],
                "this machine",
            )
        group = placement_group([_resources(cpus, gpus) for cpus, gpus in bundles])
        if not group.wait(timeout_seconds=1e9 if timeout is None else timeout):
            remove_placement_group(group)
            raise GetTimeoutError(f"the resources of reserve() were not free within {timeout:g} s")
        return Reservation(group, bundles)

    def release(self, reservation: Reservation) -> None:
        self._released.add(reservation.id.id)
        remove_placement_group(reservation.id)
        for handle in list(self._in_reservation.pop(reservation.id.id, ())):
            _wait_until_dead(handle)

    def nodes(self) -> list[dict[str, Any]]:
        kept = ("NodeID", "Alive", "NodeManagerAddress", "NodeManagerHostname")
        return [
            {**{name: node[name] for name in kept}, "Resources": _cpus_and_gpus(node["Resources"])}
            for node in ray.nodes()
        ]

    def available_resources(self) -> dict[str, float]:
        return _cpus_and_gpus(ray.available_resources())

    def end_actors(self) -> None:
        _end_actors(list(self._actors))

    def shutdown(self) -> None:
        self.end_actors()
        if self._connected:
            ray.shutdown()
            return
        for handle in list(self._actors):
            ray.kill(handle)

    def is_inside_call(self) -> bool:
        return False  # a worker is known as one, see api.attach

    def _how(self, name: str, options: Options, default_cpus: float) -> dict[str, Any]:
        cpus, gpus = options.cpus(default_cpus), options.num_gpus
        how: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus}
        if options.reservation is not None:
            if options.reservation.id.id in self._released:
                raise ValueError("the reservation has already been released")
            check_fits(name, cpus, gpus, list(options.reservation.bundles), "its reservation")
            how["scheduling_strategy"] = PlacementGroupSchedulingStrategy(options.reservation.id)
        elif self._fixed_resources and (cpus > 1 or gpus > 0):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            check_fits(name, cpus, gpus, [(n.get("CPU", 0.0), n.get("GPU", 0.0)) for n in nodes], "this machine")
        if cpus > 1:
            how["runtime_env"] = {"env_vars": thread_caps(int(cpus))}
        elif self._runtime_env is not None:
            how["runtime_env"] = self._runtime_env
        return how

    def _task(self, callee: Callee) -> Any:
        if "ray task" not in callee.exports:
            name, data, _ = _export(callee)

            def task(known: Known, held: list[Any], count: int, retry_on: bytes, /, *args: Any, **kwargs: Any) -> Any:
                return _run_task(Exported(name, data, held), known, count, retry_on, args, kwargs)

            task.__name__ = task.__qualname__ = callee.name  # what Ray's own tools show
            callee.exports["ray task"] = ray.remote(task)
        return callee.exports["ray task"]

    def _host(self, callee: Callee) -> Any:
        if "ray host" not in callee.exports:
            callee.exports["ray host"] = ray.remote(type(callee.name, (_Host,), {}))
        return callee.exports["ray host"]

    def _known_definitions(self) -> Known:
        exported = definitions.export()
        _tell_ray_serializers()
        return exported

    def _sent(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], send: Callable[[], Any]) -> Any:
        """Send, and name what cannot be serialised."""
        try:
            with _translated(""):
                self._sent_at = time.monotonic()
                return send()
        except OutplayError:
            raise
        except Exception:
            # If it is an argument that cannot be pickled, this raises too, and names it.
            serialize.dumps_call(name, args, kwargs, lambda arg: isinstance(arg, Ref))
            raise


def _wait_until_dead(handle: Any) -> None:
    """Ray returns before an actor that it ends is dead; another call could still reach it."""
    with suppress(ray.exceptions.RayError):
        while True:
            ray.get(handle.__ray_ready__.remote(), timeout=60)
            time.sleep(0.01)


def _end_actors(handles: list[Any]) -> None:
    """Ray kills actors when the program ends; these are asked to end first, and given some time for it."""
    deadline = time.monotonic() + CLOSE_S
    by_ref = {handle.end.remote(): handle for handle in handles if not _is_dead(handle)}
    ready, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=CLOSE_S) if by_ref else ([], [])
    here, processes = ray.get_runtime_context().get_node_id(), []
    for ref in ready:
        with suppress(ray.exceptions.RayError):  # it is dead already
            node, process = ray.get(ref)
            by_ref[ref].__ray_terminate__.remote()
            if node == here:  # its atexit handlers run until the process is gone
                processes.append(process)
    while any(_exists(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _is_dead(handle: Any) -> bool:
    """Whether Ray knows that an actor has died, or its constructor has failed."""
    return _state(handle) == "DEAD" or kv._internal_kv_exists(_key("failed", handle._actor_id.hex()))


def _state(handle: Any) -> str | None:
    known = ray._private.state.actors(handle._actor_id.hex())
    return known["State"] if known else None


def _key(kind: str, actor: str) -> str:
    """Where Ray keeps what others must know of an actor: the class of a named one, that its constructor failed."""
    return f"outplay:{kind}:{actor}"


def _export(callee: Callee) -> Exported:
    if "ray" not in callee.exports:
        callee.exports["ray"] = callee.pack()
    exported: Exported = callee.exports["ray"]
    return exported


def _refs(sent: Any, signature: TypedSignature | None, count: int, actor: Any = None) -> list[Ref]:
    objects = [sent] if count == 1 else sent
    return [RayRef(found, known, actor) for found, known in zip(objects, result_types(signature, count), strict=True)]


def _object_ref(ref: Ref) -> Any:
    if not isinstance(ref, RayRef):
        raise EngineError(f"{ref} belongs to another engine, which was shut down")
    return ref._object_ref


def _unwrapped(args: tuple[Any, ...]) -> list[Any]:
    return [_object_ref(arg) if isinstance(arg, Ref) else arg for arg in args]


def _unwrapped_named(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _object_ref(arg) if isinstance(arg, Ref) else arg for name, arg in kwargs.items()}


def _resources(cpus: float, gpus: float) -> dict[str, float]:
    return {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}


def _cpus_and_gpus(resources: dict[str, float]) -> dict[str, float]:
    """Ray leaves out what there is none of."""
    return {name: float(resources.get(name, 0.0)) for name in ("CPU", "GPU")}


_told: dict[str, int] = {}


def _tell_ray_serializers() -> None:
    for name in definitions.names("serializer"):
        found = definitions.lookup("serializer", name)
        if found is not None and _told.get(name) != found[0]:
            cls, serializer, deserializer = found[1]
            ray.util.register_serializer(cls, serializer=serializer, deserializer=deserializer)
            _told[name] = found[0]


class _translated:  # noqa: N801 - used like a function, in a with statement
    """Ray's errors become ours."""

    def __init__(self, timeout_message: str) -> None:
        self._timeout_message = timeout_message

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, ray.exceptions.RayError):
            ours = _ours(error, self._timeout_message)
            raise ours from ours.__cause__


def _ours(error: Any, timeout_message: str) -> OutplayError:
    cause: Any = error
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None and cause.cause is not cause:
        cause = cause.cause
    if isinstance(cause, _RepeatError):
        return cause.original
    if isinstance(cause, OutplayError):
        return cause
    if isinstance(cause, ray.exceptions.TaskCancelledError):
        return TaskCancelledError("the task was cancelled")
    gone = (ray.exceptions.TaskPlacementGroupRemoved, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    match error:
        case ray.exceptions.GetTimeoutError():
            return GetTimeoutError(timeout_message)
        case ray.exceptions.RayActorError() | ray.exceptions.ActorPlacementGroupRemoved():
            return ActorDiedError(str(error).strip())
        case ray.exceptions.WorkerCrashedError():
            return WorkerDiedError(f"the process that ran the task died: {error}")
        case ray.exceptions.ObjectStoreFullError():
            return ObjectStoreFullError(str(error))
        case ray.exceptions.ObjectLostError():
            return ObjectLostError(str(error))
        case ray.exceptions.RayTaskError():
            # Our wrapper turns what the user's code raises into TaskError: what is left is Ray's own, on the way out.
            return SerializationError(f"the result of {_task_name(error)} cannot travel between processes: {cause}")
    if isinstance(error, gone):
        return WorkerDiedError(str(error))
    return EngineError(f"Ray failed: {error}")


def _bounded(timeout: float | None) -> float | None:
    """Ray counts milliseconds in 32 bits; who waits for weeks does not mind waiting for ever."""
    return None if timeout is None or timeout > 1e6 else timeout


def _task_name(error: Any) -> str:
    """Ray keeps the name only in the text of the error: "ray::name() (pid=…)"."""
    found = re.search(r"ray::(\S+)\(\)", str(error))
    return found[1] if found else "the task"


def start_ray_engine(num_cpus: int | None, address: str | None, object_store_bytes: int | None) -> RayEngine:
    """Join a cluster, or start a Ray of our own on this machine."""
    if ray.is_initialized():
        # The program made its own connection: use it, and leave it alone at the end.
        return RayEngine(connected=False, fixed_resources=False, runtime_env={"env_vars": thread_caps(1)})
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local"):
        _start_ray(num_cpus, object_store_bytes)
        return RayEngine(connected=True, fixed_resources=True)
    if num_cpus is not None or object_store_bytes is not None:
        raise ValueError(f"num_cpus and object_store_bytes are the cluster's to decide at address={address!r}")
    check_reachable(address)
    try:
        ray.init(address=address, runtime_env=cluster_runtime_env(), log_to_driver=True, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise EngineError(f"cannot join the Ray cluster at address={address!r}: {error}") from error
    return RayEngine(connected=True, fixed_resources=False)


def _start_ray(num_cpus: int | None, object_store_bytes: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves this machine unasked
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with _on_loopback():
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=object_store_bytes,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            logging_level="error",
            runtime_env={"env_vars": {**thread_caps(1), "PYTHONPATH": path}},
        )


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray listens on all of the machine's addresses, even when told 127.0.0.1, unless its clusters are switched off.

    The switch is meant for macOS and Windows, where that is the default, and works on Linux too. Its processes read
    it from their environment, this one has read it when Ray was imported.
    """
    variable, constants = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", ray._private.ray_constants
    before = os.environ.get(variable), constants.ENABLE_RAY_CLUSTER
    os.environ[variable], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before[0]
