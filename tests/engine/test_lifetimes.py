"""Who holds what, and for how long, when messages overtake each other and processes die at awkward moments."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import outplay
from outplay.testing.waiting import until

SIZE = 125_000  # float64: a megabyte


@pytest.fixture
def engine() -> Iterator[None]:
    outplay.init("process", num_cpus=2, object_store_bytes=40_000_000)
    yield
    outplay.shutdown()


@outplay.remote
class Reader:
    def touch(self, things: list[Any]) -> None: ...

    def alive(self) -> bool:
        return True


@outplay.remote
def nothing(_: Any) -> None: ...


@outplay.remote
def make(number: float) -> Any:
    return np.full(SIZE, number)


@pytest.mark.usefixtures("engine")
def test_the_hub_hears_of_a_grant_before_its_receiver_does() -> None:
    """Many large messages to the hub are still on their way when a direct call overtakes them."""
    reader, other = Reader.remote(), Reader.remote()
    outplay.get([reader.alive.remote(), other.alive.remote()])
    for _ in range(3):
        ref = outplay.put(np.full(SIZE, 1.0))
        view = outplay.get(ref)
        outplay.get(reader.touch.remote([ref]))
        refs = [nothing.remote(np.zeros(60_000, np.uint8)) for _ in range(20)]
        outplay.get(reader.touch.remote([ref, other]))
        for _ in range(5):
            outplay.put(np.full(SIZE, 99.0))
        assert view.max() == 1
        assert outplay.get(ref).max() == 1
        assert outplay.get(other.alive.remote(), timeout=60)
        outplay.get(refs)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("kind", ["a result", "its own object", "a plain argument"])
def test_what_a_dead_caller_had_lent_is_not_used_again(kind: str, tmp_path: Path) -> None:
    started, go_on, answer = str(tmp_path / "started"), str(tmp_path / "go_on"), str(tmp_path / "answer")

    @outplay.remote
    class Recorder:
        def slow_read(self, array: Any) -> None:
            before = float(array.max())
            Path(started).touch()
            deadline = time.monotonic() + 60
            while not Path(go_on).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            Path(answer).write_text(f"{before} {float(array.max())}")

    @outplay.remote(max_retries=0)
    def lend_and_die(recorder: Any) -> None:
        lent = {"a result": lambda: make.remote(1.0), "its own object": lambda: outplay.put(np.full(SIZE, 1.0))}
        value = lent[kind]() if kind in lent else np.full(SIZE, 1.0)
        if isinstance(value, outplay.Ref):
            outplay.wait([value])
        recorder.slow_read.remote(value)
        while not Path(started).exists():
            time.sleep(0.01)
        os._exit(1)

    recorder = Recorder.remote()
    with pytest.raises(outplay.WorkerDiedError):
        outplay.get(lend_and_die.remote(recorder))
    held = [outplay.put(np.full(SIZE, 99.0)) for _ in range(6)]
    held += [make.remote(99.0) for _ in range(6)]
    outplay.wait(held, num_returns=len(held))
    Path(go_on).touch()
    until(lambda: Path(answer).exists() and Path(answer).read_text())
    assert Path(answer).read_text() == "1.0 1.0"


@pytest.mark.usefixtures("engine")
def test_a_task_that_was_answered_is_not_repeated(tmp_path: Path) -> None:
    def die_once(value: int) -> int:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return value

    outplay.reusables.mortal = outplay.Reusable(lambda: 5, die_once)

    @outplay.remote(max_retries=3)
    def use(array: Any) -> Any:
        with open(tmp_path / "runs", "a") as file:
            file.write("x")
        return array * outplay.reusables.mortal

    result = outplay.get(use.remote(np.full(SIZE, 1.0)))
    until((tmp_path / "died").exists)
    until(lambda: outplay.available_resources()["CPU"] == 2)  # the hub knows of the death
    for _ in range(10):  # and would have repeated the task before these, which find its memory free
        outplay.get(nothing.remote(outplay.put(np.full(SIZE, 99.0))))
    assert (tmp_path / "runs").read_text() == "x"
    assert result.min() == result.max() == 5


@pytest.mark.usefixtures("engine")
def test_a_task_that_died_after_it_stored_a_result_is_repeated(tmp_path: Path) -> None:
    @outplay.remote(num_returns=2, max_retries=2)
    def stores_and_dies() -> tuple[Any, Any]:
        class Deadly:
            def __reduce__(self) -> Any:
                if not (tmp_path / "died").exists():
                    (tmp_path / "died").touch()
                    os._exit(1)
                return int, (3,)

        return np.full(SIZE, 4.0), Deadly()

    for _ in range(3):
        (tmp_path / "died").unlink(missing_ok=True)
        large, small = outplay.get(stores_and_dies.remote())
        assert (large.min(), large.max(), small) == (4, 4, 3)


@pytest.mark.usefixtures("engine")
def test_a_result_beside_one_that_fails_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    @outplay.remote(num_returns=2)
    def half() -> tuple[Any, Any]:
        return np.full(4 * SIZE, 1.0), threading.Lock()

    collections: list[Any] = []  # memory that only a garbage collection frees is freed late
    monkeypatch.setattr(gc, "collect", lambda: collections.append(1))
    for _ in range(30):  # three times what the store holds
        first, _ = half.remote()
        with pytest.raises(outplay.SerializationError):
            outplay.get(first)
    assert not collections


@pytest.mark.slow
def test_what_a_worker_computed_for_itself_outlives_it() -> None:
    @outplay.remote
    def nested(depth: int) -> list[Any]:
        inner = outplay.get(nested.remote(depth - 1)) if depth else []
        return [*inner, (os.getpid(), make.remote(1.0))]

    outplay.init("process", num_cpus=1)  # so that what a worker has started runs on it when it is free
    try:
        found = outplay.get(nested.remote(3), timeout=60)
        deadline = time.monotonic() + 60
        while sum(psutil.pid_exists(pid) for pid, _ in found) > 1:  # more workers than slots do not stay
            assert time.monotonic() < deadline
            outplay.get(make.remote(0.0), timeout=60)
        assert [outplay.get(ref, timeout=60).max() for _, ref in found] == [1.0] * 4
    finally:
        outplay.shutdown()


@pytest.mark.usefixtures("engine")
def test_an_actor_that_ends_does_not_take_along_what_other_tasks_have_started(tmp_path: Path) -> None:
    @outplay.remote
    class Slow:
        def answer(self) -> int:
            while not (tmp_path / "go_on").exists():
                time.sleep(0.01)
            return 5

    @outplay.remote
    class Broken:
        def __init__(self) -> None:
            raise ValueError

        def alive(self) -> bool:
            return True

    @outplay.remote
    def start(slow: Any) -> list[Any]:
        return [slow.answer.remote()]

    slow = Slow.remote()
    (ref,) = outplay.get(start.remote(slow))
    for _ in range(5):
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(Broken.remote().alive.remote())
    (tmp_path / "go_on").touch()
    assert outplay.get(ref, timeout=60) == 5


@pytest.mark.usefixtures("engine")
def test_threads_may_get_the_same_object() -> None:
    errors: list[BaseException] = []

    def get(ref: Any) -> None:
        try:
            assert outplay.get(ref).max() == 3
        except BaseException as error:
            errors.append(error)

    for _ in range(10):
        ref = make.remote(3.0)
        threads = [threading.Thread(target=get, args=(ref,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert errors == []


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_an_actor_that_waits_in_a_released_reservation_lets_go_of_its_arguments() -> None:
    @outplay.remote
    class Taker:
        def __init__(self, array: Any) -> None: ...

        def alive(self) -> bool:
            return True

    for _ in range(12):
        group = outplay.reserve([{"num_cpus": 1}])
        running = Taker.options(num_cpus=1, reservation=group).remote(np.full(2 * SIZE, 1.0))
        waiting = Taker.options(num_cpus=1, reservation=group).remote(np.full(2 * SIZE, 1.0))
        outplay.get(running.alive.remote())
        group.release()
        with pytest.raises(outplay.ActorDiedError, match="reservation was released"):
            outplay.get(waiting.alive.remote())


@pytest.mark.usefixtures("engine")
def test_a_task_in_a_released_reservation_says_so(tmp_path: Path) -> None:
    @outplay.remote
    def sleep() -> None:
        (tmp_path / "started").touch()
        time.sleep(1000)

    group = outplay.reserve([{"num_cpus": 1}])
    ref = sleep.options(reservation=group).remote()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    group.release()
    with pytest.raises(outplay.WorkerDiedError, match="sleep failed: its reservation was released"):
        outplay.get(ref, timeout=60)


@pytest.mark.usefixtures("engine")
def test_an_actor_can_be_killed_before_it_has_started() -> None:
    for _ in range(20):
        reader = Reader.remote()
        ref = reader.alive.remote()
        outplay.kill(reader)
        with pytest.raises(outplay.ActorDiedError, match="was killed"):
            outplay.get(ref, timeout=60)


def test_an_interrupted_reservation_is_taken_back(run_script: Callable[..., Any]) -> None:
    result = run_script(
        """
