"""Definitions that all processes must know: reusable variables and serialisers.

Each call names the set of definitions that its caller knows. A process that does not know this set fetches it before
it runs the call. So definitions also reach running workers, and in the right order.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from outplay.engine import serialize
from outplay.errors import nearest


class Reusable:
    """A variable that each worker keeps between tasks, and that is reset after each task.

    initializer    creates the value when a worker first uses it
    reinitializer  resets the value after each task or actor method that used it, and returns the new value; None means
                   that it was reset in place. Without a reinitializer, the value is created again.

    >>> outplay.reusables.env = outplay.Reusable(lambda: gymnasium.make("ALE/Pong-v5"))
    >>> @outplay.remote
    ... def play():
    ...     env = outplay.reusables.env
    """

    def __init__(self, initializer: Callable[[], Any], reinitializer: Callable[[Any], Any] | None = None) -> None:
        if not callable(initializer) or not (reinitializer is None or callable(reinitializer)):
            raise TypeError("Reusable(initializer, reinitializer=None) takes functions")
        self.initializer = initializer
        self.reinitializer = reinitializer


class Definitions:
    """All definitions that this process knows. Of two with the same name, the later one is used."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str], tuple[int, Any]] = {}
        self._lock = threading.Lock()
        self._exported: serialize.Exported | None = None
        self._merged: set[str] = set()

    def define(self, kind: str, name: str, value: Any) -> None:
        with self._lock:
            self._items[kind, name] = (time.time_ns(), value)
            self._exported = None
        self._apply(kind, value)

    def lookup(self, kind: str, name: str) -> tuple[int, Any] | None:
        return self._items.get((kind, name))

    def names(self, kind: str) -> list[str]:
        return [name for of_kind, name in self._items if of_kind == kind]

    def export(self) -> serialize.Exported | None:
        """The set of all definitions, or None if there are none."""
        if not self._items:
            return None
        with self._lock:
            if self._exported is None:
                functions = [f for _, value in self._items.values() for f in _functions(value)]
                self._exported = serialize.export(self._items, *functions)
                self._merged.add(self._exported.name)
            return self._exported

    def knows(self, name: str) -> bool:
        return name in self._merged

    def merge(self, exported: serialize.Exported) -> None:
        items: dict[tuple[str, str], tuple[int, Any]] = exported.load()
        for (kind, key), (stamp, value) in items.items():
            with self._lock:
                mine = self._items.get((kind, key))
                if mine is not None and mine[0] >= stamp:
                    continue
                self._items[kind, key] = (stamp, value)
                self._exported = None
            self._apply(kind, value)
        self._merged.add(exported.name)

    @staticmethod
    def _apply(kind: str, value: Any) -> None:
        if kind == "serializer":
            serialize.register(*value)


def _functions(value: Any) -> list[Any]:
    parts = (value.initializer, value.reinitializer) if isinstance(value, Reusable) else value
    return [part for part in parts if part is not None]


definitions = Definitions()


class ReusableValues:
    """The values of the reusable variables of one worker, and which of them the running call has used."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, Any]] = {}
        self._used: set[str] = set()

    def get(self, name: str) -> Any:
        found = definitions.lookup("reusable", name)
        if found is None:
            known = definitions.names("reusable")
            hint = (
                nearest(name, known) if known else f"; define it first: outplay.reusables.{name} = outplay.Reusable(…)"
            )
            raise AttributeError(f"no reusable variable {name!r}{hint}")
        stamp, reusable = found
        if name not in self._values or self._values[name][0] != stamp:
            self._values[name] = (stamp, reusable.initializer())
        self._used.add(name)
        return self._values[name][1]

    def end_of_call(self) -> None:
        """Reset the variables that the call has used, so that the next call does not see its changes."""
        used, self._used = self._used, set()
        for name in used:
            stamp, value = self._values.pop(name)
            found = definitions.lookup("reusable", name)
            assert found is not None
            try:
                if found[0] != stamp or found[1].reinitializer is None:
                    value = found[1].initializer()
                else:
                    new = found[1].reinitializer(value)
                    value = value if new is None else new
            except Exception as error:  # noqa: BLE001 - the user's function
                # The call has finished. The next call that uses the variable creates it again, and gets the error.
                text = f"resetting the reusable variable {name!r} raised {error!r}; the next use creates it again"
                warnings.warn(text, stacklevel=2)
                continue
            self._values[name] = (found[0], value)


class _Frames(threading.local):
    def __init__(self) -> None:
        self.current: ReusableValues | None = None


_frames = _Frames()
_outside_calls = ReusableValues()


class reusable_values:  # noqa: N801 - used like a function, in a with statement
    """`outplay.reusables` reads `values` while one call runs."""

    __slots__ = ("_outer", "_values")

    def __init__(self, values: ReusableValues) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._outer, _frames.current = _frames.current, self._values

    def __exit__(self, *_: object) -> None:
        _frames.current = self._outer


class Reusables:
    """The namespace `outplay.reusables`: assign a `Reusable`, and read its value in tasks."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, Reusable):
            raise TypeError(f"outplay.reusables.{name} takes an outplay.Reusable(…), not {value!r}")
        definitions.define("reusable", name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (_frames.current or _outside_calls).get(name)

    def __dir__(self) -> list[str]:
        return definitions.names("reusable")


reusables = Reusables()
"""The reusable variables: assign a `Reusable`, and read its value in tasks and actors."""


def register_serializer(cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    """Register a type that cannot be pickled: `serializer(object)` is sent, and `deserializer` recreates the object.

    >>> outplay.register_serializer(Board, serializer=Board.to_text, deserializer=Board.from_text)
    """
    if not isinstance(cls, type) or not callable(serializer) or not callable(deserializer):
        raise TypeError("register_serializer takes a class and two functions")
    definitions.define("serializer", f"{cls.__module__}.{cls.__qualname__}", (cls, serializer, deserializer))
