"""The functions, classes and definitions that a process has sent to the hub. Workers fetch them from there.

Refs and handles that a function has captured, in its closure or globals, live as long as the function. The exporting
process holds them. Each call grants them to the worker that runs it. When the function is deleted, workers are told.
"""

from __future__ import annotations

import weakref
from collections import deque

from outplay.engine.base import Callee
from outplay.engine.definitions import definitions
from outplay.engine.process.entries import Entries
from outplay.engine.process.post import Post
from outplay.engine.process.wire import HUB
from outplay.engine.serialize import Exported
from outplay.errors import EngineError


class Exports:
    """Sends each function, class and set of definitions to the hub once."""

    def __init__(self, post: Post, entries: Entries) -> None:
        self._post = post
        self._entries = entries
        self._names: set[str] = set()
        self._deleted: deque[str] = deque()

    def export(self, callee: Callee) -> Exported:
        known: Exported | None = callee.exports.get("process")
        if known is None or not self._is_known(known):
            known = callee.pack()
            self._send(callee.name, known)
            callee.exports["process"] = known
            if known.captured:
                weakref.finalize(callee, self._deleted.append, known.name).atexit = False
        return known

    def export_definitions(self) -> Exported | None:
        exported = definitions.export()
        if exported is not None and not self._is_known(exported):
            self._send("a reusable variable or serializer", exported)
        return exported

    def _is_known(self, exported: Exported) -> bool:
        return exported.name in self._names and self._is_ours(exported)

    def _is_ours(self, exported: Exported) -> bool:
        return all(getattr(item, "table", None) is self._entries for item in exported.captured)

    def _send(self, what: str, exported: Exported) -> None:
        if not self._is_ours(exported):
            raise EngineError(f"{what} has captured a Ref or handle that belongs to an engine that was shut down")
        self._names.add(exported.name)
        self._post.send(HUB, ("export", exported.name, exported.data))

    def flush_deleted(self) -> None:
        """Tell the hub about the functions that finalizers have recorded as deleted."""
        while self._deleted:
            self._post.send(HUB, ("unexport", self._deleted.popleft()))
