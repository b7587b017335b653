"""Tasks, actors and objects: in this process, in processes of this machine, or on a Ray cluster."""

from outplay.engine.api import (
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
    reserve,
    shutdown,
    wait,
)
from outplay.engine.base import Ref
from outplay.engine.definitions import Reusable, register_serializer, reusables
from outplay.engine.options import Reservation
from outplay.engine.remote import ActorHandle, remote

__all__ = [
    "ActorHandle",
    "Ref",
    "Reservation",
    "Reusable",
    "available_resources",
    "cancel",
    "cluster_resources",
    "get",
    "get_actor",
    "init",
    "is_initialized",
    "kill",
    "nodes",
    "put",
    "register_serializer",
    "remote",
    "reserve",
    "reusables",
    "shutdown",
    "wait",
]
