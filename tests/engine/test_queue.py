"""Queues between tasks and actors, on every engine."""

from __future__ import annotations

import asyncio
import queue

import numpy as np
import pytest

import outplay
from outplay.util import Empty, Full, Queue

pytestmark = pytest.mark.usefixtures("engine")


def test_a_queue_is_first_in_first_out() -> None:
    line = Queue()
    assert line.empty()
    for item in ("a", {"b": 1}, np.arange(100_000)):
        line.put(item)
    assert (len(line), line.size(), line.qsize(), line.full()) == (3, 3, 3, False)
    assert [line.get(), line.get(timeout=60)] == ["a", {"b": 1}]
    assert line.get_nowait().sum() == 99_999 * 50_000
    with pytest.raises(Empty):
        line.get_nowait()
    with pytest.raises(queue.Empty):
        line.get(timeout=0.1)
    with pytest.raises(Empty):
        line.get(block=False)
    line.put(None)
    line.put(outplay.put("stored"))
    assert [line.get(), line.get()] == [None, "stored"]


def test_a_queue_may_be_full() -> None:
    line = Queue(maxsize=2)
    line.put(1)
    line.put(2, timeout=60)
    assert line.full()
    with pytest.raises(Full):
        line.put(3, timeout=0.1)
    with pytest.raises(queue.Full):
        line.put_nowait(3)
    assert line.get() == 1
    line.put_nowait(3)
    assert [line.get(), line.get()] == [2, 3]
    for wrong in (lambda: line.get(timeout=-1), lambda: line.put(1, timeout=-1)):
        with pytest.raises(ValueError, match="timeout must be a number of seconds"):
            wrong()


def test_a_batch_is_all_or_nothing() -> None:
    line = Queue(maxsize=5)
    line.put_nowait_batch(range(3))
    with pytest.raises(Full, match="3 items do not fit into a queue of 5"):
        line.put_nowait_batch([7, 8, 9])
    with pytest.raises(Empty, match="fewer than 4"):
        line.get_nowait_batch(4)
    assert line.get_nowait_batch(0) == []
    assert line.get_nowait_batch(2) == [0, 1]
    assert line.get_nowait_batch(1) == [2]
    with pytest.raises(TypeError, match="takes a list of items, not int"):
        line.put_nowait_batch(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a number of items, not str"):
        line.get_nowait_batch("1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot return -1 items"):
        line.get_nowait_batch(-1)


def test_a_queue_is_shared_by_tasks() -> None:
    line = Queue()

    @outplay.remote
    def produce(out: Queue, start: int) -> None:
        for x in range(start, start + 5):
            out.put(x)

    outplay.get([produce.remote(line, 0), produce.remote(line, 10)])
    assert sorted(line.get(timeout=60) for _ in range(10)) == [*range(5), *range(10, 15)]


def test_who_waits_for_a_queue_is_woken(engine: str) -> None:
    if engine == "inline":
        with pytest.raises(outplay.EngineError, match="would wait forever"):
            Queue().get()
        return
    line = Queue(maxsize=1)

    @outplay.remote(num_cpus=0)
    def consume(source: Queue, count: int) -> list[int]:
        return [source.get() for _ in range(count)]

    taken = [consume.remote(line, 5) for _ in range(2)]
    for x in range(10):
        line.put(x)  # waits until the last one was taken
    first, second = outplay.get(taken, timeout=60)
    assert sorted(first + second) == list(range(10))


def test_coroutines_use_a_queue(engine: str) -> None:
    line = Queue(maxsize=1)

    async def run() -> list[int]:
        if engine == "inline":
            await line.put_async(0)
            return [await line.get_async()]
        gets = [asyncio.create_task(line.get_async()) for _ in range(40)]  # more than asyncio's own threads
        await asyncio.sleep(0)
        for x in range(40):
            await line.put_async(x, timeout=60)
        return sorted(await asyncio.gather(*gets))

    assert asyncio.run(run()) == ([0] if engine == "inline" else list(range(40)))
    with pytest.raises(Empty):
        asyncio.run(line.get_async(timeout=0.01))


def test_a_queue_that_was_shut_down_is_gone() -> None:
    for force in (False, True):
        line = Queue(actor_options={"num_cpus": 1})
        line.put(1)
        line.shutdown(force=force)
        with pytest.raises(outplay.ActorDiedError):
            line.put(2)
