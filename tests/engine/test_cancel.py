"""Cancelling calls, and repeating tasks that raised, on every engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outplay
from outplay.testing.waiting import until

pytestmark = pytest.mark.usefixtures("engine")
LIMIT_S = 60.0


@outplay.remote
def add(number: int, other: int = 1) -> int:
    return number + other


@outplay.remote
def spin(started: Path) -> str:
    """Runs until it is interrupted, and says so in a file; on Ray, an interrupt does not end a long sleep."""
    started.touch()
    try:
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        started.with_suffix(".interrupted").touch()
        raise


@outplay.remote
class Gate:
    """An actor that is busy until a file is there."""

    def __init__(self) -> None:
        self.passed: list[int] = []

    def wait(self, opened: Path) -> str:
        until(opened.exists)
        return "passed"

    def note(self, number: int) -> int:
        self.passed.append(number)
        return number

    def noted(self) -> list[int]:
        return self.passed


@pytest.fixture
def parallel(engine: str) -> None:
    if engine == "inline":
        pytest.skip("inline, a call has run when remote() returns")


@pytest.mark.usefixtures("parallel")
def test_a_running_task_is_interrupted(tmp_path: Path) -> None:
    ref = spin.remote(tmp_path / "started")
    until((tmp_path / "started").exists)
    outplay.cancel(ref)
    with pytest.raises(outplay.TaskCancelledError, match="cancelled"):
        outplay.get(ref, timeout=LIMIT_S)
    assert (tmp_path / "started.interrupted").exists()
    outplay.cancel(ref)  # it is over: nothing happens
    assert outplay.get(add.remote(1), timeout=LIMIT_S) == 2


@pytest.mark.usefixtures("parallel")
def test_abandoned_tasks_do_not_hold_up_the_next(tmp_path: Path) -> None:
    refs = [spin.remote(tmp_path / str(number)) for number in range(300)]
    until(lambda: len(list(tmp_path.iterdir())) >= 2)
    for ref in reversed(refs):  # on Ray, the cancellation of a task that is just starting can be lost
        outplay.cancel(ref)
    assert outplay.get(add.remote(1), timeout=LIMIT_S) == 2
    ready, others = outplay.wait(refs, num_returns=len(refs), timeout=LIMIT_S)
    assert not others
    for ref in ready:
        with pytest.raises(outplay.TaskCancelledError):
            outplay.get(ref)
    assert len([path for path in tmp_path.iterdir() if path.suffix == ""]) < 20


@pytest.mark.usefixtures("parallel")
def test_a_forced_cancel_kills_the_process(tmp_path: Path) -> None:
    @outplay.remote
    def stubborn() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                (tmp_path / "ignored").touch()

    ref = stubborn.remote()
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    outplay.cancel(ref)
    until((tmp_path / "ignored").exists)
    outplay.cancel(ref, force=True)
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(ref, timeout=LIMIT_S)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


@pytest.mark.usefixtures("parallel")
def test_a_task_may_answer_though_it_was_interrupted(tmp_path: Path) -> None:
    @outplay.remote
    def tidy() -> str:
        (tmp_path / "started").touch()
        try:
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            return "what there is so far"

    @outplay.remote
    def messy() -> None:
        (tmp_path / "messy").touch()
        try:
            while True:
                time.sleep(0.01)
        finally:
            raise ValueError("while tidying up")

    ref, other = tidy.remote(), messy.remote()
    until(lambda: (tmp_path / "started").exists() and (tmp_path / "messy").exists())
    outplay.cancel(ref)
    outplay.cancel(other)
    assert outplay.get(ref, timeout=LIMIT_S) == "what there is so far"
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(other, timeout=LIMIT_S)


@pytest.mark.usefixtures("parallel")
def test_what_a_task_started_is_cancelled_with_it(tmp_path: Path) -> None:
    @outplay.remote
    def outer() -> Any:
        return outplay.get([spin.remote(tmp_path / "inner"), spin.remote(tmp_path / "other")])

    ref = outer.remote()
    until((tmp_path / "inner").exists)
    outplay.cancel(ref)
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(ref, timeout=LIMIT_S)
    until((tmp_path / "inner.interrupted").exists)


@pytest.mark.usefixtures("parallel")
def test_a_task_that_waits_for_its_arguments_is_cancelled(tmp_path: Path) -> None:
    gate = Gate.remote()
    late = gate.wait.remote(tmp_path / "open")
    waiting, after = add.remote(late), add.remote(1)
    outplay.cancel(waiting)
    dependent = add.remote(waiting)
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(waiting, timeout=LIMIT_S)
    (tmp_path / "open").touch()
    assert outplay.get([late, after], timeout=LIMIT_S) == ["passed", 2]
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(dependent, timeout=LIMIT_S)


@pytest.mark.usefixtures("parallel")
def test_calls_of_an_actor_that_wait_are_cancelled(engine: str, tmp_path: Path) -> None:
    gate = Gate.remote()
    busy = gate.wait.remote(tmp_path / "open")
    refs = [gate.note.remote(number) for number in range(10)]
    for ref in refs[::2]:
        outplay.cancel(ref)
    with pytest.raises(ValueError, match=r"use outplay\.kill"):
        outplay.cancel(refs[1], force=True)
    (tmp_path / "open").touch()
    assert outplay.get(busy, timeout=LIMIT_S) == "passed"
    for ref in refs[::2]:
        with pytest.raises(outplay.TaskCancelledError):
            outplay.get(ref, timeout=LIMIT_S)
    assert outplay.get(refs[1::2], timeout=LIMIT_S) == [1, 3, 5, 7, 9]
    if engine == "process":  # Ray may be told too late; then the call runs, and its result is dropped
        assert outplay.get(gate.noted.remote(), timeout=LIMIT_S) == [1, 3, 5, 7, 9]


@pytest.mark.usefixtures("parallel")
def test_a_running_method_is_not_interrupted(tmp_path: Path) -> None:
    @outplay.remote
    class Slow:
        finished = False

        def run(self) -> None:
            (tmp_path / "started").touch()
            until((tmp_path / "open").exists)
            self.finished = True

        def is_finished(self) -> bool:
            return self.finished

    slow = Slow.remote()
    ref = slow.run.remote()
    until((tmp_path / "started").exists)
    outplay.cancel(ref)
    time.sleep(1)  # nothing shows that the message has arrived; a method that ends before it is not cancelled
    (tmp_path / "open").touch()
    with pytest.raises(outplay.TaskCancelledError):  # its result is not wanted any more
        outplay.get(ref, timeout=LIMIT_S)
    assert outplay.get(slow.is_finished.remote(), timeout=LIMIT_S)


@pytest.mark.usefixtures("parallel")
def test_who_was_given_a_ref_can_cancel_it(tmp_path: Path) -> None:
    @outplay.remote(num_cpus=0)
    def cancels(refs: list[Any]) -> None:
        outplay.cancel(refs[0])

    ref = spin.remote(tmp_path / "started")
    until((tmp_path / "started").exists)
    outplay.get(cancels.remote([ref]), timeout=LIMIT_S)
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(ref, timeout=LIMIT_S)


@pytest.mark.usefixtures("parallel")
def test_any_of_several_results_stands_for_the_task(tmp_path: Path) -> None:
    first, second = spin.options(num_returns=2).remote(tmp_path / "started")
    until((tmp_path / "started").exists)
    outplay.cancel(second)
    for ref in (first, second):
        with pytest.raises(outplay.TaskCancelledError):
            outplay.get(ref, timeout=LIMIT_S)


def test_what_is_done_stays_done() -> None:
    done, stored = add.remote(1), outplay.put(5)
    assert outplay.get(done, timeout=LIMIT_S) == 2
    outplay.cancel(done)
    outplay.cancel(stored)
    assert outplay.get([done, stored], timeout=LIMIT_S) == [2, 5]


def test_an_actor_can_cancel_a_call_to_itself(engine: str) -> None:
    @outplay.remote
    class Fickle:
        ran = False

        def set_self(self, handle: Any) -> None:
            self.handle = handle[0]

        def later(self) -> None:
            self.ran = True

        def change_mind(self) -> list[Any]:
            ref = self.handle.later.remote()
            outplay.cancel(ref)
            return [ref]

        def has_run(self) -> bool:
            return self.ran

    fickle = Fickle.remote()
    outplay.get(fickle.set_self.remote([fickle]), timeout=LIMIT_S)
    (ref,) = outplay.get(fickle.change_mind.remote(), timeout=LIMIT_S)
    with pytest.raises(outplay.TaskCancelledError, match="cancelled"):
        outplay.get(ref, timeout=LIMIT_S)
    if engine != "ray":  # as above
        assert not outplay.get(fickle.has_run.remote(), timeout=LIMIT_S)


def test_what_cannot_be_cancelled_is_said() -> None:
    with pytest.raises(TypeError, match=r"use outplay\.kill\(handle\)"):
        outplay.cancel(Gate.remote())
    with pytest.raises(TypeError, match="takes one Ref, not list"):
        outplay.cancel([outplay.put(1)])  # type: ignore[arg-type]


# Repeating


def attempts(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0


class FlakyError(Exception):
    pass


@outplay.remote
def flaky(path: Path, succeeds_at: int, error: type[Exception] = FlakyError) -> int:
    with path.open("a") as file:
        file.write("x")
    if attempts(path) < succeeds_at:
        raise error("not yet")
    return attempts(path)


def test_a_task_that_raises_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(outplay.TaskError):
        outplay.get(flaky.remote(tmp_path / "n", 2), timeout=LIMIT_S)
    assert attempts(tmp_path / "n") == 1


@pytest.mark.parametrize("retried", [True, [FlakyError], (OSError, FlakyError)])
def test_a_task_that_raises_is_repeated_if_told(tmp_path: Path, retried: Any) -> None:
    again = flaky.options(retry_exceptions=retried)
    assert outplay.get(again.remote(tmp_path / "n", 3), timeout=LIMIT_S) == 3


def test_repeating_ends_with_the_last_error(tmp_path: Path) -> None:
    again = flaky.options(retry_exceptions=True, max_retries=2)
    with pytest.raises(outplay.TaskError, match="not yet") as caught:
        outplay.get(again.remote(tmp_path / "n", 100), timeout=LIMIT_S)
    assert type(caught.value) is outplay.TaskError
    assert isinstance(caught.value.cause, FlakyError)
    assert attempts(tmp_path / "n") == 3
    with pytest.raises(outplay.TaskError):
        outplay.get(again.options(max_retries=0).remote(tmp_path / "m", 100), timeout=LIMIT_S)
    assert attempts(tmp_path / "m") == 1


def test_only_the_exceptions_named_are_repeated(tmp_path: Path) -> None:
    again = flaky.options(retry_exceptions=[OSError])
    with pytest.raises(outplay.TaskError):
        outplay.get(again.remote(tmp_path / "n", 2), timeout=LIMIT_S)
    assert attempts(tmp_path / "n") == 1
    assert outplay.get(again.remote(tmp_path / "m", 2, FileNotFoundError), timeout=LIMIT_S) == 2


def test_an_argument_that_failed_is_no_reason_to_repeat(tmp_path: Path) -> None:
    @outplay.remote(retry_exceptions=True)
    def follows(value: int) -> int:
        (tmp_path / "ran").touch()
        return value

    with pytest.raises(outplay.TaskError, match="flaky raised"):
        outplay.get(follows.remote(flaky.remote(tmp_path / "n", 2)), timeout=LIMIT_S)
    assert not (tmp_path / "ran").exists()


def test_arguments_are_fresh_in_every_attempt(tmp_path: Path) -> None:
    """What the first attempt keeps of a large argument stays valid, though another process may answer."""

    @outplay.remote(retry_exceptions=True, max_retries=-1)
    def spoil(array: Any, items: list[int]) -> Any:
        items.append(1)
        with (tmp_path / "n").open("a") as file:
            file.write("x")
        keep = globals().setdefault("_kept_by_spoil", [])
        keep.append(array)
        if attempts(tmp_path / "n") < 3:
            raise FlakyError
        return [float(kept.sum()) for kept in keep], len(items)

    sums, count = outplay.get(spoil.remote(np.ones(100_000), []), timeout=LIMIT_S)
    for _ in range(5):
        outplay.get(outplay.put(np.zeros(100_000)))
    assert count == 1
    assert set(sums) == {100_000.0}


@pytest.mark.usefixtures("parallel")
def test_a_cancelled_task_is_not_repeated(tmp_path: Path) -> None:
    ref = spin.options(retry_exceptions=True).remote(tmp_path / "started")
    until((tmp_path / "started").exists)
    outplay.cancel(ref)
    with pytest.raises(outplay.TaskCancelledError):
        outplay.get(ref, timeout=LIMIT_S)


@pytest.mark.usefixtures("parallel")
def test_deaths_and_exceptions_share_the_retries(tmp_path: Path) -> None:
    @outplay.remote(retry_exceptions=True, max_retries=3)
    def unlucky() -> None:
        with (tmp_path / "n").open("a") as file:
            file.write("x")
        if attempts(tmp_path / "n") % 2:
            raise FlakyError
        os._exit(1)

    with pytest.raises(outplay.WorkerDiedError):
        outplay.get(unlucky.remote(), timeout=LIMIT_S)
    assert attempts(tmp_path / "n") == 4


def test_wrong_options_are_said_at_once() -> None:
    with pytest.raises(ValueError, match="retry_exceptions must be True, False or a list of exception types"):
        flaky.options(retry_exceptions=["ValueError"])
    with pytest.raises(TypeError, match="a remote class has no option 'retry_exceptions'"):
        Gate.options(retry_exceptions=True)
