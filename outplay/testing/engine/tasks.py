"""Conformance tests of tasks."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import outplay
from outplay.testing.engine import samples
from outplay.testing.engine.samples import add


@pytest.mark.usefixtures("engine")
class TaskConformance:
    """Running, waiting, failures, retries."""

    def test_tasks_start_tasks_without_a_deadlock(self) -> None:
        @outplay.remote
        def sum_up(depth: int) -> int:
            if depth == 0:
                return 1
            return int(sum(outplay.get([sum_up.remote(depth - 1) for _ in range(2)])))

        # Fifteen tasks at once, each waiting for others, on two slots.
        assert outplay.get(sum_up.remote(3), timeout=100) == 8

    def test_tasks_run_in_parallel(self, engine: str, tmp_path: Any) -> None:
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

    def test_get_gives_up_after_its_timeout(self, engine: str) -> None:
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
    def test_get_raises_as_soon_as_one_has_failed(self, engine: str, how: str, tmp_path: Any) -> None:
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

        if engine == "inline":  # the call itself would hang, before get()
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
    def test_a_timeout_may_be_as_long_as_one_likes(self, timeout: float) -> None:
        assert outplay.get(add.remote(1), timeout=timeout) == 11
        assert len(outplay.wait([add.remote(1)], timeout=timeout)[0]) == 1

    def test_remote_code_that_raises_gives_a_task_error(self) -> None:
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

    def test_an_error_reaches_who_depends_on_it(self) -> None:
        @outplay.remote
        def fail() -> None:
            raise ZeroDivisionError("first")

        with pytest.raises(outplay.TaskError) as caught:
            outplay.get(add.remote(fail.remote()))
        assert isinstance(caught.value.cause, ZeroDivisionError)

    def test_an_error_travels_through_a_task_that_waits_for_it(self) -> None:
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

    @pytest.mark.parametrize(("name", "arguments"), [("NeedsTwo", (1, 2)), ("HoldsALock", ())])
    def test_an_exception_that_cannot_travel_is_described(self, name: str, arguments: tuple[int, ...]) -> None:
        @outplay.remote
        def fail() -> None:
            raise getattr(samples, name)(*arguments)

        with pytest.raises(outplay.TaskError, match=name) as caught:
            outplay.get(fail.remote())
        assert name in str(caught.value.cause)

    def test_init_and_shutdown_are_not_for_tasks(self) -> None:
        @outplay.remote
        def meddle() -> str:
            outplay.init("inline", num_cpus=1)  # as an imported program may
            try:
                outplay.shutdown()
            except outplay.EngineError as error:
                return str(error)
            return "ended"

        assert "by the program that started the engine" in outplay.get(meddle.remote())
        assert outplay.get(add.remote(1)) == 11

    def test_an_interrupt_that_a_task_raises_itself_is_its_error(self, engine: str) -> None:
        if engine == "inline":
            pytest.skip("inline, it is the user's Ctrl-C")

        @outplay.remote
        def interrupt() -> None:
            raise KeyboardInterrupt("mine")

        with pytest.raises(outplay.TaskError) as caught:
            outplay.get(interrupt.remote())
        assert isinstance(caught.value.cause, KeyboardInterrupt)

    def test_leaving_the_interpreter_is_an_error_of_the_task_alone(self) -> None:
        @outplay.remote
        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(outplay.TaskError) as caught:
            outplay.get(leave.remote())
        assert isinstance(caught.value.cause, SystemExit)
        assert outplay.get(add.remote(1)) == 11

    def test_more_is_asked_for_than_there_is(self) -> None:
        with pytest.raises(outplay.ResourceError, match=r"add asks for num_cpus=64.*at most num_cpus=2"):
            add.options(num_cpus=64).remote(1)
        with pytest.raises(outplay.ResourceError, match="num_gpus=99"):
            add.options(num_gpus=99).remote(1)

    def test_a_dead_worker_costs_a_retry(self, engine: str, tmp_path: Any) -> None:
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

    def test_what_raised_is_not_repeated(self, engine: str, tmp_path: Any) -> None:
        @outplay.remote(max_retries=5)
        def fail() -> None:
            with open(tmp_path / "tries", "a") as file:
                file.write("x")
            raise ValueError("once")

        with pytest.raises(outplay.TaskError):
            outplay.get(fail.remote())
        assert (tmp_path / "tries").read_text() == "x"

    def test_a_remote_function_is_not_called_directly(self) -> None:
        with pytest.raises(TypeError, match=r"call add\.remote"):
            add(1, 2)

    def test_unknown_options_name_the_nearest(self) -> None:
        with pytest.raises(TypeError, match=r"no option 'num_cpu'. Did you mean 'num_cpus'\?"):
            add.options(num_cpu=1)
        with pytest.raises(ValueError, match="num_returns must be an integer"):
            add.options(num_returns=0)
        with pytest.raises(TypeError, match="no option 'max_restarts'"):
            outplay.remote(max_restarts=1)(lambda: None)
        with pytest.raises(TypeError, match="coroutine or generator"):

            @outplay.remote
            async def wrong() -> None: ...
