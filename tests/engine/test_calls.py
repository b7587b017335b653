"""What a call accepts, what a remote class shows, and which arrays and Refs come back, on every engine."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import outplay

pytestmark = pytest.mark.usefixtures("engine")


@outplay.remote
def scale(value: int, by: int = 2, *, plus: int = 0) -> int:
    return value * by + plus


class Ancestor:
    GREETING = "hello"

    @staticmethod
    def shout(word: str) -> str:
        return word.upper()


class Parent(Ancestor):
    LIMIT = 7

    @classmethod
    def limit(cls) -> int:
        return cls.LIMIT

    def inherited(self, value: int) -> int:
        return value + 1


@outplay.remote
class Child(Parent):
    SIZE = 3

    def __init__(self, start: int, step: int = 1) -> None:
        self.value = start
        self.step = step  # the name of a method, too

    def step(self, times: int, *more: int) -> int:  # type: ignore[no-redef]
        return self.value + times + sum(more)

    def look(self) -> Any:
        return Child.SIZE, Child.LIMIT, Child.GREETING, Child.shout("a"), Child.limit(), Child.inherited(self, 1)

    @staticmethod
    def double(value: int) -> int:
        return 2 * value


def wrong_function_calls() -> list[tuple[Callable[[], Any], str]]:
    return [
        (lambda: scale.remote(), r"scale\(\): missing a required argument: 'value'"),
        (lambda: scale.remote(1, 2, 3), r"scale\(\): too many positional arguments"),
        (lambda: scale.remote(1, times=3), r"scale\(\): got an unexpected keyword argument 'times'"),
        (lambda: scale.remote(1, value=3), r"scale\(\): multiple values for argument 'value'"),
        (lambda: scale.options(num_cpus=1).remote(), r"scale\(\): missing a required argument: 'value'"),
    ]


def test_a_task_with_the_wrong_arguments_is_refused_at_the_call() -> None:
    for _ in range(2):  # what fits is remembered, what does not is not
        for call, message in wrong_function_calls():
            with pytest.raises(TypeError, match=message):
                call()
        refs = [scale.remote(2), scale.remote(2, 3), scale.remote(value=2, by=4), scale.remote(2, plus=1)]
        assert outplay.get(refs) == [4, 6, 8, 5]
    assert outplay.get(scale.remote(outplay.put(2), by=outplay.put(5))) == 10


def test_an_actor_with_the_wrong_arguments_is_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match=r"Child\(\): missing a required argument: 'start'"):
        Child.remote()
    with pytest.raises(TypeError, match=r"Child\(\): got an unexpected keyword argument 'stop'"):
        Child.options(num_cpus=0).remote(1, stop=2)
    child = Child.remote(1, step=5)

    @outplay.remote
    def through(handles: list[Any]) -> int:
        with pytest.raises(TypeError, match=r"Child.step\(\): missing a required argument: 'times'"):
            handles[0].step.remote()
        result: int = outplay.get(handles[0].step.remote(1, 2, 3))
        return result

    assert outplay.get(through.remote([child])) == 7
    for wrong in (lambda: child.step.remote(), lambda: child.look.remote(1), lambda: child.double.remote()):
        with pytest.raises(TypeError, match=r"Child\.(step|look|double)\(\): "):
            wrong()
    assert outplay.get([child.step.remote(times=1), child.double.remote(4), child.inherited.remote(1)]) == [2, 8, 2]


def test_what_cannot_be_known_of_a_function_is_not_refused() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, scaled: int = 1, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * scaled

        return wrapper

    @outplay.remote
    @logged
    def one(value: int) -> int:
        return value

    class Plain:
        def __call__(self, a: int, b: int) -> int:
            return a - b

    assert outplay.get(one.remote(3, scaled=2)) == 6
    assert outplay.get(outplay.remote(max).remote(1, 2)) == 2
    assert outplay.get(outplay.remote(functools.partial(pow, 2)).remote(3)) == 8
    called = outplay.remote(Plain())
    assert outplay.get(called.remote(3, b=1)) == 2
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        called.remote(3)


def test_a_remote_class_shows_its_attributes_and_static_methods() -> None:
    assert (Child.SIZE, Child.LIMIT, Child.GREETING) == (3, 7, "hello")
    assert (Child.shout("b"), Child.limit(), Child.double(2)) == ("B", 7, 4)
    with pytest.raises(AttributeError, match="'Child' has no attribute 'WIDTH'"):
        _ = Child.WIDTH
    assert outplay.get(Child.remote(0).look.remote()) == (3, 7, "hello", "A", 7, 2)


def test_a_local_remote_class_knows_itself_in_its_methods() -> None:
    @outplay.remote
    class Local(Parent):
        X = 5

        @classmethod
        def both(cls) -> tuple[int, int]:
            return Local.X, cls.X

        def ask(self) -> Any:
            return Local.both(), Local.LIMIT, Local.shout("c")

    assert outplay.get(Local.remote().ask.remote()) == ((5, 5), 7, "C")
    assert outplay.get(Local.remote().both.remote()) == (5, 5)


def test_an_attribute_does_not_hide_the_method_of_the_same_name() -> None:
    child = Child.remote(10, step=99)
    assert outplay.get(child.step.remote(1)) == 11


def test_a_copy_of_a_handle_is_the_handle() -> None:
    child = Child.remote(1)
    assert copy.copy(child) is child
    assert copy.deepcopy({"child": [child]})["child"][0] is child
    method = copy.deepcopy(child.step)
    assert outplay.get(method.remote(1)) == 2


def test_wait_for_nothing_returns_at_once() -> None:
    assert outplay.wait([]) == ([], [])
    assert outplay.wait((ref for ref in ()), num_returns=3, timeout=1) == ([], [])
    assert outplay.get([]) == []


def test_get_and_wait_take_any_iterable() -> None:
    by_name = {name: scale.remote(len(name)) for name in ("a", "bb", "ccc")}
    assert outplay.get(by_name.values()) == [2, 4, 6]
    assert outplay.get(ref for ref in by_name.values()) == [2, 4, 6]
    assert sorted(outplay.get(set(by_name.values()))) == [2, 4, 6]
    ready, others = outplay.wait(by_name.values(), num_returns=3, timeout=60)
    assert (ready, others) == (list(by_name.values()), [])
    ready, others = outplay.wait(iter(set(by_name.values())), num_returns=1, timeout=60)
    assert len(ready) == 1
    assert {*ready, *others} == set(by_name.values())
    with pytest.raises(TypeError, match="item 0 of the list is no Ref, but of type str"):
        outplay.get(by_name)  # type: ignore[arg-type]


@outplay.remote
def misaligned(arrays: list[np.ndarray]) -> list[int]:
    return [i for i, array in enumerate(arrays) if array.ctypes.data % 64]


def test_arrays_are_aligned_to_64_bytes() -> None:
    # Ray aligns only what is larger than 2 KB, and promises no more than 8 bytes for the rest.
    arrays = [np.random.default_rng(0).normal(size=size) for size in (300, 301, 1000, (10, 20, 30), 20_001, 50_000)]
    back = [*outplay.get(outplay.put(arrays)), *[outplay.get(outplay.put(array)) for array in arrays]]
    assert [array.ctypes.data % 64 for array in back] == [0] * len(back)
    assert not any(array.flags.writeable for array in back)
    assert all(np.array_equal(one, other) for one, other in zip(back, [*arrays, *arrays], strict=True))
    assert outplay.get(misaligned.remote(arrays)) == []
    assert outplay.get(misaligned.remote(outplay.put(arrays))) == []
    large = arrays[4][1:]  # a view that is not aligned itself
    assert large.ctypes.data % 64 != 0
    assert outplay.get(outplay.put(large)).ctypes.data % 64 == 0


@pytest.mark.parametrize("size", [10, 65_535, 65_536, 300_000, 40_000_000])
def test_bytes_of_any_size_survive(size: int) -> None:
    text = np.random.default_rng(size).bytes(size)
    value = {"bytes": text, "list": [bytearray(text), text[:-1]], "array": np.frombuffer(text, np.uint8)}
    stored = outplay.get(outplay.put(value))
    assert stored["bytes"] == text
    assert stored["list"] == [text, text[:-1]]
    assert stored["array"].tobytes() == text
    assert outplay.get(outplay.put(text)) == text