import os, signal, threading
import outplay

outplay.init("process", num_cpus=2)

@outplay.remote
def one():
    return 1

group = outplay.reserve([{"num_cpus": 1}])
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    outplay.reserve([{"num_cpus": 2}])
except KeyboardInterrupt:
    print("interrupted", outplay.get(one.remote(), timeout=60))
group.release()
with outplay.reserve([{"num_cpus": 2}], timeout=60):
    print("whole")
"""
    )
    assert result.stdout.split() == ["interrupted", "1", "whole"], result.stderr


def test_a_thread_that_waits_does_not_keep_the_slot(run_script: Callable[..., Any]) -> None:
    result = run_script(
        """
import sys, threading, time, traceback
import outplay

outplay.init("process", num_cpus=1)

@outplay.remote(num_cpus=0)
def sleep():
    time.sleep(1000)

def functions(thread):
    frame = sys._current_frames().get(thread.ident)
    return {summary.name for summary in traceback.extract_stack(frame)} if frame else set()

@outplay.remote
def leaves_a_thread():
    ref = sleep.remote()
    thread = threading.Thread(target=lambda: outplay.get(ref), daemon=True)
    thread.start()
    while "wait_until" not in functions(thread):
        time.sleep(0.01)
    time.sleep(0.05)  # longer than a wait that the hub is not told of

