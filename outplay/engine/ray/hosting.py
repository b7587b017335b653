"""What runs in Ray's workers."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import ray
import ray.experimental.internal_kv as kv

from outplay.engine import api, serialize
from outplay.engine.base import Attempt, Callee, invoke, method_of
from outplay.engine.definitions import ReusableValues, definitions, reusable_values
from outplay.engine.endings import close, exit_status
from outplay.engine.ray.actors import key
from outplay.engine.ray.translate import RepeatError
from outplay.engine.serialize import Exported
from outplay.errors import ActorDiedError, OutplayError, TaskCancelledError

# What travels to Ray's workers: the definitions that the caller knew, and the function or class.
Known = Exported | None
_callees: dict[str, Callee] = {}
_last_capturing: list[str] = []  # the one of them that keeps alive what it captured
_task_values = ReusableValues()


def enter(known: Known, exported: Exported) -> Callee:
    """In a Ray worker, before a call: make the engine, the definitions and the function known here."""
    if not api.is_initialized():
        from outplay.engine.ray.engine import RayEngine

        api.attach(RayEngine(connected=False, fixed_resources=False))
    if known is not None and not definitions.knows(known.name):
        definitions.merge(known)
    tell_serializers()
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


def run_task(exported: Exported, known: Known, num_returns: int, retry_on: bytes, args: Any, kwargs: Any) -> Any:
    callee, attempt = enter(known, exported), Attempt()
    with reusable_values(_task_values):
        try:
            return _returned(
                invoke(callee.name, callee.target, lambda: (args, kwargs), num_returns, callee.signature, guard=attempt)
            )
        except OutplayError as error:
            if attempt.raised is not None and ray.get_runtime_context().is_canceled():
                raise TaskCancelledError(f"{callee.name} was cancelled while it ran") from None
            if retry_on and isinstance(attempt.raised, serialize.loads(retry_on, [])):
                raise RepeatError(error) from None
            raise
        finally:
            _task_values.end_of_call()


def _returned(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


class _Thread(threading.local):
    """What each thread that runs an actor's calls has of its own."""

    def __init__(self) -> None:
        self.values = ReusableValues()


class Host:
    """The Ray actor that hosts an instance of the user's class."""

    # Positional only, as below: the user's own arguments may have any name.
    def __init__(self, exported: Exported, known: Known, /, *args: Any, **kwargs: Any) -> None:
        self._exported = exported
        self._callee = enter(known, exported)
        self._thread = _Thread()
        self._instance: Any = None
        self._death: ActorDiedError | None = None
        with reusable_values(self._thread.values):
            try:
                (self._instance,) = invoke(self._callee.name, self._callee.target, lambda: (args, kwargs), 1, None)
            except OutplayError as error:
                # Ray would say only in words why; this way the callers get the error itself.
                self._death = ActorDiedError(f"actor {self._callee.name} died: its constructor failed", error)
                kv._internal_kv_put(key("failed", ray.get_runtime_context().get_actor_id()), b"1")
            self._thread.values.end_of_call()

    def call(self, known: Known, method: str, num_returns: int, /, *args: Any, **kwargs: Any) -> Any:
        if self._death is not None:
            raise self._death
        if ray.get_runtime_context().is_canceled():  # Ray itself would run it all the same
            raise TaskCancelledError(f"{self._callee.name}.{method} was cancelled before it started")
        enter(known, self._exported)
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
            from outplay.engine.ray.engine import RayEngine

            engine = api.engine()
            assert isinstance(engine, RayEngine)
            engine.end_actors()  # Ray kills them when this process ends, or when nobody holds this actor any more


_told: dict[str, int] = {}


def tell_serializers() -> None:
    for name in definitions.names("serializer"):
        found = definitions.lookup("serializer", name)
        if found is not None and _told.get(name) != found[0]:
            cls, serializer, deserializer = found[1]
            ray.util.register_serializer(cls, serializer=serializer, deserializer=deserializer)
            _told[name] = found[0]
