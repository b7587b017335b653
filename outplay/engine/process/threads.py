"""The thread pool of an actor with max_concurrency > 1."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from outplay.engine.process.post import Post

_FINISH_S = 0.5  # for running calls, when the actor ends


class CallThreads:
    """Runs up to `limit` calls concurrently. Threads are started on demand."""

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
                # A daemon: a call that never returns must not keep the process alive.
                thread = threading.Thread(target=self._serve, name=f"outplay-call-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._calls.put(call)

    def stop(self) -> None:
        """Wait for running calls for a short time, and end the threads."""
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
                call = None  # free its arguments
                with self._post.lock:
                    self._running -= 1
                self._post.wake()  # the main thread may wait for a free thread
