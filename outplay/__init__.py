"""Outplay trains reinforcement-learning agents in parallel, on one machine or on a Ray cluster.

>>> import outplay
>>> @outplay.remote
... def square(x):
...     return x * x
>>> outplay.get([square.remote(x) for x in range(4)])
[0, 1, 4, 9]
"""

from typing import TYPE_CHECKING, Any

from outplay import registry, util
from outplay.engine import (
    ActorHandle,
    Ref,
    Reservation,
    Reusable,
    available_resources,
    cancel,
    cluster_resources,
    get,
    get_actor,
    init,
    is_initialized,
    kill,
    nodes,
    put,
    register_serializer,
    remote,
    reserve,
    reusables,
    shutdown,
    wait,
)
from outplay.errors import (
    ActorDiedError,
    CallbackError,
    CheckpointError,
    ConfigError,
    DataError,
    EngineError,
    EnvError,
    EnvTimeoutError,
    ExportError,
    GetTimeoutError,
    LearnerDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutplayError,
    ResourceError,
    RunError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    TypeMismatchError,
    WorkerDiedError,
)

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm
    from outplay.envs import register_env
    from outplay.envs.check import check_env
    from outplay.envs.tasks import TaskSettableEnv
    from outplay.export import export_policy
    from outplay.metrics import Result, pretty_print
    from outplay.registry import *  # noqa: F403
    from outplay.runs.callbacks import Callback
    from outplay.runs.folder import RunFolder
    from outplay.runs.run import Run

__version__ = "0.2.0"

# What needs torch or gymnasium is loaded when it is first used: the engine alone stays light.
_LAZY = {
    **dict.fromkeys(registry.__all__, "outplay.registry"),
    "Algorithm": "outplay.algorithms.algorithm",
    "register_env": "outplay.envs",
    "check_env": "outplay.envs.check",
    "TaskSettableEnv": "outplay.envs.tasks",
    "export_policy": "outplay.export",
    "Result": "outplay.metrics",
    "pretty_print": "outplay.metrics",
    "Callback": "outplay.runs.callbacks",
    "Run": "outplay.runs.run",
    "RunFolder": "outplay.runs.folder",
}


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'outplay' has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ActorDiedError",
    "ActorHandle",
    "Algorithm",
    "Callback",
    "CallbackError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EngineError",
    "EnvError",
    "EnvTimeoutError",
    "ExportError",
    "GetTimeoutError",
    "LearnerDiedError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OutplayError",
    "Ref",
    "Reservation",
    "ResourceError",
    "Result",
    "Reusable",
    "Run",
    "RunError",
    "RunFolder",
    "SerializationError",
    "TaskCancelledError",
    "TaskError",
    "TaskSettableEnv",
    "TypeMismatchError",
    "WorkerDiedError",
    "__version__",
    "available_resources",
    "cancel",
    "check_env",
    "cluster_resources",
    "export_policy",
    "get",
    "get_actor",
    "init",
    "is_initialized",
    "kill",
    "nodes",
    "pretty_print",
    "put",
    "register_env",
    "register_serializer",
    "remote",
    "reserve",
    "reusables",
    "shutdown",
    "util",
    "wait",
]
__all__ += registry.__all__
