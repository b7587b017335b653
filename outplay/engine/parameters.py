"""The parameters of remote functions. Wrong arguments raise TypeError at the call, not in the worker."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_MAX_CACHED = 256  # a function with **kwargs may be called with any number of different names


class Parameters:
    """The names and kinds of a function's parameters, and which of them have defaults.

    They are part of every actor handle, so defaults and annotations are left out. Whether a call is valid depends only
    on the number of positional arguments and the names of keyword arguments. Valid combinations are cached.

    >>> Parameters.of(lambda a, b=2: a + b).mismatch((1,), {"c": 3})
    "got an unexpected keyword argument 'c'"
    """

    __slots__ = ("_signature", "_valid_calls", "kinds")

    def __init__(self, kinds: tuple[tuple[str, int, bool], ...]) -> None:
        self.kinds = kinds
        self._signature: inspect.Signature | None = None  # created when it is first needed
        self._valid_calls: set[tuple[Any, ...]] = set()

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters | None:
        """The parameters of a function or class; None if they are unknown, as for some functions written in C."""
        try:
            # The parameters of a wrapper may differ from those of the function that it wraps.
            signature = inspect.signature(function, follow_wrapped=False)
        except (ValueError, TypeError):
            return None
        given = signature.parameters.values()
        return cls(tuple((p.name, int(p.kind), p.default is not p.empty) for p in given))

    @classmethod
    def of_method(cls, owner: type, name: str) -> Parameters | None:
        """The parameters of a method, without `self`."""
        raw = inspect.getattr_static(owner, name)
        if isinstance(raw, (staticmethod, classmethod)):
            return cls.of(getattr(owner, name))
        return cls.of(types.MethodType(raw, owner)) if inspect.isfunction(raw) else None

    def mismatch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Why a call with these arguments is invalid; None if it is valid."""
        call = (len(args), *kwargs)
        if call in self._valid_calls:
            return None
        if self._signature is None:
            self._signature = _signature(self.kinds)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        if len(self._valid_calls) < _MAX_CACHED:
            self._valid_calls.add(call)
        return None

    def __reduce__(self) -> Any:
        return with_kinds, (self.kinds,)


@lru_cache(maxsize=1024)
def with_kinds(kinds: tuple[tuple[str, int, bool], ...]) -> Parameters:
    """Unpickle parameters. All handles of an actor share one object."""
    return Parameters(kinds)


def _signature(kinds: tuple[tuple[str, int, bool], ...]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect._ParameterKind(kind), default=None if optional else inspect.Parameter.empty)
            for name, kind, optional in kinds
        ]
    )
