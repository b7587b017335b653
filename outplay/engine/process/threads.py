"""The threads of an actor that runs several calls at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from outplay.engine.process.post import Post

_FINISH_S = 0.5  # for the calls that run when the actor ends


class CallThreads:
    """Runs up to `limit` calls at once. Threads are started when they are first needed."""

    def __init__(self, limit: int, post: Post) -> None:
        self._limit = limit
        self._post = post
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    @property
    def full(self) -> bool:
        return self._running == self._limit

    def start(self, call: Callable[[], None]) -> None:
        with self._post.lock:
            self._running += 1
            if self._running > len(self._threads):
                # A daemon: one that waits for ever must not keep an actor that has ended.
                thread = threading.Thread(target=self._serve, name=f"outplay-call-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._calls.put(call)

    def stop(self) -> None:
        """Wait for what runs, but not long, and end the threads."""
        if self._post.wait_until(lambda: self._running == 0, _FINISH_S):
            for _ in self._threads:
                self._calls.put(None)
            for thread in self._threads:
                thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            finally:
                call = None  # and what it holds
                with self._post.lock:
                    self._running -= 1
                self._post.wake()  # who gives out calls may wait for a free thread
