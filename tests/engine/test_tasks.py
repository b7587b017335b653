"""What tasks and objects mean, on every engine."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import outplay

pytestmark = pytest.mark.usefixtures("engine")


@outplay.remote
def add(a: int, b: int = 10) -> int:
    return a + b


@outplay.remote(num_returns=2)
def both(a: Any, b: Any) -> Any:
    return a, b


@outplay.remote
def identity(value: Any) -> Any:
    return value


def test_a_task_returns_a_ref_to_its_result() -> None:
    ref = add.remote(1, b=2)
    assert isinstance(ref, outplay.Ref)
    assert outplay.get(ref) == 3
    assert outplay.get([add.remote(i) for i in range(20)]) == [i + 10 for i in range(20)]


def test_num_returns_gives_that_many_refs() -> None:
    first, second = both.remote("a", 2)
    assert outplay.get(first) == "a"
    assert outplay.get(second) == 2
    three = identity.options(num_returns=3).remote([1, 2, 3])
    assert outplay.get(three) == [1, 2, 3]


def test_num_returns_that_does_not_fit_the_result_is_an_error() -> None:
    first, _ = identity.options(num_returns=2).remote([1, 2, 3])
    with pytest.raises(outplay.TaskError, match=r"must return 2 values \(num_returns\), but returned 3 values"):
        outplay.get(first)


def test_a_ref_as_an_argument_arrives_as_its_value() -> None:
    assert outplay.get(add.remote(outplay.put(5), b=add.remote(1, 1))) == 7


def test_a_ref_inside_a_container_stays_a_ref() -> None:
    @outplay.remote
    def look(items: list[Any]) -> Any:
        return isinstance(items[0], outplay.Ref), outplay.get(items[0])

    assert outplay.get(look.remote([outplay.put("inside")])) == (True, "inside")
    assert outplay.get(look.remote([add.remote(1, 1)])) == (True, 2)


def test_a_ref_can_be_returned_and_used() -> None:
    @outplay.remote
    def make() -> Any:
        return [outplay.put(np.arange(50_000)), add.remote(20, 1)]

    stored, computed = outplay.get(make.remote())
    assert outplay.get(stored).sum() == 50_000 * 49_999 // 2
    assert outplay.get(computed) == 21


def test_a_ref_survives_in_a_stored_object() -> None:
    inner = outplay.put(np.ones(40_000))
    outer = outplay.put({"inner": inner})
    del inner
    assert outplay.get(outplay.get(outer)["inner"]).sum() == 40_000


def test_wait_separates_what_is_ready() -> None:
    refs = [add.remote(i) for i in range(4)]
    ready, others = outplay.wait(refs, num_returns=4, timeout=60)
    assert ready == refs
    assert others == []
    ready, others = outplay.wait(refs, num_returns=1)
    assert len(ready) == 1
    assert set(ready + others) == set(refs)


@pytest.mark.parametrize("count", [0, 3])
def test_wait_for_an_impossible_number_is_refused(count: int) -> None:
    refs = [outplay.put(1), outplay.put(2)]
    with pytest.raises(ValueError, match="num_returns"):
        outplay.wait(refs, num_returns=count)


def test_wait_and_get_refuse_what_is_not_a_ref() -> None:
    with pytest.raises(TypeError, match="item 1 of the list is no Ref, but of type int"):
        outplay.get([outplay.put(1), 2])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="takes a list of Refs, not int"):
        outplay.get(3)  # type: ignore[arg-type]
    same = outplay.put(1)
    with pytest.raises(ValueError, match="same Ref twice"):
        outplay.wait([same, same])
    with pytest.raises(TypeError, match="in the store already"):
        outplay.put(same)


def test_arguments_and_results_are_passed_by_value() -> None:
    @outplay.remote
    def spoil(items: list[int]) -> list[int]:
        items.append(99)
        return items

    mine = [1, 2]
    stored = outplay.put(mine)
    mine.append(3)
    assert outplay.get(stored) == [1, 2]
    assert outplay.get(spoil.remote(mine)) == [1, 2, 3, 99]
    assert mine == [1, 2, 3]
    assert outplay.get(spoil.remote(stored)) == [1, 2, 99]
    assert outplay.get(stored) == [1, 2]
    once = outplay.get(stored)
    once.append(4)
    assert outplay.get(stored) == [1, 2]


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_arrays_arrive_read_only(size: int) -> None:
    @outplay.remote
    def is_writable(array: Any) -> bool:
        return bool(array.flags.writeable)

    array = np.arange(float(size))
    assert outplay.get(is_writable.remote(array)) is False
    assert outplay.get(is_writable.remote(outplay.put(array))) is False
    arrived = outplay.get(outplay.put(array))
    assert not arrived.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        arrived[0] = 1
    assert (arrived == array).all()


def test_a_view_outlives_its_ref() -> None:
    views = []
    for number in range(20):
        ref = outplay.put(np.full(100_000, number))
        views.append(outplay.get(ref))
        del ref
    for number, view in enumerate(views):
        assert (view == number).all()


def test_a_result_outlives_the_arguments_it_is_a_view_of() -> None:
    @outplay.remote
    def middle(array: Any) -> Any:
        return array[1:-1]

    results = [middle.remote(np.full(100_000, number)) for number in range(5)]
    for number, value in enumerate(outplay.get(results)):
        assert value.shape == (99_998,)
        assert (value == number).all()


def test_tasks_start_tasks_without_a_deadlock() -> None:
    @outplay.remote
    def sum_up(depth: int) -> int:
        if depth == 0:
            return 1
        return int(sum(outplay.get([sum_up.remote(depth - 1) for _ in range(2)])))

    # Fifteen tasks at once, each waiting for others, on two slots.
    assert outplay.get(sum_up.remote(3), timeout=100) == 8


def test_tasks_run_in_parallel(engine: str, tmp_path: Any) -> None:
    if engine == "inline":
        pytest.skip("inline runs one thing after another")

    @outplay.remote
    def meet(mine: str, other: str) -> bool:
        (tmp_path / mine).touch()
        until = time.monotonic() + 60
        while not (tmp_path / other).exists():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    assert outplay.get([meet.remote("a", "b"), meet.remote("b", "a")]) == [True, True]


def test_get_gives_up_after_its_timeout(engine: str) -> None:
    if engine == "inline":
        pytest.skip("inline, everything is ready at once")

    @outplay.remote
    def sleep() -> str:
        time.sleep(2)
        return "woken"

    ref = sleep.remote()
    with pytest.raises(outplay.GetTimeoutError, match=r"0\.05 s"):
        outplay.get(ref, timeout=0.05)
    ready, others = outplay.wait([ref], timeout=0.05)
    assert (ready, others) == ([], [ref])
    assert outplay.get(ref) == "woken"


@pytest.mark.parametrize("how", ["tasks", "methods", "from another task"])
def test_get_raises_as_soon_as_one_has_failed(engine: str, how: str, tmp_path: Any) -> None:
    def hang_or_fail(hangs: bool) -> None:
        while hangs and not (tmp_path / "go_on").exists():
            time.sleep(0.01)
        if not hangs:
            raise ValueError("at once")

    @outplay.remote
    class Actor:
        def hang_or_fail(self, hangs: bool) -> None:
            hang_or_fail(hangs)

    task = outplay.remote(hang_or_fail)

    @outplay.remote(num_cpus=0)
    def start_both() -> list[Any]:
        return [task.remote(True), task.remote(False)]

    if engine == "inline":  # where a call that hangs does so before there is anything to get
        (tmp_path / "go_on").touch()
    if how == "methods":
        refs = [Actor.remote().hang_or_fail.remote(hangs) for hangs in (True, False)]
    else:
        refs = [task.remote(True), task.remote(False)] if how == "tasks" else outplay.get(start_both.remote())
    with pytest.raises(outplay.TaskError, match="at once"):
        outplay.get(refs, timeout=20)
    (tmp_path / "go_on").touch()
    assert outplay.get(refs[0], timeout=60) is None


@pytest.mark.parametrize("timeout", [float("inf"), 1e7, 60])
def test_a_timeout_may_be_as_long_as_one_likes(timeout: float) -> None:
    assert outplay.get(add.remote(1), timeout=timeout) == 11
    assert len(outplay.wait([add.remote(1)], timeout=timeout)[0]) == 1


def test_remote_code_that_raises_gives_a_task_error() -> None:
    @outplay.remote
    def fail(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(outplay.TaskError) as caught:
        outplay.get(fail.remote("missing"))
    assert isinstance(caught.value.cause, KeyError)
    assert caught.value.__cause__ is caught.value.cause
    assert caught.value.cause.args == ("missing",)
    assert "raise KeyError(text)" in caught.value.remote_traceback
    assert "fail raised KeyError" in str(caught.value)
    assert "outplay/engine" not in caught.value.remote_traceback


def test_an_error_reaches_who_depends_on_it() -> None:
    @outplay.remote
    def fail() -> None:
        raise ZeroDivisionError("first")

    with pytest.raises(outplay.TaskError) as caught:
        outplay.get(add.remote(fail.remote()))
    assert isinstance(caught.value.cause, ZeroDivisionError)


def test_an_error_travels_through_a_task_that_waits_for_it() -> None:
    @outplay.remote
    def fail() -> None:
        raise ZeroDivisionError("inner")

    @outplay.remote
    def waits() -> None:
        outplay.get(fail.remote())

    with pytest.raises(outplay.TaskError) as caught:
        outplay.get(waits.remote())
    inner = caught.value.cause
    assert isinstance(inner, outplay.TaskError)
    assert isinstance(inner.cause, ZeroDivisionError)


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


@pytest.mark.parametrize("error", ["NeedsTwo(1, 2)", "HoldsALock()"])
def test_an_exception_that_cannot_travel_is_described(error: str) -> None:
    @outplay.remote
    def fail() -> None:
        raise eval(error)

    with pytest.raises(outplay.TaskError, match=error.split("(")[0]) as caught:
        outplay.get(fail.remote())
    assert error.split("(")[0] in str(caught.value.cause)


def test_init_and_shutdown_are_not_for_tasks() -> None:
    @outplay.remote
    def meddle() -> str:
        outplay.init("inline", num_cpus=1)  # as an imported program may
        try:
            outplay.shutdown()
        except outplay.EngineError as error:
            return str(error)
        return "ended"

    assert "is for the program that started the engine" in outplay.get(meddle.remote())
    assert outplay.get(add.remote(1)) == 11


def test_an_interrupt_that_a_task_raises_itself_is_its_error(engine: str) -> None:
    if engine == "inline":
        pytest.skip("inline, it is the user's Ctrl-C")

    @outplay.remote
    def interrupt() -> None:
        raise KeyboardInterrupt("mine")

    with pytest.raises(outplay.TaskError) as caught:
        outplay.get(interrupt.remote())
    assert isinstance(caught.value.cause, KeyboardInterrupt)


def test_leaving_the_interpreter_is_an_error_of_the_task_alone() -> None:
    @outplay.remote
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(outplay.TaskError) as caught:
        outplay.get(leave.remote())
    assert isinstance(caught.value.cause, SystemExit)
    assert outplay.get(add.remote(1)) == 11


def test_an_object_that_cannot_travel_names_itself() -> None:
    with pytest.raises(outplay.SerializationError, match=r"argument 0 of identity.*\['deep'\]\[1\].*lock"):
        identity.remote({"deep": [1, threading.Lock()]})
    with pytest.raises(outplay.SerializationError, match="argument 'value' of identity"):
        identity.remote(value=threading.Lock())
    with pytest.raises(outplay.SerializationError, match=r"put\(\)"):
        outplay.put(threading.Lock())


def test_whatever_pickling_raises_is_told() -> None:
    import multiprocessing

    with pytest.raises(outplay.SerializationError, match="argument 0 of identity"):
        identity.remote(multiprocessing.Lock())

    @outplay.remote(max_retries=0)
    def make() -> Any:
        return multiprocessing.Lock()

    with pytest.raises(outplay.SerializationError, match=r"make"):
        outplay.get(make.remote())


def test_a_result_that_cannot_travel_names_itself() -> None:
    @outplay.remote
    def make_lock() -> Any:
        return threading.Lock()

    with pytest.raises(outplay.SerializationError, match=r"make_lock.*lock"):
        outplay.get(make_lock.remote())


def test_closures_lambdas_and_local_classes_travel() -> None:
    factor = 3

    class Box:
        def __init__(self, value: int) -> None:
            self.value = value

    @outplay.remote
    def scaled(box: Any, function: Any) -> Any:
        return Box(function(box.value) * factor)

    assert outplay.get(scaled.remote(Box(2), lambda x: x + 1)).value == 9


def test_more_is_asked_for_than_there_is() -> None:
    with pytest.raises(outplay.ResourceError, match=r"add asks for num_cpus=64.*at most num_cpus=2"):
        add.options(num_cpus=64).remote(1)
    with pytest.raises(outplay.ResourceError, match="num_gpus=99"):
        add.options(num_gpus=99).remote(1)


def test_a_dead_worker_costs_a_retry(engine: str, tmp_path: Any) -> None:
    if engine == "inline":
        pytest.skip("inline, the worker is this process")

    @outplay.remote(max_retries=2)
    def die_once(marker: str) -> str:
        if not os.path.exists(marker):
            open(marker, "w").close()
            os._exit(1)
        return "second try"

    @outplay.remote(max_retries=0)
    def die() -> None:
        os._exit(7)

    assert outplay.get(die_once.remote(str(tmp_path / "marker"))) == "second try"
    with pytest.raises(outplay.WorkerDiedError):
        outplay.get(die.remote())


def test_what_raised_is_not_repeated(engine: str, tmp_path: Any) -> None:
    @outplay.remote(max_retries=5)
    def fail() -> None:
        with open(tmp_path / "tries", "a") as file:
            file.write("x")
        raise ValueError("once")

    with pytest.raises(outplay.TaskError):
        outplay.get(fail.remote())
    assert (tmp_path / "tries").read_text() == "x"


def test_a_remote_function_is_not_called_directly() -> None:
    with pytest.raises(TypeError, match=r"call add\.remote"):
        add(1, 2)


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"no option 'num_cpu'. Did you mean 'num_cpus'\?"):
        add.options(num_cpu=1)
    with pytest.raises(ValueError, match="num_returns must be a whole number"):
        add.options(num_returns=0)
    with pytest.raises(TypeError, match="no option 'max_restarts'"):
        outplay.remote(max_restarts=1)(lambda: None)
    with pytest.raises(TypeError, match="coroutine or generator"):

        @outplay.remote
        async def wrong() -> None: ...


def test_many_small_objects_at_once() -> None:
    refs = [outplay.put(i) for i in range(500)] + [add.remote(i, 0) for i in range(100)]
    assert outplay.get(refs) == [*range(500), *range(100)]


def test_refs_are_only_carried_by_the_engine(engine: str) -> None:
    import copy
    import pickle

    ref = outplay.put(1)
    assert copy.copy(ref) is ref
    assert copy.deepcopy([ref])[0] is ref
    assert {ref: 1}[ref] == 1
    if engine != "ray":
        with pytest.raises(outplay.SerializationError, match="only travels inside"):
            pickle.dumps(ref)
