"""A pool of actors that share work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from outplay.engine import ActorHandle, Ref, get, wait
from outplay.errors import GetTimeoutError

Function = Callable[[ActorHandle, Any], Any]


class _Running(NamedTuple):
    number: int
    actor: ActorHandle
    result: Any  # a Ref, or a list of Refs


class ActorPool:
    """Runs each call on an idle actor of the pool.

    >>> pool = outplay.util.ActorPool([Player.remote() for _ in range(4)])
    >>> list(pool.map(lambda player, seed: player.play.remote(seed), range(100)))
    """

    def __init__(self, actors: Iterable[ActorHandle]) -> None:
        self._idle = list(actors)
        self._submitted = 0
        self._pending: deque[tuple[int, Function, Any]] = (
            deque()
        )  # (number, fn, value): calls that wait for an idle actor
        self._running: dict[Ref, _Running] = {}
        self._finished: dict[int, Any] = {}  # results that were not returned yet, by number, in the order of completion

    def submit(self, fn: Function, value: Any) -> None:
        """Queue the call `fn(actor, value)`, which must return a Ref, for the next idle actor."""
        self._submit(fn, value)

    def _submit(self, fn: Function, value: Any) -> int:
        number = self._submitted
        self._submitted += 1
        self._pending.append((number, fn, value))
        self._start()
        return number

    def _start(self) -> None:
        while self._pending and self._idle:
            number, fn, value = self._pending.popleft()
            actor = self._idle.pop()
            try:
                result = fn(actor, value)
                self._running[_first(result)] = _Running(number, actor, result)
            except Exception as error:  # noqa: BLE001 - the user's function; raised when its result is returned
                self._idle.append(actor)
                self._finished[number] = error

    def map(self, fn: Function, values: Iterable[Any]) -> Iterator[Any]:
        """The results of `fn(actor, value)` for all values, in order. All calls are submitted at once."""
        numbers = [self._submit(fn, value) for value in values]
        return (self._take(number) for number in numbers)

    def map_unordered(self, fn: Function, values: Iterable[Any]) -> Iterator[Any]:
        """Like `map`, but the results are in the order of completion."""
        left = {self._submit(fn, value) for value in values}
        return self._take_any_of(left)

    def _take_any_of(self, left: set[int]) -> Iterator[Any]:
        while left:
            ready = next((number for number in self._finished if number in left), None)
            if ready is None:
                self._advance(None)
                continue
            left.discard(ready)
            yield self._take(ready)

    def has_next(self) -> bool:
        """Whether there are results that have not been returned."""
        return bool(self._running or self._finished)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Wait for the oldest result that has not been returned, and return it.

        Raises TimeoutError after `timeout` seconds; with `ignore_if_timedout`, that result is then discarded. Raises
        StopIteration if there are no more results.
        """
        return self._take(self._oldest(), timeout, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Like `get_next`, but returns the first result that is ready."""
        oldest = self._oldest()
        if not self._finished and not self._advance(timeout):
            self._time_out(oldest, timeout, ignore_if_timedout)
        return self._take(next(iter(self._finished)))

    def _oldest(self) -> int:
        numbers = [*self._finished, *(running.number for running in self._running.values())]
        if not numbers:
            raise StopIteration("the pool has no more results: no call was submitted, or all results were returned")
        return min(numbers)

    def _take(self, number: int, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        while number not in self._finished:
            if not self._advance(None if deadline is None else max(0.0, deadline - time.monotonic())):
                self._time_out(number, timeout, ignore_if_timedout)
        result = self._finished.pop(number)
        if isinstance(result, Exception):
            raise result
        return get(result)

    def _advance(self, timeout: float | None) -> bool:
        """Wait until a call has finished, and give its actor the next call. Returns False after a timeout."""
        if not self._running:
            raise ValueError("the pool has no actors, or this result was returned already")
        ready, _ = wait(self._running, num_returns=1, timeout=timeout)
        for ref in ready:
            ended = self._running.pop(ref)
            self._finished[ended.number] = ended.result
            self.push(ended.actor)
        return bool(ready)

    def _time_out(self, number: int, timeout: float | None, ignored: bool) -> None:
        if ignored:
            for ref, running in list(self._running.items()):
                if running.number == number:
                    del self._running[ref]
                    self.push(running.actor)
        discarded = "; it was discarded" if ignored else ""
        raise GetTimeoutError(f"the pool's next result was not ready in {timeout:g} s{discarded}")

    def has_free(self) -> bool:
        """Whether an actor is idle."""
        return bool(self._idle)

    def pop_idle(self) -> ActorHandle | None:
        """Remove an idle actor from the pool and return it; None if no actor is idle."""
        return self._idle.pop() if self._idle else None

    def push(self, actor: ActorHandle) -> None:
        """Add an actor to the pool."""
        if actor in self._idle or any(running.actor == actor for running in self._running.values()):
            raise ValueError(f"{actor} is in the pool already")
        self._idle.append(actor)
        self._start()


def _first(result: Any) -> Ref:
    """The Ref of a call, or the first of several Refs: they become ready together."""
    if isinstance(result, Ref):
        return result
    if isinstance(result, list) and result and all(isinstance(ref, Ref) for ref in result):
        first: Ref = result[0]
        return first
    raise TypeError(f"fn(actor, value) must return what actor.method.remote(…) returns, not {type(result).__name__}")
