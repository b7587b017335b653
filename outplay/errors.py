"""Every exception that Outplay raises on purpose.

    OutplayError
    ├── EngineError            (RuntimeError)   the engine: started twice, not installed, shut down, lost
    ├── TaskError                               remote code raised; the original is the cause
    ├── TaskCancelledError                      the task was cancelled by outplay.cancel()
    ├── WorkerDiedError                         the process that ran a task died, and its retries are used up
    ├── ActorDiedError                          the actor is dead, or died during the call
    ├── ObjectLostError                         the process that was to produce an object died
    ├── GetTimeoutError        (TimeoutError)   get() or reserve() waited longer than asked
    ├── ObjectStoreFullError   (MemoryError)    the object does not fit into the store
    ├── SerializationError     (TypeError)      the object cannot travel between processes
    ├── TypeMismatchError      (TypeError)      a typed function got, or returned, another type
    ├── ResourceError          (ValueError)     more CPUs or GPUs asked for than there are
    ├── ConfigError            (ValueError)     a setting, an experiment file or an argument is wrong
    ├── EnvError                                an environment does not exist, or breaks the Gymnasium API
    │   └── EnvTimeoutError    (TimeoutError)   its step or reset has not returned in env_step_timeout_s
    ├── CheckpointError                         a checkpoint is missing, damaged, or of something else
    ├── CallbackError                           a callback raised, or added a metric that is not a number
    └── RunError                                a run cannot go on: its folder, its disk, its files

Each message names what is wrong and, where there is one, the remedy.
"""

from __future__ import annotations

from typing import Any


class OutplayError(Exception):
    """Base of everything that Outplay raises on purpose."""


class EngineError(OutplayError, RuntimeError):
    """The engine cannot do what was asked: it is shut down, missing or set up otherwise."""


class TaskError(OutplayError):
    """Remote code raised. `cause` is the original exception, `remote_traceback` its text.

    >>> try:
    ...     outplay.get(task.remote())
    ... except outplay.TaskError as error:
    ...     print(error.remote_traceback)
    ...     raise error.cause
    """

    def __init__(self, name: str, remote_traceback: str, cause: BaseException) -> None:
        super().__init__(name, remote_traceback, cause)
        self.name = name
        self.remote_traceback = remote_traceback
        self.cause = cause
        # Pickle drops __cause__; setting it here keeps it however far the error travels.
        self.__cause__ = cause

    def __str__(self) -> str:
        summary = f"{self.name} raised {type(self.cause).__name__}: {self.cause}"
        return f"{summary}\n\nThe remote traceback:\n{self.remote_traceback}"


class RemoteExceptionStandIn(Exception):  # noqa: N818 - it stands for any exception
    """Stands for an exception of remote code that could not travel; says what it was."""


class TaskCancelledError(OutplayError):
    """The task, or the call of an actor, was cancelled by `outplay.cancel`."""


class WorkerDiedError(OutplayError):
    """The process that ran a task died, and the task's retries are used up."""


class ActorDiedError(OutplayError):
    """The actor is dead, or died while it ran the call. Its constructor's error, if any, is the cause."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message, cause)
        self.message = message
        self.__cause__ = cause

    def __str__(self) -> str:
        return self.message if self.__cause__ is None else f"{self.message}: {self.__cause__}"


class ObjectLostError(OutplayError):
    """The process that was to produce an object died before it did."""


class GetTimeoutError(OutplayError, TimeoutError):
    """The objects were not ready in time. They may still become so: ask again."""


class ObjectStoreFullError(OutplayError, MemoryError):
    """The object does not fit into what is left of the store."""


class SerializationError(OutplayError, TypeError):
    """An object cannot travel between processes; the message names the part that cannot."""


class TypeMismatchError(OutplayError, TypeError):
    """A function declared `typed=True` got, or returned, a value of another type."""


class ResourceError(OutplayError, ValueError):
    """More CPUs or GPUs were asked for than the engine will ever have."""


class ConfigError(OutplayError, ValueError):
    """A setting is wrong; the message names the place, the value and the nearest valid choice."""


class EnvError(OutplayError):
    """An environment does not exist, breaks the Gymnasium API, or raised; the message says what to change."""


class EnvTimeoutError(EnvError, TimeoutError):
    """An environment hangs: a call of it has not returned in `env_step_timeout_s` seconds."""


class CheckpointError(OutplayError):
    """A checkpoint is missing or damaged, or belongs to another algorithm or environment."""


class CallbackError(OutplayError):
    """A callback of a run raised, or added a metric that is not a number; the message names it."""


class RunError(OutplayError):
    """A run cannot go on: its folder cannot be written, its disk is full, its files do not fit together."""


def nearest(word: str, choices: Any) -> str:
    """The words that end an error message about an unknown name.

    >>> nearest("num_cpu", ["num_cpus", "typed"])
    ". Did you mean 'num_cpus'?"
    """
    from difflib import get_close_matches

    close = get_close_matches(word, list(choices), n=1)
    return f". Did you mean {close[0]!r}?" if close else f"; valid: {', '.join(sorted(choices))}"


def shortened(text: str, most: int = 60) -> str:
    """Cut a long string for an error message.

    >>> shortened("abcdefgh", most=5)
    'abcd…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"
