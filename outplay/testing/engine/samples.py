"""Remote functions and classes of the engine suites. Workers import them by name."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

import outplay


@outplay.remote
def add(a: int, b: int = 10) -> int:
    return a + b


@outplay.remote(num_returns=2)
def both(a: Any, b: Any) -> Any:
    return a, b


@outplay.remote
def identity(value: Any) -> Any:
    return value


class NeedsTwo(Exception):  # noqa: N818
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class HoldsALock(Exception):  # noqa: N818
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


@outplay.remote
def add_one(value: int) -> int:
    return value + 1


@outplay.remote
def add_through(handle: Any, amount: int) -> Any:
    return outplay.get(handle.add.remote(amount))


@outplay.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.calls: list[int] = []

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def note(self, number: int) -> None:
        self.calls.append(number)

    def noted(self) -> list[int]:
        return self.calls

    def fail(self) -> None:
        raise RuntimeError("no")

    def pid(self) -> int:
        return os.getpid()

    def pair(self) -> tuple[int, str]:
        return 1, "two"


@outplay.remote
class Shelf:
    def __init__(self) -> None:
        self.things: list[Any] = []

    def lay(self, things: list[Any]) -> None:
        self.things = things

    def take(self) -> list[Any]:
        things, self.things = self.things, []
        return things

    def make(self) -> list[Any]:
        return [outplay.put(5), outplay.put(np.full(50_000, 6.0)), add_one.remote(6)]

    def first(self, value: Any) -> Any:
        return np.ravel(value)[0]