@outplay.remote
def inner():
    return 1

@outplay.remote
def outer():
    return outplay.get(inner.remote())

outplay.get(leaves_a_thread.remote())
print(outplay.get(outer.remote(), timeout=60))
"""
    )
    assert result.stdout.strip() == "1", result.stderr


def test_gpus_are_given_out_by_name(run_script: Callable[..., Any]) -> None:
    """No GPU is needed for this: the engine believes CUDA_VISIBLE_DEVICES."""
    result = run_script(
        """
import os
import outplay

outplay.init("process", num_cpus=2)

@outplay.remote
class Holder:
    def visible(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

@outplay.remote(num_gpus=1)
def visible():
    return os.environ["CUDA_VISIBLE_DEVICES"], Holder.remote()

holders = [Holder.options(num_gpus=1).remote() for _ in range(2)]
print(sorted(outplay.get([holder.visible.remote() for holder in holders])))
outplay.kill(holders.pop())
name, child = outplay.get(visible.remote())
print(name in ("3", "5"), repr(outplay.get(child.visible.remote())))
try:
    Holder.options(num_gpus=3).remote()
except outplay.ResourceError as error:
    print(error)
""",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "3,5"},
    )
    assert result.stdout.splitlines() == [
        "['3', '5']",
        "True ''",
        "Holder asks for num_cpus=0, num_gpus=3, but this machine has at most num_cpus=2, num_gpus=2",
    ], result.stderr


def test_as_many_large_objects_as_files_may_be_open(run_script: Callable[..., Any]) -> None:
    result = run_script(
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
import numpy as np
import outplay

outplay.init("process", num_cpus=1)
kept = []
try:
    while len(kept) < 1000:
        kept.append(outplay.put(np.zeros(10_000)))
except outplay.ObjectStoreFullError as error:
    print(len(kept), error)
assert len(kept) > 30
kept.clear()
print(outplay.get(outplay.put(np.ones(10_000))).sum())
"""
    )
    lines = result.stdout.splitlines()
    assert "the most that the limit on open files allows" in lines[0], result.stderr
    assert lines[1] == "10000.0", result.stderr


def test_answers_that_are_still_queued_are_not_lost(run_script: Callable[..., Any]) -> None:
    """The driver reads nothing for a while, and then a worker dies that had answers left for it."""
    result = run_script(
        """
import ctypes, os
import outplay

outplay.init("process", num_cpus=1)

@outplay.remote
def answer(number):
    return bytes([number]) * 60_000

@outplay.remote(max_retries=0)
def die():
    os._exit(1)

refs = [answer.remote(number) for number in range(20)]
last = die.remote()
ctypes.PyDLL(None).usleep(1_500_000)  # holds the GIL: no thread of this process reads anything
print([value[0] for value in outplay.get(refs, timeout=60)] == list(range(20)))
try:
    outplay.get(last, timeout=60)
except outplay.WorkerDiedError:
    print("died")
"""
    )
    assert result.stdout.split() == ["True", "died"], result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_a_thread_left_running_does_not_keep_an_actor() -> None:
    @outplay.remote
    class Threaded:
        def start(self) -> None:
            threading.Thread(target=time.sleep, args=(1000,)).start()

    for _ in range(2):
        actor = Threaded.options(num_cpus=2).remote()
        outplay.get(actor.start.remote())
        del actor
    assert outplay.get(make.options(num_cpus=2).remote(1.0), timeout=60).max() == 1


def test_an_interrupted_put_leaves_nothing_behind(run_script: Callable[..., Any]) -> None:
    result = run_script(
        """
import os, signal, threading
import numpy as np
import outplay

outplay.init("process", num_cpus=1, object_store_bytes=300_000_000)
array = np.ones(25_000_000)
interrupted = 0
for delay in (0.005, 0.01, 0.03, 0.06, 0.1, 0.2):
    try:
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        while True:
            outplay.put(array)
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted, outplay.get(outplay.put(array)).sum())
"""
    )
    assert result.stdout.split() == ["6", "25000000.0"], result.stderr


def test_a_wait_inside_a_signal_handler_says_what_to_do(run_script: Callable[..., Any]) -> None:
    result = run_script(
        """
import os, signal, threading, time
import outplay

@outplay.remote
def slow():
    time.sleep(1.5)
    return "went on"

def handler(*_):
    try:
        outplay.get(slow.remote())
    except outplay.EngineError as error:
        print(error)

signal.signal(signal.SIGUSR1, handler)
ref = slow.remote()
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
print(outplay.get(ref))
"""
    )
    assert "let the handler set a flag" in result.stdout, result.stderr
    assert result.stdout.splitlines()[-1] == "went on", result.stderr
