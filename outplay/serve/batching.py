"""Dynamic batching: requests that wait at the same time are answered by one call of the policy, in one thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from outplay.serve.metrics import ServerMetrics
from outplay.serve.source import Array, ServedPolicy, State
from outplay.spaces import Leaves

_MOST_BATCHES_WAITING = 64


class OverloadedError(Exception):
    """Too many observations wait already."""


@dataclass(frozen=True)
class Answer:
    """The actions of a request, the next recurrent state, and the policy that chose them."""

    actions: Array
    state: State
    served: ServedPolicy


@dataclass
class _Pending:
    rows: Leaves
    state: State | None
    mask: Array | None
    answer: asyncio.Future[Answer]
    since: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> int:
        return len(self.rows[0])


class Batcher:
    """Collects requests into batches.

    >>> batcher = Batcher(served, ServerMetrics(), max_rows=64)
    >>> batcher.start()
    >>> answer = await batcher.act(rows)
    >>> await batcher.stop()

    `served` may be replaced at any time: each batch is computed by the policy that is there when it starts.
    """

    def __init__(
        self,
        served: ServedPolicy,
        metrics: ServerMetrics,
        max_rows: int,
        max_wait_s: float = 0.0,
        explore: bool = False,
    ) -> None:
        self.served = served
        self._metrics = metrics
        self._max_rows, self._max_wait_s, self._explore = max_rows, max_wait_s, explore
        self._pending: deque[_Pending] = deque()
        self._waiting_rows = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting_rows(self) -> int:
        """Observations that wait for a batch."""
        return self._waiting_rows

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def stop_waiting(self) -> None:
        """From now on, no request waits for others: the server stops."""
        self._max_wait_s = 0.0
        self._arrived.set()

    async def stop(self) -> None:
        """Answer what waits, then stop."""
        self.stop_waiting()
        while self._pending and self._task is not None and not self._task.done():
            await asyncio.sleep(0.001)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._thread.shutdown()

    async def act(self, rows: Leaves, state: State | None = None, mask: Array | None = None) -> Answer:
        """The actions for some observations, which are not split among batches. Raises OverloadedError."""
        number = len(rows[0])
        if self._waiting_rows and self._waiting_rows + number > _MOST_BATCHES_WAITING * self._max_rows:
            raise OverloadedError
        pending = _Pending(rows, state, mask, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._waiting_rows += number
        self._arrived.set()
        return await pending.answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_batch()
            batch, served = self._take(), self.served
            if not batch:
                continue
            try:
                answers = await loop.run_in_executor(self._thread, self._infer, served, batch)
            except Exception as error:  # noqa: BLE001 - a custom model may raise anything; its clients are told
                for each in batch:
                    if not each.answer.done():
                        each.answer.set_exception(error)
                continue
            for each, answer in zip(batch, answers, strict=True):
                if not each.answer.done():  # else its client has gone
                    each.answer.set_result(answer)

    async def _wait_for_batch(self) -> None:
        """Wait for a request, and then for others: until the batch is full, or max_wait_s after the first request."""
        while True:
            while not self._pending:  # `stop_waiting` wakes it without a request
                self._arrived.clear()
                await self._arrived.wait()
            left = self._pending[0].since + self._max_wait_s - time.monotonic()
            if left <= 0 or self._waiting_rows >= self._max_rows:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[_Pending]:
        """The next batch, in order of arrival."""
        batch: list[_Pending] = []
        number = 0
        while self._pending and (not batch or number + self._pending[0].number <= self._max_rows):
            each = self._pending.popleft()
            self._waiting_rows -= each.number
            if not each.answer.done():
                batch.append(each)
                number += each.number
        return batch

    def _infer(self, served: ServedPolicy, batch: Sequence[_Pending]) -> list[Answer]:
        """Called in the thread of the policy."""
        started = time.perf_counter()
        numbers = [each.number for each in batch]
        rows = tuple(_joined([each.rows[i] for each in batch]) for i in range(len(batch[0].rows)))
        state, mask = _states(served, batch, numbers), _masks(batch, numbers)
        actions, after = served.act_on_rows(rows, state, mask, self._explore, self._max_rows)
        answers = []
        begin = 0
        for number in numbers:
            part = slice(begin, begin + number)
            own = {name: array[part] for name, array in after.items()}
            answers.append(Answer(actions[part], own, served))
            begin += number
        self._metrics.batch_rows.observe(begin)
        self._metrics.inference_seconds.observe(time.perf_counter() - started)
        return answers


def _joined(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _states(served: ServedPolicy, batch: Sequence[_Pending], numbers: list[int]) -> State | None:
    if all(each.state is None for each in batch):
        return None
    states = [
        served.policy.initial_state(number) if each.state is None else each.state
        for each, number in zip(batch, numbers, strict=True)
    ]
    return {name: _joined([state[name] for state in states]) for name in states[0]}


def _masks(batch: Sequence[_Pending], numbers: list[int]) -> Array | None:
    """The masks of a batch; requests without one allow all actions."""
    given = [each.mask for each in batch if each.mask is not None]
    if not given:
        return None
    width = given[0].shape[1]
    pairs = zip(batch, numbers, strict=True)
    return _joined([np.ones((number, width), bool) if each.mask is None else each.mask for each, number in pairs])
