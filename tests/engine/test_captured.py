"""Refs and handles that a remote function or class has captured, in a closure or a global, on every engine."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outplay
from outplay.testing.waiting import until

MEGABYTE = 1_000_000
stored: Any = None  # a global of the functions below; each test sets it
counter: Any = None


@outplay.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@outplay.remote
def later(value: Any, flag: Path | None = None) -> Any:
    while flag is not None and not flag.exists():
        time.sleep(0.01)
    return value


def reads(ref: Any) -> Any:
    """A remote function that alone holds `ref`."""

    def helper() -> Any:
        return outplay.get(ref)

    @outplay.remote
    def read(after: Any = None) -> Any:
        value = helper()
        return value.sum() if isinstance(value, np.ndarray) else value

    return read


def counts(handle: Any) -> Any:
    @outplay.remote
    def count() -> int:
        result: int = outplay.get(handle.add.remote())
        return result

    return count


@pytest.mark.usefixtures("engine")
def test_a_closure_takes_its_ref_along() -> None:
    small, large = reads(outplay.put("small")), reads(outplay.put(np.ones(MEGABYTE)))
    unfinished = reads(later.remote(7))
    gc.collect()
    for _ in range(2):
        assert outplay.get([small.remote(), large.remote(), unfinished.remote()]) == ["small", MEGABYTE, 7]
    assert outplay.get([large.options(num_cpus=0).remote() for _ in range(4)]) == [MEGABYTE] * 4


@pytest.mark.usefixtures("engine")
def test_functions_that_differ_only_in_their_refs_are_different() -> None:
    functions = [reads(outplay.put(i)) for i in range(3)]
    for _ in range(2):
        assert outplay.get([function.remote() for function in functions]) == [0, 1, 2]


@pytest.mark.usefixtures("engine")
def test_a_global_is_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "stored", outplay.put(np.arange(100_000)))
    monkeypatch.setitem(globals(), "counter", Counter.remote())

    @outplay.remote
    def look() -> Any:
        return int(outplay.get(stored)[-1]), outplay.get(counter.add.remote())

    @outplay.remote
    class Looks:
        start = stored

        def look(self) -> Any:
            return int(outplay.get(stored)[-1]), outplay.get(counter.add.remote()), outplay.get(self.start)[1]

    assert outplay.get(look.remote()) == (99_999, 1)
    assert outplay.get(Looks.remote().look.remote()) == (99_999, 2, 1)


@pytest.mark.usefixtures("engine")
def test_a_handle_is_kept_alive_by_the_function() -> None:
    count = counts(Counter.remote())
    gc.collect()
    assert [outplay.get(count.remote()) for _ in range(3)] == [1, 2, 3]


@pytest.mark.usefixtures("engine")
def test_a_function_with_a_ref_goes_through_other_tasks() -> None:
    @outplay.remote
    def outer(functions: list[Any]) -> Any:
        return outplay.get([function.remote() for function in functions])

    functions = [reads(outplay.put(np.ones(MEGABYTE))), counts(Counter.remote())]
    refs = outer.remote(functions)
    del functions
    gc.collect()
    assert outplay.get(refs) == [MEGABYTE, 1]


def test_what_is_on_its_way_keeps_what_it_captured(engine: str, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    if engine == "inline":
        flag.touch()  # there, a task is over when the call returns
    gate = later.remote(None, flag)
    result = reads(outplay.put(np.ones(MEGABYTE))).remote(gate)
    gc.collect()
    others = [outplay.put(np.zeros(MEGABYTE)) for _ in range(3)]  # would be where it was
    flag.touch()
    assert outplay.get(result) == MEGABYTE
    del others


def test_a_restarted_actor_still_has_what_its_class_captured(engine: str) -> None:
    if engine == "inline":
        pytest.skip("there is no process that could die")

    def start(ref: Any) -> Any:
        @outplay.remote(max_restarts=1)
        class Reads:
            def read(self) -> Any:
                return outplay.get(ref).sum()

            def die(self) -> None:
                os._exit(1)

        return Reads.remote()

    actor = start(outplay.put(np.ones(MEGABYTE)))
    assert outplay.get(actor.read.remote()) == MEGABYTE
    gc.collect()
    with pytest.raises(outplay.ActorDiedError):
        outplay.get(actor.die.remote())

    def answer() -> Any:
        try:
            return outplay.get(actor.read.remote())
        except outplay.ActorDiedError:  # Ray says so of calls that come while it restarts
            return None

    assert until(answer) == MEGABYTE


@pytest.mark.usefixtures("engine")
def test_a_named_actor_may_have_captured_a_ref() -> None:
    ref = outplay.put(np.ones(MEGABYTE))

    @outplay.remote
    class Reads:
        def read(self) -> Any:
            return outplay.get(ref).sum()

    @outplay.remote
    def ask() -> Any:
        return outplay.get(outplay.get_actor("reads").read.remote())

    actor = Reads.options(name="reads").remote()
    assert outplay.get(outplay.get_actor("reads").read.remote()) == MEGABYTE
    assert outplay.get(ask.remote()) == MEGABYTE
    outplay.kill(actor)


@pytest.mark.usefixtures("engine")
def test_a_reusable_variable_may_be_made_from_a_ref() -> None:
    ref = outplay.put(np.ones(MEGABYTE))
    outplay.reusables.total = outplay.Reusable(lambda: [outplay.get(ref).sum()])
    try:

        @outplay.remote
        def read() -> Any:
            return outplay.reusables.total[0]

        assert outplay.get(read.remote()) == MEGABYTE
    finally:
        outplay.reusables.total = outplay.Reusable(list)  # of no engine
