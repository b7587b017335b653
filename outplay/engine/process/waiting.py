"""Blocking inside a call: after 1 ms the hub is told, so that other work can use the slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from outplay.engine.process.calls import Running
from outplay.engine.process.entries import Entry
from outplay.engine.process.post import Post
from outplay.engine.process.wire import HUB

_BLOCKED_AFTER_S = 0.001


class Waits:
    """The objects that the threads of this process wait for inside calls."""

    def __init__(self, post: Post, running: Running) -> None:
        self._post = post
        self._running = running
        self._wanted: dict[int, tuple[int, ...]] = {}  # by thread

    def wait(
        self, done: Callable[[], bool], timeout: float | None, wanted: Callable[[], Iterable[Entry]] = lambda: ()
    ) -> bool:
        """Handle messages until `done()`, which depends on the `wanted` objects. Returns False after a timeout."""
        if not self._running.is_call:
            return self._post.wait_until(done, timeout)
        start = time.monotonic()
        short = _BLOCKED_AFTER_S if timeout is None else min(_BLOCKED_AFTER_S, timeout)
        if self._post.wait_until(done, short):
            return True
        self._begin(wanted())
        try:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
            return self._post.wait_until(done, left)
        finally:
            self._end()

    def _begin(self, wanted: Iterable[Entry]) -> None:
        """Release the slot while any thread waits: the work it waits for may need it."""
        with self._post.uninterrupted, self._post.lock:
            self._wanted[threading.get_ident()] = tuple(entry.id for entry in wanted if entry.payload is None)
            self._post.send(HUB, ("blocked", tuple(number for numbers in self._wanted.values() for number in numbers)))

    def _end(self) -> None:
        with self._post.uninterrupted, self._post.lock:
            del self._wanted[threading.get_ident()]
            if not self._wanted:
                self._post.send(HUB, ("unblocked",))
