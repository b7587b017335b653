"""The Ray engine: tasks are Ray tasks, actors are Ray actors, objects are Ray objects."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
import ray.exceptions
import ray.experimental.internal_kv as kv
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from outplay.engine import serialize
from outplay.engine.base import Callee, Method, Ref, force_refused, name_taken, no_actor, packed_types, result_types
from outplay.engine.definitions import definitions
from outplay.engine.options import Options, Reservation, check_fits, first_fitting
from outplay.engine.ray.actors import end_actors, is_dead, key, state, wait_until_dead
from outplay.engine.ray.homes import Placed, current_home
from outplay.engine.ray.hosting import ExportedDefinitions, Host, register_serializers, run_task
from outplay.engine.ray.translate import RetryError, ray_timeout, translated
from outplay.engine.serialize import Exported
from outplay.engine.slots import thread_caps
from outplay.engine.typed import TypedSignature
from outplay.errors import EngineError, GetTimeoutError, OutplayError

_CLASS_S = 10.0  # timeout: until the class of a new named actor is known
_SETTLE_S = 0.1  # until Ray has registered a call, or the start of an actor
_START_S = 60.0  # timeout: until an actor has started


class RayRef(Ref):
    __slots__ = ("_actor", "_object_ref")

    def __init__(self, object_ref: Any, known_type: Any, actor: Any = None) -> None:
        self._object_ref = object_ref
        self._type = known_type
        self._actor = (
            actor  # Ray's handle of the actor, if this is the result of one of its calls, made in this process
        )

    @property
    def id(self) -> Any:
        return self._object_ref.hex()

    def __reduce__(self) -> Any:
        return RayRef, (serialize.capture(self._object_ref, self.id), self._type)


class RayToken:
    """Wraps Ray's handle of an actor. Part of every handle."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayToken) and self.handle._actor_id == other.handle._actor_id

    def __hash__(self) -> int:
        return hash(self.handle._actor_id)

    def __reduce__(self) -> Any:
        return RayToken, (serialize.capture(self.handle, self.handle._actor_id.hex()),)


