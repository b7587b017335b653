"""The hub's table of named actors."""

from __future__ import annotations

from outplay.engine.base import name_taken, no_actor
from outplay.engine.process.payload import ID_BITS


class Names:
    """Maps names to living actors."""

    def __init__(self) -> None:
        self._actors: dict[str, tuple[int, bytes]] = {}  # (actor, the interface of its class)

    def claim(self, name: str, actor: int, interface: bytes) -> None:
        if name in self._actors:
            raise name_taken(name)
        self._actors[name] = (actor, interface)

    def find(self, name: str) -> tuple[int, bytes]:
        if name not in self._actors:
            raise no_actor(name, self._actors)
        return self._actors[name]

    def free(self, actor: int) -> None:
        """Free the name of a dead actor."""
        self._actors = {name: found for name, found in self._actors.items() if found[0] != actor}

    def free_all_of(self, process: int) -> None:
        """Free the names of all actors that a process has started, or was about to start."""
        self._actors = {name: found for name, found in self._actors.items() if found[0] >> ID_BITS != process}
