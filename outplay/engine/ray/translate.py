"""Converts Ray's errors to Outplay's."""

from __future__ import annotations

import re
from typing import Any

import ray.exceptions

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


class RetryError(Exception):
    """A task raised an exception after which it is retried. `original` is that exception."""

    def __init__(self, original: OutplayError) -> None:
        super().__init__(original)
        self.original = original


class translated:  # noqa: N801 - used like a function, in a with statement
    """Context manager: Ray's errors are raised as Outplay's."""

    def __init__(self, timeout_message: str) -> None:
        self._timeout_message = timeout_message

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, ray.exceptions.RayError):
            translation = to_outplay_error(error, self._timeout_message)
            raise translation from translation.__cause__


def to_outplay_error(error: Any, timeout_message: str) -> OutplayError:
    cause: Any = error
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None and cause.cause is not cause:
        cause = cause.cause
    if isinstance(cause, RetryError):
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
            # `invoke` converts all exceptions of user code. What remains are Ray's errors when it pickles the result.
            return SerializationError(f"the result of {_task_name(error)} cannot be sent between processes: {cause}")
    if isinstance(error, gone):
        return WorkerDiedError(str(error))
    return EngineError(f"Ray failed: {error}")


def ray_timeout(timeout: float | None) -> float | None:
    """A timeout for Ray. Ray counts milliseconds in 32 bits, so timeouts of more than 11 days become infinite."""
    return None if timeout is None or timeout > 1e6 else timeout


def _task_name(error: Any) -> str:
    """The name of a task, from the message of its error: "ray::name() (pid=…)"."""
    found = re.search(r"ray::(\S+)\(\)", str(error))
    return found[1] if found else "the task"
