"""Small helpers on top of the engine, with the interfaces of `ray.util`."""

from outplay.util.actor_pool import ActorPool
from outplay.util.queue import Empty, Full, Queue

__all__ = ["ActorPool", "Empty", "Full", "Queue"]
