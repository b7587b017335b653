"""Actors that run several calls at once, that have a name, that end by themselves or close before they end."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outplay

pytestmark = pytest.mark.usefixtures("engine")
LIMIT_S = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        gc.collect()  # what inline has in cycles ends with them
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def parallel(engine: str) -> None:
    if engine == "inline":
        pytest.skip("inline runs one call after another, in this process")


# Several calls at once


@outplay.remote(max_concurrency=3)
class ParameterServer:
    """Lets workers wait for weights that are newer than theirs."""

    def __init__(self) -> None:
        self.version = 0
        self.changed = threading.Condition()
        self.started: list[int] = []

    def publish(self) -> int:
        with self.changed:
            self.version += 1
            self.changed.notify_all()
            return self.version

    def newer_than(self, version: int) -> int:
        with self.changed:
            self.changed.wait_for(lambda: self.version > version)
            return self.version

    def note(self, number: int) -> None:
        self.started.append(number)

    def noted(self) -> list[int]:
        return self.started


@pytest.mark.usefixtures("parallel")
def test_a_server_that_blocks_can_be_called() -> None:
    server = ParameterServer.remote()
    waiting = [server.newer_than.remote(0), server.newer_than.remote(1)]
    assert outplay.wait(waiting, timeout=0.2)[0] == []
    assert outplay.get(server.publish.remote(), timeout=LIMIT_S) == 1
    assert outplay.get(waiting[0], timeout=LIMIT_S) >= 1
    assert outplay.get(server.publish.remote(), timeout=LIMIT_S) == 2
    assert outplay.get(waiting[1], timeout=LIMIT_S) == 2


@pytest.mark.usefixtures("parallel")
def test_no_more_calls_run_at_once_than_asked_for(tmp_path: Path) -> None:
    @outplay.remote(max_concurrency=2)
    class Counting:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.now = self.most = 0

        def run(self) -> None:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.02)
            with self.lock:
                self.now -= 1

        def wait(self, number: int) -> None:
            (tmp_path / f"waits {number}").touch()
            wait_until((tmp_path / "open").exists)

        def most_at_once(self) -> int:
            return self.most

    counting = Counting.remote()
    outplay.get([counting.run.remote() for _ in range(20)], timeout=LIMIT_S)
    assert outplay.get(counting.most_at_once.remote(), timeout=LIMIT_S) == 2
    busy = [counting.wait.remote(number) for number in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("waits *"))) == 2)
    third = counting.most_at_once.remote()
    assert outplay.wait([third], timeout=0.3)[0] == []
    (tmp_path / "open").touch()
    outplay.get([*busy, third], timeout=LIMIT_S)


def test_an_actor_with_two_threads_can_wait_for_itself() -> None:
    @outplay.remote(max_concurrency=2)
    class Loop:
        def set_self(self, handle: Any) -> None:
            self.handle = handle[0]

        def inner(self) -> str:
            return "inner"

        def outer(self) -> Any:
            return outplay.get(self.handle.inner.remote(), timeout=LIMIT_S)

        def forget(self) -> None:
            self.handle = None

    loop = Loop.remote()
    outplay.get(loop.set_self.remote([loop]), timeout=LIMIT_S)
    assert outplay.get(loop.outer.remote(), timeout=LIMIT_S) == "inner"
    outplay.get(loop.forget.remote(), timeout=LIMIT_S)


def test_threads_wait_for_tasks_without_holding_them_up(engine: str) -> None:
    if engine != "process":
        pytest.skip("inline, nothing waits; on Ray, a threaded actor keeps its CPUs while it waits")

    @outplay.remote
    def double(x: int) -> int:
        return 2 * x

    @outplay.remote(num_cpus=2, max_concurrency=4)
    class Master:
        def work(self, x: int) -> Any:
            return outplay.get(double.remote(x), timeout=LIMIT_S)

    master = Master.remote()
    assert outplay.get([master.work.remote(x) for x in range(12)], timeout=LIMIT_S) == [2 * x for x in range(12)]
    outplay.kill(master)


def test_methods_of_a_threaded_actor_raise_and_keep_reusables_apart() -> None:
    outplay.reusables.bag = outplay.Reusable(list)

    @outplay.remote(max_concurrency=3)
    class Bags:
        def fill(self, x: int) -> list[int]:
            outplay.reusables.bag.append(x)
            time.sleep(0.02)
            return list(outplay.reusables.bag)

        def fail(self) -> None:
            raise KeyError("no")

    bags = Bags.remote()
    assert outplay.get([bags.fill.remote(x) for x in range(9)], timeout=LIMIT_S) == [[x] for x in range(9)]
    with pytest.raises(outplay.TaskError, match="KeyError"):
        outplay.get(bags.fail.remote(), timeout=LIMIT_S)


def test_a_late_argument_holds_up_its_caller_alone(engine: str, tmp_path: Path) -> None:
    if engine == "inline":
        pytest.skip("inline, no argument is late")

    @outplay.remote
    class Server:
        def push(self, value: int) -> int:
            return value

        def pull(self) -> int:
            return 7

    @outplay.remote
    def gradient(server: Any) -> Any:
        return outplay.get(server.pull.remote(), timeout=LIMIT_S)

    server = Server.remote()
    assert outplay.get(server.push.remote(gradient.remote(server)), timeout=LIMIT_S) == 7


# Names


@outplay.remote
class Cell:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def set(self, value: int) -> None:
        self.value = value

    def read(self) -> int:
        return self.value

    def leave(self, status: Any = None) -> None:
        sys.exit(status)

    def crash(self) -> None:
        os._exit(1)

    def pid(self) -> int:
        return os.getpid()


def is_free(name: str) -> bool:
    try:
        outplay.get_actor(name)
    except ValueError:
        return True
    return False


def test_an_actor_is_found_by_its_name() -> None:
    @outplay.remote
    def write(value: int) -> None:
        outplay.get(outplay.get_actor("cell of all").set.remote(value))

    cell = Cell.options(name="cell of all").remote(1)
    found = outplay.get_actor("cell of all")
    assert found == cell
    assert outplay.get(found.read.remote(), timeout=LIMIT_S) == 1
    outplay.get(write.remote(5), timeout=LIMIT_S)
    assert outplay.get(cell.read.remote(), timeout=LIMIT_S) == 5


def test_a_name_is_used_once_and_free_after_death() -> None:
    cell = Cell.options(name="unique").remote(1)
    with pytest.raises(ValueError, match=r"an actor named 'unique' exists already: outplay\.get_actor"):
        Cell.options(name="unique").remote(2)
    assert outplay.get(outplay.get_actor("unique").read.remote(), timeout=LIMIT_S) == 1
    outplay.kill(cell)
    assert is_free("unique")
    second = Cell.options(name="unique").remote(3)
    assert outplay.get(outplay.get_actor("unique").read.remote(), timeout=LIMIT_S) == 3
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(second.leave.remote(), timeout=LIMIT_S)
    wait_until(lambda: is_free("unique"))
    third = Cell.options(name="unique").remote(4)
    assert outplay.get(third.read.remote(), timeout=LIMIT_S) == 4
    del third
    wait_until(lambda: is_free("unique"))


def test_the_name_of_one_whose_constructor_failed_is_free() -> None:
    @outplay.remote
    class Broken:
        def __init__(self) -> None:
            raise LookupError("cannot begin")

        def method(self) -> None: ...

    broken = Broken.options(name="broken").remote()
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(broken.method.remote(), timeout=LIMIT_S)
    wait_until(lambda: is_free("broken"))
    cell = Cell.options(name="broken").remote(3)
    assert outplay.get(cell.read.remote(), timeout=LIMIT_S) == 3


def test_an_unknown_name_gets_the_nearest() -> None:
    cell = Cell.options(name="replay").remote()
    with pytest.raises(ValueError, match=r"no living actor is named 'repla'. Did you mean 'replay'\?"):
        outplay.get_actor("repla")
    with pytest.raises(TypeError, match="takes an actor's name, not int"):
        outplay.get_actor(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="option name must be a non-empty string"):
        Cell.options(name="")
    with pytest.raises(ValueError, match="option max_concurrency must be an integer of at least 1"):
        Cell.options(max_concurrency=0)
    del cell


@pytest.mark.usefixtures("parallel")
def test_a_restarted_actor_keeps_its_name() -> None:
    cell = Cell.options(name="phoenix", max_restarts=1).remote(1)
    first = outplay.get(cell.pid.remote(), timeout=LIMIT_S)
    os.kill(first, signal.SIGKILL)

    def has_new_process() -> bool:
        try:
            return bool(outplay.get(outplay.get_actor("phoenix").pid.remote(), timeout=LIMIT_S) != first)
        except outplay.ActorDiedError:  # a call that was on its way when it died
            return False

    wait_until(has_new_process)


# Ending


def test_sys_exit_ends_the_actor() -> None:
    cell = Cell.options(max_restarts=1).remote(1)
    leaving, after = cell.leave.remote(), cell.read.remote()
    for ref in (leaving, after):
        with pytest.raises(outplay.ActorDiedError):
            outplay.get(ref, timeout=LIMIT_S)
    with pytest.raises(outplay.ActorDiedError):  # and it stays dead
        outplay.get(cell.read.remote(), timeout=LIMIT_S)


@pytest.mark.usefixtures("parallel")
def test_sys_exit_with_a_status_counts_as_a_crash() -> None:
    cell = Cell.options(max_restarts=1).remote(1)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(cell.leave.remote(3), timeout=LIMIT_S)

    def answers() -> bool:
        try:
            return bool(outplay.get(cell.read.remote(), timeout=LIMIT_S) == 1)
        except outplay.ActorDiedError:
            return False

    wait_until(answers)


@pytest.mark.usefixtures("parallel")
def test_sys_exit_in_one_of_several_threads_ends_the_actor() -> None:
    cell = Cell.options(max_concurrency=3).remote(1)
    assert outplay.get([cell.read.remote() for _ in range(3)], timeout=LIMIT_S) == [1] * 3
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(cell.leave.remote(), timeout=LIMIT_S)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(cell.read.remote(), timeout=LIMIT_S)


@outplay.remote
class Environment:
    """Writes down how it ends."""

    def __init__(self, log: Path) -> None:
        self.log = log
        log.touch()
        atexit.register(note, log, "atexit")

    def step(self) -> int:
        return 1

    def leave(self) -> None:
        sys.exit()

    def close(self) -> None:
        note(self.log, "close")

    def __del__(self) -> None:
        note(self.log, "del")


def note(log: Path, word: str) -> None:
    with log.open("a") as file:
        file.write(f"{word} ")


@pytest.fixture
def expected(engine: str) -> str:
    """What an actor does that ends; the handlers that it registers inline are those of this very process."""
    return "close del " if engine == "inline" else "close del atexit "


def test_an_actor_that_nobody_holds_closes_first(tmp_path: Path, expected: str) -> None:
    environment = Environment.remote(tmp_path / "log")
    assert outplay.get(environment.step.remote(), timeout=LIMIT_S) == 1
    del environment
    wait_until(lambda: (tmp_path / "log").read_text() == expected)


def test_an_actor_that_exits_closes_first(tmp_path: Path, expected: str) -> None:
    environment = Environment.remote(tmp_path / "log")
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(environment.leave.remote(), timeout=LIMIT_S)
    wait_until(lambda: (tmp_path / "log").read_text() == expected)


def test_a_killed_actor_does_not_close(engine: str, tmp_path: Path) -> None:
    environment = Environment.remote(tmp_path / "log")
    assert outplay.get(environment.step.remote(), timeout=LIMIT_S) == 1
    outplay.kill(environment)
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(environment.step.remote(), timeout=LIMIT_S)
    # Inline, its object is garbage of this process, which Python collects.
    assert (tmp_path / "log").read_text() == ("del " if engine == "inline" else "")


def test_the_actors_of_an_actor_close_with_it(engine: str, tmp_path: Path) -> None:
    if engine != "process":
        pytest.skip("inline, atexit handlers are the program's; Ray kills the actors of an actor that nobody holds")

    @outplay.remote
    class Trial:
        def __init__(self) -> None:
            self.environment = Environment.remote(tmp_path / "log")

        def step(self) -> Any:
            return outplay.get(self.environment.step.remote(), timeout=LIMIT_S)

    trial = Trial.remote()
    assert outplay.get(trial.step.remote(), timeout=LIMIT_S) == 1
    del trial
    wait_until(lambda: (tmp_path / "log").read_text() == "close del atexit ")


def test_a_close_that_fails_or_needs_arguments_does_no_harm(tmp_path: Path) -> None:
    @outplay.remote
    class Trading:
        def step(self) -> None: ...

        def close(self, position: int) -> None:
            note(tmp_path / "log", "closed a position")

        def __del__(self) -> None:
            note(tmp_path / "log", "del")

    @outplay.remote
    class Broken:
        def step(self) -> None: ...

        def close(self) -> None:
            note(tmp_path / "log", "tried")
            raise OSError("cannot close")

    trading, broken = Trading.remote(), Broken.remote()
    outplay.get([trading.step.remote(), broken.step.remote()], timeout=LIMIT_S)
    del trading, broken
    wait_until((tmp_path / "log").exists)
    wait_until(lambda: sorted((tmp_path / "log").read_text().split()) == ["del", "tried"])
