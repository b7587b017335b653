"""Tasks and actors that start others: what they return stays, what nobody holds is freed, on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import outplay
from outplay.engine import api

MEGABYTE = 1_000_000
ROUNDS = 40


@pytest.fixture(scope="module", params=["inline", "process", pytest.param("ray", marks=pytest.mark.slow)])
def one_slot(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine with one slot, so that a task's children run on the worker that started them."""
    outplay.init(request.param, num_cpus=1, object_store_bytes=200 * MEGABYTE)
    yield request.param
    outplay.shutdown()


@outplay.remote
def made(nbytes: int) -> Any:
    return np.ones(nbytes, np.uint8)


@outplay.remote
def starts_another(nbytes: int) -> list[Any]:
    return [made.remote(nbytes)]


@outplay.remote
class CallsItself:
    def meet(self, itself: Any) -> None:
        self.itself = itself

    def make(self, nbytes: int) -> Any:
        return np.ones(nbytes, np.uint8)

    def start(self, nbytes: int) -> list[Any]:
        return [self.itself.make.remote(nbytes)]


@pytest.mark.usefixtures("one_slot")
def test_results_of_tasks_that_their_starter_did_not_wait_for_arrive() -> None:
    kept = [outplay.get(starts_another.remote(MEGABYTE))[0] for _ in range(3)]
    assert [int(array.sum()) for array in outplay.get(kept, timeout=60)] == [MEGABYTE] * 3


@pytest.mark.usefixtures("one_slot")
def test_results_of_tasks_that_their_starter_did_not_wait_for_are_freed() -> None:
    for _ in range(ROUNDS):  # twice what the store holds
        (ref,) = outplay.get(starts_another.remote(10 * MEGABYTE))
        assert outplay.get(ref, timeout=60).nbytes == 10 * MEGABYTE


@pytest.mark.usefixtures("one_slot")
def test_an_actor_that_calls_itself_does_not_fill_the_store() -> None:
    actor = CallsItself.remote()
    outplay.get(actor.meet.remote(actor))
    for _ in range(ROUNDS):  # twice what the store holds
        (ref,) = outplay.get(actor.start.remote(10 * MEGABYTE))
        assert outplay.get(ref, timeout=60).nbytes == 10 * MEGABYTE
    outplay.kill(actor)  # it holds its own handle


@outplay.remote
def nested(depth: int) -> int:
    return 1 + outplay.get(nested.remote(depth - 1)) if depth else 1


@pytest.mark.usefixtures("one_slot")
def test_many_tasks_that_wait_for_others_are_done() -> None:
    assert outplay.get([nested.remote(2) for _ in range(30)], timeout=100) == [3] * 30


@pytest.mark.parametrize("cpus", [1, 2])
def test_tasks_that_wait_for_others_do_not_each_need_a_process(cpus: int) -> None:
    outplay.shutdown()
    outplay.init("process", num_cpus=cpus)
    try:
        hub = psutil.Process(api.engine()._hub.pid)  # type: ignore[attr-defined]
        refs = [nested.remote(1) for _ in range(100)]
        most = 0
        while refs:
            _, refs = outplay.wait(refs)
            most = max(most, len(hub.children()))
        # Two for each slot; some more on a machine so busy that slots seem to stay unused.
        assert 0 < most < 20
    finally:
        outplay.shutdown()
