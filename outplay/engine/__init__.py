"""Tasks, actors and objects: inline, on processes of this machine, or on a Ray cluster."""

from outplay.engine.api import cancel, get, get_actor, init, is_initialized, kill, put, reserve, shutdown, wait
from outplay.engine.base import Ref
from outplay.engine.definitions import Reusable, register_serializer, reusables
from outplay.engine.options import Reservation
from outplay.engine.remote import ActorHandle, remote

__all__ = [
    "ActorHandle",
    "Ref",
    "Reservation",
    "Reusable",
    "cancel",
    "get",
    "get_actor",
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