class RayEngine:
    """Tasks are Ray tasks, actors are Ray actors, objects are Ray objects."""

    name = "ray"

    def __init__(self, connected: bool, fixed_resources: bool, runtime_env: dict[str, Any] | None = None) -> None:
        self._connected = connected  # whether Outplay has connected to Ray, and must disconnect
        self._fixed_resources = fixed_resources  # no nodes can join: requests that are too large now will stay so
        self._runtime_env = runtime_env  # for each call, if the user's program has connected to Ray
        self._actors: weakref.WeakSet[Any] = weakref.WeakSet()
        self._placed: weakref.WeakKeyDictionary[Any, Placed] = weakref.WeakKeyDictionary()  # actors in reservations
        self._for_restarts: list[list[Any]] = []  # captured objects of classes: Ray releases them after the first start
        self._released: set[Any] = set()  # Ray itself would wait forever for slots in these
        self._sent_at = 0.0  # the time of the last call
        self._started: weakref.WeakSet[Any] = weakref.WeakSet()  # actors that are known to have started

    def put(self, value: Any) -> Ref:
        register_serializers()
        return RayRef(self._sent("the object given to put()", (value,), {}, lambda: ray.put(value)), type(value))

    def get(self, refs: list[Ref], timeout: float | None) -> list[Any]:
        with translated(f"not all of {len(refs)} objects were ready in {timeout} s"):
            values: list[Any] = ray.get([_object_ref(ref) for ref in refs], timeout=ray_timeout(timeout))
            return values

    def wait(self, refs: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        by_object = {_object_ref(ref): ref for ref in refs}
        ready, _ = ray.wait(list(by_object), num_returns=num_returns, timeout=ray_timeout(timeout))
        chosen = set(ready)
        return (
            [ref for found, ref in by_object.items() if found in chosen],
            [ref for found, ref in by_object.items() if found not in chosen],
        )

    def submit(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> list[Ref]:
        ray_options = self._ray_options(callee.name, options, is_actor=False)
        count, known, captured = options.num_returns, self._known_definitions(), _export(callee).captured
        retry_on = packed_types(options.retry_on)
        ray_options["retry_exceptions"] = [RetryError] if retry_on else False
        task = self._task(callee).options(max_retries=options.max_retries, num_returns=count, **ray_options)
        sent = self._sent(
            callee.name,
            args,
            kwargs,
            lambda: task.remote(known, captured, count, retry_on, *_unwrapped(args), **_unwrapped_named(kwargs)),
        )
        return _refs(sent, callee.signature, count)

    def create(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> RayToken:
        ray_options = self._ray_options(callee.name, options, is_actor=True) | {"name": options.name}
        if options.max_concurrency > 1:
            ray_options["max_concurrency"] = options.max_concurrency
        host = self._host(callee).options(max_restarts=options.max_restarts, **ray_options)
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
            kv._internal_kv_put(key("class", handle._actor_id.hex()), callee.interface())
        self._actors.add(handle)
        if options.max_restarts != 0:
            self._for_restarts.append(exported.captured)
        if (strategy := ray_options.get("scheduling_strategy")) is not None:
            bundle = strategy.placement_group_bundle_index
            self._placed[handle] = Placed(strategy.placement_group.id, bundle, options.num_gpus)
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
        """Free the name of a dead actor: Ray keeps it in use while handles exist. Returns False if the actor lives."""
        with suppress(ValueError):
            handle = ray.get_actor(name)
            if not is_dead(handle):
                return False
            ray.kill(handle)
        return True

    def get_actor(self, name: str) -> tuple[RayToken, Callee]:
        try:
            handle = ray.get_actor(name)
        except ValueError:
            handle = None
        if handle is None or is_dead(handle):
            raise no_actor(name, [known for known in ray.util.list_named_actors() if known != name])
        deadline = time.monotonic() + _CLASS_S
        while (data := kv._internal_kv_get(key("class", handle._actor_id.hex()))) is None:
            if time.monotonic() > deadline:
                raise ValueError(f"the actor named {name!r} was not started by Outplay")
            time.sleep(0.01)
        return RayToken(handle), serialize.loads(data, [])

    def cancel(self, ref: Ref, force: bool) -> None:
        object_ref = _object_ref(ref)
        # Ray aborts this process if a task is cancelled before Ray waits for its arguments (Ray issue #55131).
        time.sleep(max(0.0, self._sent_at + _SETTLE_S - time.monotonic()))
        if isinstance(ref, RayRef) and ref._actor is not None:
            self._wait_until_started(ref._actor)
        try:
            ray.cancel(object_ref, force=force)
        except ValueError:
            raise force_refused("the call") from None

    def _wait_until_started(self, handle: Any) -> None:
        """Wait until an actor has started. If a call is cancelled before, Ray's actor runs no later calls."""
        deadline = time.monotonic() + _START_S
        while handle not in self._started and state(handle) not in ("ALIVE", "DEAD"):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"on Ray, calls of an actor cannot be cancelled before it has started; it did not in {_START_S:g} s"
                )
            time.sleep(0.01)
        if handle not in self._started:
            time.sleep(_SETTLE_S)
            self._started.add(handle)

    def kill(self, token: Any) -> None:
        ray.kill(token.handle)
        wait_until_dead(token.handle)
        self._placed.pop(token.handle, None)

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
        for handle, placed in list(self._placed.items()):
            if placed.group == reservation.id.id:
                wait_until_dead(handle)
                self._placed.pop(handle, None)

    def nodes(self) -> list[dict[str, Any]]:
        kept = ("NodeID", "Alive", "NodeManagerAddress", "NodeManagerHostname")
        return [
            {**{name: node[name] for name in kept}, "Resources": _cpus_and_gpus(node["Resources"])}
            for node in ray.nodes()
        ]

    def available_resources(self) -> dict[str, float]:
        return _cpus_and_gpus(ray.available_resources())

    def end_actors(self) -> None:
        end_actors(list(self._actors))

    def shutdown(self) -> None:
        self.end_actors()
        if self._connected:
            ray.shutdown()
            return
        for handle in list(self._actors):
            ray.kill(handle)

    def is_inside_call(self) -> bool:
        return False  # api.attach marks workers

    def join_call(self) -> None:
        pass  # Ray's actors keep their CPUs while they wait

    def _ray_options(self, name: str, options: Options, is_actor: bool) -> dict[str, Any]:
        cpus, gpus = options.cpus(0 if is_actor else 1), options.num_gpus
        ray_options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus}
        if options.reservation is not None:
            if options.reservation.id.id in self._released:
                raise ValueError("the reservation has already been released")
            bundles = list(options.reservation.bundles)
            check_fits(name, cpus, gpus, bundles, "its reservation")
            bundle = first_fitting(cpus, gpus, bundles) if options.lends_cpus else -1
            ray_options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(options.reservation.id, bundle)
            if options.lends_cpus:
                ray_options["num_cpus"] = 0
        elif (home := current_home()) and (in_home := home.options(cpus, gpus, is_actor, self._placed)):
            ray_options = in_home
        elif self._fixed_resources and (cpus > 1 or gpus > 0):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            check_fits(name, cpus, gpus, [(n.get("CPU", 0.0), n.get("GPU", 0.0)) for n in nodes], "this machine")
        if cpus > 1:
            ray_options["runtime_env"] = {"env_vars": thread_caps(int(cpus))}
        elif self._runtime_env is not None:
            ray_options["runtime_env"] = self._runtime_env
        return ray_options

    def _task(self, callee: Callee) -> Any:
        if "ray task" not in callee.exports:
            name, data, _ = _export(callee)

            def task(
                known: ExportedDefinitions,
                captured: list[Any],
                count: int,
                retry_on: bytes,
                /,
                *args: Any,
                **kwargs: Any,
            ) -> Any:
                return run_task(Exported(name, data, captured), known, count, retry_on, args, kwargs)

            task.__name__ = task.__qualname__ = callee.name  # shown by Ray's tools
            callee.exports["ray task"] = ray.remote(task)
        return callee.exports["ray task"]

    def _host(self, callee: Callee) -> Any:
        if "ray host" not in callee.exports:
            callee.exports["ray host"] = ray.remote(type(callee.name, (Host,), {}))
        return callee.exports["ray host"]

    def _known_definitions(self) -> ExportedDefinitions:
        exported = definitions.export()
        register_serializers()
        return exported

    def _sent(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], send: Callable[[], Any]) -> Any:
        """Call `send`. The error message names an argument that cannot be serialised."""
        try:
            with translated(""):
                self._sent_at = time.monotonic()
                return send()
        except OutplayError:
            raise
        except Exception:
            # If an argument cannot be pickled, this raises an error that names it.
            serialize.dumps_call(name, args, kwargs, lambda arg: isinstance(arg, Ref))
            raise


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
    # Ray refuses empty bundles: a byte stands for nothing.
    return {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount} or {"memory": 1}


def _cpus_and_gpus(resources: dict[str, float]) -> dict[str, float]:
    """CPUs and GPUs. Ray leaves out resources of which there are none."""
    return {name: float(resources.get(name, 0.0)) for name in ("CPU", "GPU")}
