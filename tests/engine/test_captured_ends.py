"""What a function has captured is let go of when the function is gone, on the process engine."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import outplay
from outplay.testing.waiting import until
from tests.engine.test_captured import MEGABYTE, reads
from tests.engine.test_process import is_running


@pytest.fixture
def small_store() -> Iterator[None]:
    outplay.init("process", num_cpus=2, object_store_bytes=100 * MEGABYTE)
    yield
    outplay.shutdown()


def test_memory_is_free_when_the_function_is_gone(small_store: None) -> None:
    @outplay.remote
    class Caller:
        def call(self, size: int) -> Any:
            """What a worker exports is freed, too."""
            return outplay.get(reads(outplay.put(np.ones(size))).remote())

    caller = Caller.remote()
    for _ in range(15):  # 10 MB each, with workers and the program as their holders
        assert outplay.get(reads(outplay.put(np.ones(10 * MEGABYTE // 8))).remote()) == 10 * MEGABYTE // 8
        assert outplay.get(caller.call.remote(10 * MEGABYTE // 8)) == 10 * MEGABYTE // 8


def test_an_actor_ends_when_the_function_that_held_it_is_gone(small_store: None) -> None:
    @outplay.remote
    class Sleeper:
        def pid(self) -> int:
            return os.getpid()

    def holder(handle: Any) -> Any:
        @outplay.remote
        def pid() -> int:
            result: int = outplay.get(handle.pid.remote())
            return result

        return pid

    function = holder(Sleeper.remote())
    number = outplay.get(function.remote())
    assert psutil.pid_exists(number)
    assert outplay.get(function.remote()) == number
    del function
    gc.collect()
    until(lambda: not is_running(number))


def test_a_ref_of_an_engine_that_was_shut_down_is_refused() -> None:
    outplay.init("process", num_cpus=1)
    read = reads(outplay.put(1))
    assert outplay.get(read.remote()) == 1
    outplay.shutdown()
    outplay.init("process", num_cpus=1)
    try:
        with pytest.raises(outplay.EngineError, match=r"reads\.<locals>\.read has captured a Ref .* shut down"):
            read.remote()
    finally:
        outplay.shutdown()
