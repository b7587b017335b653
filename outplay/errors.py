"""The exceptions of Outplay.

    OutplayError
    ├── EngineError            (RuntimeError)   the engine: started twice, not installed, shut down, connection lost
    ├── TaskError                               remote code raised; the original exception is the cause
    ├── TaskCancelledError                      the task was cancelled by outplay.cancel()
    ├── WorkerDiedError                         the worker process crashed, and no retries are left
    ├── ActorDiedError                          the actor is dead, or crashed during the call
    ├── ObjectLostError                         the process that computed an object crashed
    ├── GetTimeoutError        (TimeoutError)   get() or reserve() timed out
    ├── ObjectStoreFullError   (MemoryError)    the object store is full
    ├── SerializationError     (TypeError)      the object cannot be serialized
    ├── TypeMismatchError      (TypeError)      an argument or result of a typed function has another type
    ├── ResourceError          (ValueError)     a request for more CPUs or GPUs than the engine has
    ├── ConfigError            (ValueError)     a setting, an experiment file or an argument is invalid
    ├── EnvError                                an environment does not exist, or violates the Gymnasium API
    │   └── EnvTimeoutError    (TimeoutError)   a step or reset exceeded env_step_timeout_s
    ├── CheckpointError                         a checkpoint is missing, damaged, or does not fit
    ├── CallbackError                           a callback, a custom model or distribution raised, or a wrong metric
    ├── DataError              (ValueError)     a data set is missing, damaged, or does not fit
    ├── ExportError                             a policy cannot be exported, or the file does not act as the policy
    ├── RunError                                a run cannot continue: its folder, its disk, its files
    │   └── LearnerDiedError                    a learner process died (num_learners)
    ├── TuneError                               trials of a study have failed
    └── TrainError                              a worker of a trainer has failed

Each message says what is wrong and, if there is one, the remedy.
"""

from __future__ import annotations

from typing import Any


class OutplayError(Exception):
    """Base class of Outplay's exceptions."""


class EngineError(OutplayError, RuntimeError):
    """The engine cannot serve the request: it is shut down, not installed, or started with other settings."""


class TaskError(OutplayError):
    """Remote code raised. `cause` is the original exception, `remote_traceback` its formatted traceback.

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
        # Pickle drops __cause__; the constructor, which unpickling calls, sets it again.
        self.__cause__ = cause

    def __str__(self) -> str:
        summary = f"{self.name} raised {type(self.cause).__name__}: {self.cause}"
        return f"{summary}\n\nThe remote traceback:\n{self.remote_traceback}"


class RemoteExceptionStandIn(Exception):  # noqa: N818 - it replaces any exception
    """Replaces an exception of remote code that cannot be serialized; its message describes the original."""


class TaskCancelledError(OutplayError):
    """The task or actor call was cancelled by `outplay.cancel`."""


class WorkerDiedError(OutplayError):
    """The worker process of a task crashed, and no retries are left."""


class ActorDiedError(OutplayError):
    """The actor is dead, or crashed during the call. If its constructor raised, that exception is the cause."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message, cause)
        self.message = message
        self.__cause__ = cause

    def __str__(self) -> str:
        return self.message if self.__cause__ is None else f"{self.message}: {self.__cause__}"


class ObjectLostError(OutplayError):
    """The process that computed an object crashed before the object was ready."""


class GetTimeoutError(OutplayError, TimeoutError):
    """The objects were not ready before the timeout. `get` may be called again."""


class ObjectStoreFullError(OutplayError, MemoryError):
    """The object does not fit into the free space of the object store."""


class SerializationError(OutplayError, TypeError):
    """An object cannot be serialized; the message names the part that is the cause."""


class TypeMismatchError(OutplayError, TypeError):
    """An argument or result of a function with `typed=True` has another type than its annotation."""


class ResourceError(OutplayError, ValueError):
    """A request for more CPUs or GPUs than the engine has in total."""


class ConfigError(OutplayError, ValueError):
    """A setting is invalid; the message names the place, the value and the nearest valid choice."""


class EnvError(OutplayError):
    """An environment does not exist, violates the Gymnasium API, or raised; the message names the remedy."""


class EnvTimeoutError(EnvError, TimeoutError):
    """An environment hangs: a call took longer than `env_step_timeout_s` seconds."""


class CheckpointError(OutplayError):
    """A checkpoint is missing or damaged, or belongs to another algorithm or environment."""


class CallbackError(OutplayError):
    """Code of the user's raised during a run: a callback, env_task_fn, a custom model or action distribution. Or a
    callback added a metric that is not a number. The message names the code."""


class DataError(OutplayError, ValueError):
    """A data set is missing or damaged, has other columns than are needed, or does not fit the environment."""


class ExportError(OutplayError):
    """A policy cannot be exported, or the exported file does not give the actions of the policy."""


class RunError(OutplayError):
    """A run cannot continue: its folder cannot be written, the disk is full, or its files are inconsistent."""


class LearnerDiedError(RunError):
    """A learner process died: with `num_learners`, in an iteration. The iteration is rolled back and repeated."""


class TuneError(OutplayError):
    """Trials of a study have failed. `analysis` has the results of all others, and the tracebacks of these."""

    def __init__(self, message: str, analysis: Any = None) -> None:
        super().__init__(message)
        self.analysis = analysis


class TrainError(OutplayError):
    """A worker of a trainer has failed: its code raised, or its process died too often. The message has the
    traceback."""


_MOST_LISTED = 8  # names in one message


def nearest(word: str, choices: Any, listed_by: str = "") -> str:
    """The end of an error message about an unknown name: a suggestion, or the valid names.

    If there are many, `listed_by` is named instead: the command or document that lists them.

    >>> nearest("num_cpu", ["num_cpus", "typed"])
    ". Did you mean 'num_cpus'?"
    """
    from difflib import get_close_matches

    names = sorted(choices)
    if close := get_close_matches(word, names, n=1):
        return f". Did you mean {close[0]!r}?"
    if len(names) <= _MOST_LISTED:
        return f"; valid: {', '.join(names)}"
    return f"; {listed_by} lists all" if listed_by else f"; valid: {', '.join(names[:_MOST_LISTED])}, …"


_PREDICATES = {"that ": "", "without ": "has no ", "with ": "has ", "of ": "has "}


def described(source: str, noun: str, clause: str) -> str:
    """A problem of an observation or a mask. `source` says where it comes from; it is empty for what a caller gave.

    >>> described("reset() returned", "mask", "of shape (3,)"), described("", "mask", "of shape (3,)")
    ('reset() returned a mask of shape (3,)', 'the mask has shape (3,)')
    """
    if source:
        return f"{source} {with_article(noun)} {clause}"
    start = next(start for start in _PREDICATES if clause.startswith(start))
    subject = noun if "[" in noun else f"the {noun}"
    return f"{subject} {_PREDICATES[start]}{clause.removeprefix(start)}"


def with_article(noun: str) -> str:
    """The noun after "a" or "an"."""
    return f"{'an' if noun[0] in 'AEIOaeio' else 'a'} {noun}"


def type_name(value: Any) -> str:
    """The type of a value with its article, for an error message.

    >>> type_name(5), type_name("five")
    ('an int', 'a str')
    """
    return with_article(type(value).__name__)


def shortened(text: str, length: int = 60) -> str:
    """Truncate a long string for an error message.

    >>> shortened("abcdefgh", length=5)
    'abcd…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"
