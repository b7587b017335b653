"""A queue for any number of tasks and actors."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, Full
from typing import Any

from outplay.engine import ActorHandle, Ref, api, get, kill, remote, wait
from outplay.errors import EngineError

__all__ = ["Empty", "Full", "Queue"]

_MAX_CONCURRENCY = 64
# A call that blocks occupies a thread of the actor. After this time it returns, so that another call gets the thread.
_MAX_CALL_S = 0.5


class _Server:
    """The actor that holds the items."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()

    def size(self) -> int:
        return len(self._items)

    def put(self, wait_s: float, *items: Any) -> bool:
        """Add all items. Returns False, and adds none, if there is not enough space within `wait_s` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(len(items)), wait_s):
                return False
            self._items.extend(items)
            self._changed.notify_all()
            return True

    def _has_room(self, count: int) -> bool:
        return self._maxsize <= 0 or len(self._items) + count <= self._maxsize

    def get(self, wait_s: float, count: int) -> list[Any] | None:
        """Remove and return `count` items; None if there are fewer within `wait_s` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._items) >= count, wait_s):
                return None
            self._changed.notify_all()
            return [self._items.popleft() for _ in range(count)]


_RemoteServer = remote(_Server)


class Queue:
    """A first-in, first-out queue, stored in an actor. It can be passed to tasks and actors.

    If an item is a Ref, `get` returns its value.

    maxsize        maximum number of items; 0 or less: no limit
    actor_options  options of the actor, as for `.options(…)`

    >>> queue = outplay.util.Queue(maxsize=100)
    >>> queue.put(trajectory)
    >>> queue.get(timeout=10)
    """

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        options = {"max_concurrency": _MAX_CONCURRENCY, **(actor_options or {})}
        self.maxsize = maxsize
        self.actor: ActorHandle = _RemoteServer.options(**options).remote(maxsize)

    def __len__(self) -> int:
        return self.qsize()

    def qsize(self) -> int:
        """The number of items."""
        size: int = get(self.actor.size.remote())
        return size

    def size(self) -> int:
        """The number of items."""
        return self.qsize()

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item. Waits for space, at most `timeout` seconds; then raises `Full`."""
        if not self._call(lambda wait_s: self.actor.put.remote(wait_s, item), block, timeout):
            raise Full(f"the queue is full: it holds {self.maxsize} items")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the oldest item. Waits for one, at most `timeout` seconds; then raises `Empty`."""
        items = self._call(lambda wait_s: self.actor.get.remote(wait_s, 1), block, timeout)
        if items is None:
            raise Empty("the queue is empty")
        return items[0]

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Like `put`, for coroutines: does not block the event loop."""
        await _in_thread(lambda: self.put(item, block, timeout))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Like `get`, for coroutines: does not block the event loop."""
        return await _in_thread(lambda: self.get(block, timeout))

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items, in order. Raises `Full`, and adds none, if they do not all fit."""
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch() takes a list of items, not {type(items).__name__}")
        batch = list(items)
        if not get(self.actor.put.remote(0.0, *batch)):
            raise Full(f"{len(batch)} items do not fit into a queue of {self.maxsize}")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Remove and return the oldest `num_items` items. Raises `Empty`, and removes none, if there are fewer."""
        if not isinstance(num_items, int):
            raise TypeError(f"get_nowait_batch() takes a number of items, not {type(num_items).__name__}")
        if num_items < 0:
            raise ValueError(f"get_nowait_batch() cannot return {num_items} items")
        items: list[Any] | None = get(self.actor.get.remote(0.0, num_items))
        if items is None:
            raise Empty(f"the queue holds fewer than {num_items} items")
        return items

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """Kill the queue's actor. Without `force`, first wait for the calls that this program has made before."""
        if not force:
            wait([self.actor.size.remote()], timeout=grace_period_s)
        kill(self.actor)

    def _call(self, call: Callable[[float], Ref], block: bool, timeout: float | None) -> Any:
        """Repeat a call of the actor until it succeeds. Returns its result; None or False after the timeout."""
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout must be a number of seconds, or None for no limit, not {timeout!r}")
        no_limit = block and timeout is None
        is_inline = api.engine().name == "inline"
        deadline = time.monotonic() + (0.0 if not block or timeout is None else timeout)
        while True:
            left = _MAX_CALL_S if no_limit and not is_inline else max(0.0, deadline - time.monotonic())
            reply = get(call(min(left, _MAX_CALL_S)))
            if reply:
                return reply
            if no_limit and is_inline:
                raise EngineError(
                    "the queue would wait forever: on the inline engine, no other code runs while this program waits"
                )
            if not no_limit and time.monotonic() >= deadline:
                return reply


async def _in_thread(function: Callable[[], Any]) -> Any:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    # A new thread: all threads of asyncio's shared pool may be waiting for this call.
    executor = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, function)
    finally:
        executor.shutdown(wait=False)
