"""The hub's list of named actors."""

from __future__ import annotations

from outplay.engine.base import name_taken, no_actor
from outplay.engine.process.payload import ID_BITS


class Names:
    """Each name stands for one living actor."""

    def __init__(self) -> None:
        self._actors: dict[str, tuple[int, bytes]] = {}  # the actor, and the interface of its class

    def claim(self, name: str, actor: int, interface: bytes) -> None:
        if name in self._actors:
            raise name_taken(name)
        self._actors[name] = (actor, interface)

    def find(self, name: str) -> tuple[int, bytes]:
        if name not in self._actors:
            raise no_actor(name, self._actors)
        return self._actors[name]

    def free(self, actor: int) -> None:
        """The actor is dead."""
        self._actors = {name: found for name, found in self._actors.items() if found[0] != actor}

    def free_all_of(self, process: int) -> None:
        """The process is gone, and with it the actors that it started, or was about to."""
        self._actors = {name: found for name, found in self._actors.items() if found[0] >> ID_BITS != process}
