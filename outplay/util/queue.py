"""A queue that any number of tasks and actors put into and get from."""

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

_CALLS_AT_ONCE = 64
# A call that waits inside the actor takes one of its threads: after this time the next one has its turn.
_LONGEST_CALL_S = 0.5


class _Server:
    """The actor that holds the items."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()

    def size(self) -> int:
        return len(self._items)

    def put(self, wait_s: float, *items: Any) -> bool:
        """Put all of them, or none if they do not fit within `wait_s` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(len(items)), wait_s):
                return False
            self._items.extend(items)
            self._changed.notify_all()
            return True

    def _has_room(self, count: int) -> bool:
        return self._maxsize <= 0 or len(self._items) + count <= self._maxsize

    def get(self, wait_s: float, count: int) -> list[Any] | None:
        """So many items; None if there are not so many within `wait_s` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._items) >= count, wait_s):
                return None
            self._changed.notify_all()
            return [self._items.popleft() for _ in range(count)]


_RemoteServer = remote(_Server)


class Queue:
    """A first-in, first-out queue in an actor of its own. It may be passed to tasks and actors.

    A Ref that is put arrives as its value.

    maxsize        how many items fit; any number if it is 0 or less
    actor_options  options of the actor, as for `.options(…)`

    >>> queue = outplay.util.Queue(maxsize=100)
    >>> queue.put(trajectory)
    >>> queue.get(timeout=10)
    """

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        options = {"max_concurrency": _CALLS_AT_ONCE, **(actor_options or {})}
        self.maxsize = maxsize
        self.actor: ActorHandle = _RemoteServer.options(**options).remote(maxsize)

    def __len__(self) -> int:
        return self.qsize()

    def qsize(self) -> int:
        """How many items it holds."""
        size: int = get(self.actor.size.remote())
        return size

    def size(self) -> int:
        """How many items it holds."""
        return self.qsize()

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item. Waits for room, up to `timeout` seconds, and raises `Full` if there is none."""
        if not self._ask(lambda wait_s: self.actor.put.remote(wait_s, item), block, timeout):
            raise Full(f"the queue holds {self.maxsize} items already")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the oldest item. Waits for one, up to `timeout` seconds, and else raises `Empty`."""
        items = self._ask(lambda wait_s: self.actor.get.remote(wait_s, 1), block, timeout)
        if items is None:
            raise Empty("the queue is empty")
        return items[0]

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """`put` for a coroutine: others run while it waits."""
        await _in_thread(lambda: self.put(item, block, timeout))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """`get` for a coroutine: others run while it waits."""
        return await _in_thread(lambda: self.get(block, timeout))

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items, in their order; raises `Full`, and adds none, if they do not all fit."""
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch() takes a list of items, not {type(items).__name__}")
        batch = list(items)
        if not get(self.actor.put.remote(0.0, *batch)):
            raise Full(f"{len(batch)} items do not fit into a queue of {self.maxsize}")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """The oldest `num_items` items; raises `Empty`, and removes none, if there are fewer."""
        if not isinstance(num_items, int):
            raise TypeError(f"get_nowait_batch() takes a number of items, not {type(num_items).__name__}")
        if num_items < 0:
            raise ValueError(f"get_nowait_batch() cannot return {num_items} items")
        items: list[Any] | None = get(self.actor.get.remote(0.0, num_items))
        if items is None:
            raise Empty(f"the queue holds fewer than {num_items} items")
        return items

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue's actor: at once, or when it has done what this program asked of it before."""
        if not force:
            wait([self.actor.size.remote()], timeout=grace_period_s)
        kill(self.actor)

    def _ask(self, call: Callable[[float], Ref], block: bool, timeout: float | None) -> Any:
        """What the actor answers in the end; None or False if it could not in time."""
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout must be a number of seconds, or None for no limit, not {timeout!r}")
        for_ever = block and timeout is None
        is_inline = api.engine().name == "inline"
        deadline = time.monotonic() + (0.0 if not block or timeout is None else timeout)
        while True:
            left = _LONGEST_CALL_S if for_ever and not is_inline else max(0.0, deadline - time.monotonic())
            answer = get(call(min(left, _LONGEST_CALL_S)))
            if answer:
                return answer
            if for_ever and is_inline:
                raise EngineError("the queue would wait forever: inline, nothing else runs while this program waits")
            if not for_ever and time.monotonic() >= deadline:
                return answer


async def _in_thread(function: Callable[[], Any]) -> Any:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    # A thread of its own: those that asyncio shares may all be waiting for what this one is to do.
    executor = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, function)
    finally:
        executor.shutdown(wait=False)
