"""The code that runs in Ray's workers."""

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
from outplay.engine.ray.translate import RetryError
from outplay.engine.serialize import Exported
from outplay.errors import ActorDiedError, OutplayError, TaskCancelledError

ExportedDefinitions = Exported | None  # the definitions that the caller knows
_callees: dict[str, Callee] = {}
_last_capturing: list[str] = []  # the last function with captured Refs: it keeps their objects alive
_task_values = ReusableValues()


def prepare(known: ExportedDefinitions, exported: Exported) -> Callee:
    """Prepare a Ray worker for a call: attach the engine, merge the definitions, load the function or class."""
    if not api.is_initialized():
        from outplay.engine.ray.engine import RayEngine

        api.attach(RayEngine(connected=False, fixed_resources=False))
    if known is not None and not definitions.knows(known.name):
        definitions.merge(known)
    register_serializers()
    callee = _callees.get(exported.name)
    if callee is None:
        path, callee = exported.load()
        sys.path.extend(entry for entry in path if entry not in sys.path and os.path.isdir(entry))
        if exported.captured:  # its deletion is not announced, so only one such function is kept
            for name in _last_capturing:
                _callees.pop(name, None)
            _last_capturing[:] = [exported.name]
        _callees[exported.name] = callee
    return callee


def run_task(
    exported: Exported, known: ExportedDefinitions, num_returns: int, retry_on: bytes, args: Any, kwargs: Any
) -> Any:
    callee, attempt = prepare(known, exported), Attempt()
    with reusable_values(_task_values):
        try:
            return _returned(
                invoke(callee.name, callee.target, lambda: (args, kwargs), num_returns, callee.signature, guard=attempt)
            )
        except OutplayError as error:
            if attempt.raised is not None and ray.get_runtime_context().is_canceled():
                raise TaskCancelledError(f"{callee.name} was cancelled while it ran") from None
            if retry_on and isinstance(attempt.raised, serialize.loads(retry_on, [])):
                raise RetryError(error) from None
            raise
        finally:
            _task_values.end_of_call()


def _returned(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


class _ThreadState(threading.local):
    """The reusable variables of each thread that runs calls of an actor."""

    def __init__(self) -> None:
        self.values = ReusableValues()


class Host:
    """The Ray actor that hosts an instance of the user's class."""

    # Positional-only, as below: the user's arguments may have any name.
    def __init__(self, exported: Exported, known: ExportedDefinitions, /, *args: Any, **kwargs: Any) -> None:
        self._exported = exported
        self._callee = prepare(known, exported)
        self._thread = _ThreadState()
        self._instance: Any = None
        self._death: ActorDiedError | None = None
        with reusable_values(self._thread.values):
            try:
                (self._instance,) = invoke(self._callee.name, self._callee.target, lambda: (args, kwargs), 1, None)
            except OutplayError as error:
                # Ray would only pass on the message. This way, callers get the exception itself.
                self._death = ActorDiedError(f"actor {self._callee.name} died: its constructor failed", error)
                kv._internal_kv_put(key("failed", ray.get_runtime_context().get_actor_id()), b"1")
            self._thread.values.end_of_call()

    def call(self, known: ExportedDefinitions, method: str, num_returns: int, /, *args: Any, **kwargs: Any) -> Any:
        if self._death is not None:
            raise self._death
        if ray.get_runtime_context().is_canceled():  # Ray itself would run it
            raise TaskCancelledError(f"{self._callee.name}.{method} was cancelled before it started")
        prepare(known, self._exported)
        name, signature = f"{self._callee.name}.{method}", self._callee.methods[method].signature
        with reusable_values(self._thread.values):
            try:
                function = method_of(self._instance, method)
                return _returned(
                    invoke(name, function, lambda: (args, kwargs), num_returns, signature, passes=(SystemExit,))
                )
            except SystemExit as error:
                self.__ray_shutdown__()
                if exit_status(error) == 0:
                    ray.actor.exit_actor()  # without this, Ray would restart the actor after sys.exit()
                raise
            finally:
                self._thread.values.end_of_call()

    def end(self) -> tuple[str, int]:
        """Close the instance. Returns the node and the process id of this actor."""
        self.__ray_shutdown__()
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def __ray_shutdown__(self) -> None:
        """Called by Ray when the actor ends without being killed. Ray runs atexit handlers afterwards."""
        instance, self._instance = self._instance, None
        if instance is not None:
            close(self._callee.name, instance)
            from outplay.engine.ray.engine import RayEngine

            engine = api.engine()
            assert isinstance(engine, RayEngine)
            engine.end_actors()  # Ray kills them with this process, or with the last handle of this actor


_registered: dict[str, int] = {}


def register_serializers() -> None:
    for name in definitions.names("serializer"):
        found = definitions.lookup("serializer", name)
        if found is not None and _registered.get(name) != found[0]:
            cls, serializer, deserializer = found[1]
            ray.util.register_serializer(cls, serializer=serializer, deserializer=deserializer)
            _registered[name] = found[0]
