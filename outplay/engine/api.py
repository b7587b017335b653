"""The public functions of the engine: `init`, `put`, `get`, `wait`, `cancel`, `reserve`, `kill`, `shutdown` …"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, overload

from outplay.engine.base import Engine, Ref
from outplay.engine.options import Reservation, parse_bundles
from outplay.engine.remote import ActorHandle
from outplay.errors import EngineError, nearest

ENGINES = ("inline", "process", "ray")

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    engine: str
    num_cpus: int | None
    address: str | None
    object_store_bytes: int | None

    def __str__(self) -> str:
        """The call of `init` with these settings."""
        given = [f"{f.name}={value!r}" for f in fields(self)[1:] if (value := getattr(self, f.name)) is not None]
        return f"init({', '.join([repr(self.engine), *given])})"


_lock = threading.RLock()
_engine: Engine | None = None
_settings: Settings | None = None
_worker = False


def init(
    engine: str = "process",
    num_cpus: int | None = None,
    address: str | None = None,
    object_store_bytes: int | None = None,
) -> None:
    """Start the engine. Without it, the first remote call starts the `process` engine.

    engine              "inline" (sequentially in this process), "process" (processes on this machine) or "ray" (a Ray
                        cluster)
    num_cpus            number of CPU slots, one per running task (default: the number of cores of this machine)
    address             Ray only: "auto" or "host:port" joins a cluster (default: $RAY_ADDRESS, or a new local Ray)
    object_store_bytes  size of the object store (default: 30 % of this machine's memory)

    >>> outplay.init()
    >>> outplay.init("ray", address="auto")
    """
    global _engine, _settings
    settings = checked(Settings(engine, num_cpus, address, object_store_bytes))
    with _lock:
        if _is_inside_call():
            return  # inside a task or actor the engine runs already; a program that it imports may call init()
        if _engine is not None:
            if settings == _settings:
                return
            raise EngineError(
                f"the engine already runs, as {_settings}; call outplay.shutdown() before init() with other settings"
            )
        _engine, _settings = _start(settings), settings
        # Handlers run in reverse order. This one must run before those of the engine: Ray's would kill its actors.
        atexit.unregister(_shutdown_at_exit)
        atexit.register(_shutdown_at_exit)


def checked(settings: Settings) -> Settings:
    """Validate the arguments of `init`. Raises ValueError."""
    if settings.engine not in ENGINES:
        raise ValueError(f"no engine {settings.engine!r}{nearest(str(settings.engine), ENGINES)}")
    if settings.address is not None and settings.engine != "ray":
        raise ValueError(f"address={settings.address!r} is for engine='ray'; {settings.engine!r} runs on this machine")
    for name in ("num_cpus", "object_store_bytes"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    return settings


def _start(settings: Settings) -> Engine:
    # Imported here: unused engines are not loaded, and Ray need not be installed.
    if settings.engine == "inline":
        from outplay.engine.inline import InlineEngine

        return InlineEngine(settings.num_cpus)
    if settings.engine == "process":
        from outplay.engine.process.driver import start_process_engine

        return start_process_engine(settings.num_cpus, settings.object_store_bytes)
    from outplay.engine.ray import start_ray_engine

    return start_ray_engine(settings.num_cpus, settings.address, settings.object_store_bytes)


def engine() -> Engine:
    """The running engine. Starts the default engine if none runs."""
    if _engine is None:
        init()
    assert _engine is not None
    return _engine


def join_call() -> None:
    """Make this thread a part of the call that waits for it: while the thread waits in `get`, the call's slot is free.

    Other threads of a task or an actor may block without releasing its slot.
    """
    if _engine is not None:
        _engine.join_call()


def _is_inside_call() -> bool:
    """Whether the caller is a task or actor, not the program that started the engine."""
    return _worker or (_engine is not None and _engine.is_inside_call())


def _running() -> Engine:
    """The running engine, for operations on Refs and handles. Raises EngineError if none runs."""
    if _engine is None:
        raise EngineError("no engine is running: these Refs belong to an engine that was shut down")
    return _engine


def is_initialized() -> bool:
    """Whether an engine runs. Always true inside a task or actor."""
    return _engine is not None


def current_settings() -> Settings | None:
    """The settings of the engine that this program started; None if none runs."""
    return _settings


def attach(running: Engine) -> None:
    """Use `running` for all remote calls of this process. Called in workers."""
    global _engine, _worker
    _engine, _worker = running, True


def shutdown() -> None:
    """Stop the engine, with all tasks and actors that this program has started. Does nothing if no engine runs."""
    global _engine, _settings
    with _lock:
        if _is_inside_call():
            raise EngineError(
                "shutdown() can only be called by the program that started the engine, not by tasks and actors"
            )
        ended, _engine, _settings = _engine, None, None
    if ended is not None:
        ended.shutdown()


def _forget_in_forked_child() -> None:
    global _engine, _settings, _lock, _worker
    _engine, _settings, _lock, _worker = None, None, threading.RLock(), False


def _shutdown_at_exit() -> None:
    if not _worker:
        shutdown()


os.register_at_fork(after_in_child=_forget_in_forked_child)


def put(value: T) -> Ref[T]:
    """Store an object once. Any number of calls can read it.

    >>> model = outplay.put(weights)
    >>> refs = [gradient.remote(model, seed) for seed in range(10)]
    """
    if isinstance(value, Ref):
        raise TypeError("put() was given a Ref; its object is in the store already")
    return engine().put(value)


@overload
def get(refs: Ref[T], timeout: float | None = None) -> T: ...
@overload
def get(refs: Iterable[Ref[T]], timeout: float | None = None) -> list[T]: ...
def get(refs: Ref[Any] | Iterable[Ref[Any]], timeout: float | None = None) -> Any:
    """Wait for the objects of Refs and return them: one object for a Ref, a list of objects for several Refs.

    Raises `TaskError` if the remote code raised an exception, and `GetTimeoutError` after `timeout` seconds.

    >>> outplay.get([square.remote(x) for x in range(4)])
    [0, 1, 4, 9]
    """
    _check_timeout(timeout)
    if isinstance(refs, Ref):
        return _running().get([refs], timeout)[0]
    checked = _checked_refs("get", refs)
    return _running().get(checked, timeout) if checked else []


def wait(
    refs: Iterable[Ref[T]], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Ref[T]], list[Ref[T]]]:
    """Wait until `num_returns` of the Refs are ready, at most `timeout` seconds. Returns (ready, others), in order."""
    _check_timeout(timeout)
    checked = _checked_refs("wait", refs)
    if not checked:
        return [], []
    if len(set(checked)) != len(checked):
        raise ValueError("wait() was given the same Ref twice")
    if not 1 <= num_returns <= len(checked):
        raise ValueError(f"wait() of {len(checked)} Refs cannot wait for num_returns={num_returns}")
    return _running().wait(checked, num_returns, timeout)


def _checked_refs(call: str, refs: Any) -> list[Ref]:
    if isinstance(refs, Ref):
        raise TypeError(f"{call}() takes a list of Refs, not one: {call}([ref])")
    if not isinstance(refs, Iterable):
        raise TypeError(f"{call}() takes a list of Refs, not {type(refs).__name__}")
    listed = list(refs)
    for position, ref in enumerate(listed):
        if not isinstance(ref, Ref):
            raise TypeError(f"{call}(): item {position} of the list is no Ref, but of type {type(ref).__name__}")
    return listed


def _check_timeout(timeout: Any) -> None:
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout < 0):
        raise ValueError(f"timeout must be a number of seconds, or None for no limit, not {timeout!r}")


def reserve(bundles: list[dict[str, float]], timeout: float | None = None) -> Reservation:
    """Reserve resources for a group of tasks and actors: all bundles or none. Waits until they are free.

    >>> group = outplay.reserve([{"num_cpus": 1}, {"num_cpus": 1}])
    >>> players = [Player.options(num_cpus=1, reservation=group).remote() for _ in range(2)]
    """
    _check_timeout(timeout)
    return engine().reserve(parse_bundles(bundles), timeout)


def cancel(ref: Ref, force: bool = False) -> None:
    """Cancel the task or actor call that produces `ref`, and all calls that it has made.

    A call that has not started never runs. A running task gets a KeyboardInterrupt; with `force`, its process is
    killed. A running method of an actor is not interrupted. In all cases `get` then raises `TaskCancelledError`.
    Finished calls are not affected.

    >>> try:
    ...     outplay.get(refs)
    ... except KeyboardInterrupt:
    ...     for ref in reversed(refs):  # newest first: otherwise queued tasks would start meanwhile
    ...         outplay.cancel(ref)
    """
    if isinstance(ref, ActorHandle):
        raise TypeError("cancel() takes the Ref of a call; to end an actor, use outplay.kill(handle)")
    if not isinstance(ref, Ref):
        raise TypeError(f"cancel() takes one Ref, not {type(ref).__name__}")
    _running().cancel(ref, force)


def get_actor(name: str) -> ActorHandle:
    """The handle of a living actor with this name (`.options(name=…)`). Raises ValueError if there is none.

    >>> server = ParameterServer.options(name="server").remote()
    >>> outplay.get_actor("server").pull.remote()  # in any task or actor
    """
    if not isinstance(name, str):
        raise TypeError(f"get_actor() takes an actor's name, not {type(name).__name__}")
    token, callee = engine().get_actor(name)
    return ActorHandle(token, callee.name, callee.methods)


def kill(handle: ActorHandle) -> None:
    """Kill an actor. Its `close` is not called, and it is not restarted. Its calls fail with `ActorDiedError`."""
    if not isinstance(handle, ActorHandle):
        raise TypeError(f"kill() takes an actor's handle, not {type(handle).__name__}")
    _running().kill(handle._token)


def nodes() -> list[dict[str, Any]]:
    """The machines of the engine: `NodeID`, `Alive`, `Resources`, `NodeManagerAddress` and `NodeManagerHostname`."""
    return engine().nodes()


def cluster_resources() -> dict[str, float]:
    """The CPUs and GPUs of all machines together: `{"CPU": 8.0, "GPU": 1.0}`."""
    alive = [node["Resources"] for node in nodes() if node["Alive"]]
    return {name: sum(resources[name] for resources in alive) for name in ("CPU", "GPU")}


def available_resources() -> dict[str, float]:
    """The CPUs and GPUs that no task, actor or reservation holds now."""
    return engine().available_resources()
