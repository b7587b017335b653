"""Outplay trains reinforcement-learning agents in parallel, on one machine or on a Ray cluster.

>>> import outplay
>>> @outplay.remote
... def square(x):
...     return x * x
>>> outplay.get([square.remote(x) for x in range(4)])
[0, 1, 4, 9]
"""

from outplay.engine import (
    ActorHandle,
    Ref,
    Reservation,
    Reusable,
    get,
    init,
    is_initialized,
    kill,
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
    EngineError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutplayError,
    ResourceError,
    SerializationError,
    TaskError,
    TypeMismatchError,
    WorkerDiedError,
)

__version__ = "0.1.0"

__all__ = [
    "ActorDiedError",
    "ActorHandle",
    "EngineError",
    "GetTimeoutError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OutplayError",
    "Ref",
    "Reservation",
    "ResourceError",
    "Reusable",
    "SerializationError",
    "TaskError",
    "TypeMismatchError",
    "WorkerDiedError",
    "__version__",
    "get",
    "init",
    "is_initialized",
    "kill",
    "put",
    "register_serializer",
    "remote",
    "reserve",
    "reusables",
    "shutdown",
    "wait",
]
