"""The engine's public functions: `init`, `put`, `get`, `wait`, `cancel`, `reserve`, `kill`, `shutdown` and others."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from outplay.engine.base import Engine, Ref
from outplay.engine.options import Reservation, parse_bundles
from outplay.engine.remote import ActorHandle
from outplay.errors import EngineError, nearest

ENGINES = ("inline", "process", "ray")


@dataclass(frozen=True)
class Settings:
    engine: str
    num_cpus: int | None
    address: str | None
    object_store_bytes: int | None

    def __str__(self) -> str:
        """As it would be written."""
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
    """Choose where things run and start it. Without it, the first remote call starts `process`.

    engine              "inline" (this process, one thing after another), "process" (processes on this machine) or
                        "ray" (a Ray cluster)
    num_cpus            how many tasks run at once; one for each core of this machine unless given
    address             Ray only: "auto" or "host:port" joins a cluster; without it, $RAY_ADDRESS or a Ray of our own
    object_store_bytes  how much shared memory objects may take; 30 % of this machine's unless given

    >>> outplay.init()
    >>> outplay.init("ray", address="auto")
    """
    global _engine, _settings
    settings = checked(Settings(engine, num_cpus, address, object_store_bytes))
    with _lock:
        if _is_inside_call():
            return  # inside a task or actor the engine runs already, whatever the imported program asks for
        if _engine is not None:
            if settings == _settings:
                return
            raise EngineError(
                f"the engine already runs, as {_settings}; call outplay.shutdown() before init() with other settings"
            )
        _engine, _settings = _start(settings), settings
        # Last in, first out: before what the engine itself does at the end. Ray would kill its actors.
        atexit.unregister(_shutdown_at_exit)
        atexit.register(_shutdown_at_exit)


def checked(settings: Settings) -> Settings:
    """Settings of `init`, or a ValueError with one sentence."""
    if settings.engine not in ENGINES:
        raise ValueError(f"no engine {settings.engine!r}{nearest(str(settings.engine), ENGINES)}")
    if settings.address is not None and settings.engine != "ray":
        raise ValueError(f"address={settings.address!r} is for engine='ray'; {settings.engine!r} runs on this machine")
    for name in ("num_cpus", "object_store_bytes"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    return settings


def _start(settings: Settings) -> Engine:
    # Imported here: an engine that is not used costs nothing, and Ray need not be installed.
    if settings.engine == "inline":
        from outplay.engine.inline import InlineEngine

        return InlineEngine(settings.num_cpus)
    if settings.engine == "process":
        from outplay.engine.process.driver import start_process_engine

        return start_process_engine(settings.num_cpus, settings.object_store_bytes)
    from outplay.engine.ray import start_ray_engine

    return start_ray_engine(settings.num_cpus, settings.address, settings.object_store_bytes)


def engine() -> Engine:
    """The running engine; starts the default one if there is none."""
    if _engine is None:
        init()
    assert _engine is not None
    return _engine


def _is_inside_call() -> bool:
    """Whether this is the code of a task or actor, not of the program that started the engine."""
    return _worker or (_engine is not None and _engine.is_inside_call())


def _running() -> Engine:
    """The engine that Refs and handles belong to: it is not started for them."""
    if _engine is None:
        raise EngineError("no engine is running: these Refs belong to one that was shut down")
    return _engine


def is_initialized() -> bool:
    """Whether an engine runs, or this is a task or actor of one."""
    return _engine is not None


def attach(running: Engine) -> None:
    """For a worker: `running` is the engine of all remote calls made in this process."""
    global _engine, _worker
    _engine, _worker = running, True


def shutdown() -> None:
    """End the engine and everything this program started in it. Without an engine it does nothing."""
    global _engine, _settings
    with _lock:
        if _is_inside_call():
            raise EngineError("shutdown() is for the program that started the engine, not for its tasks and actors")
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


def put(value: Any) -> Ref:
    """Store an object once, for any number of calls to read.

    >>> model = outplay.put(weights)
    >>> refs = [gradient.remote(model, seed) for seed in range(10)]
    """
    if isinstance(value, Ref):
        raise TypeError("put() was given a Ref; what it stands for is in the store already")
    return engine().put(value)


def get(refs: Ref | Iterable[Ref], timeout: float | None = None) -> Any:
    """The object behind a Ref, or the list of objects behind several Refs; waits until they are there.

    Raises what the remote code raised, as `TaskError`; and `GetTimeoutError` after `timeout` seconds.
    """
    _check_timeout(timeout)
    if isinstance(refs, Ref):
        return _running().get([refs], timeout)[0]
    checked = _checked_refs("get", refs)
    return _running().get(checked, timeout) if checked else []


def wait(refs: Iterable[Ref], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
    """Wait until `num_returns` of the Refs are ready, or `timeout` is over: (ready, the others), in order."""
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
    """Hold resources for a group that must run together: all of them or none. Waits until they are free.

    >>> group = outplay.reserve([{"num_cpus": 1}, {"num_cpus": 1}])
    >>> players = [Player.options(num_cpus=1, reservation=group).remote() for _ in range(2)]
    """
    _check_timeout(timeout)
    return engine().reserve(parse_bundles(bundles), timeout)


def cancel(ref: Ref, force: bool = False) -> None:
    """Cancel the task, or the call of an actor, that is to produce `ref`; what it has started is cancelled with it.

    A call that has not started never will. A task that runs gets a KeyboardInterrupt, or with `force` its process
    is killed; an actor's method that runs is left alone. `get` then raises `TaskCancelledError`. What is finished
    stays as it is.

    >>> try:
    ...     outplay.get(refs)
    ... except KeyboardInterrupt:
    ...     for ref in reversed(refs):  # the last first, so that none that waits starts in the meantime
    ...         outplay.cancel(ref)
    """
    if isinstance(ref, ActorHandle):
        raise TypeError("cancel() takes the Ref of a call; to end an actor, use outplay.kill(handle)")
    if not isinstance(ref, Ref):
        raise TypeError(f"cancel() takes one Ref, not {type(ref).__name__}")
    _running().cancel(ref, force)


def get_actor(name: str) -> ActorHandle:
    """The handle of the living actor that was started with `.options(name=…)`; ValueError if there is none.

    >>> server = ParameterServer.options(name="server").remote()
    >>> outplay.get_actor("server").pull.remote()  # in any task or actor
    """
    if not isinstance(name, str):
        raise TypeError(f"get_actor() takes an actor's name, not {type(name).__name__}")
    token, callee = engine().get_actor(name)
    return ActorHandle(token, callee.name, callee.methods)


def kill(handle: ActorHandle) -> None:
    """End an actor now: without its `close`, and without another start. Its calls fail with `ActorDiedError`."""
    if not isinstance(handle, ActorHandle):
        raise TypeError(f"kill() takes an actor's handle, not {type(handle).__name__}")
    _running().kill(handle._token)


def nodes() -> list[dict[str, Any]]:
    """The machines of the engine: `NodeID`, `Alive`, `Resources`, `NodeManagerAddress` and `NodeManagerHostname`."""
    return engine().nodes()


def cluster_resources() -> dict[str, float]:
    """What there is for tasks and actors on all machines together: `{"CPU": 8.0, "GPU": 1.0}`."""
    alive = [node["Resources"] for node in nodes() if node["Alive"]]
    return {name: sum(resources[name] for resources in alive) for name in ("CPU", "GPU")}


def available_resources() -> dict[str, float]:
    """What of it no task, actor or reservation holds now."""
    return engine().available_resources()
