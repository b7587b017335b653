"""The parameters of remote functions: a call that does not fit them is refused where it is made."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_MOST_REMEMBERED = 256  # a function that takes **kwargs may be called with ever new names


class Parameters:
    """The names and kinds of a function's parameters, and which of them have defaults.

    They travel with every handle of an actor, so defaults and annotations are left out. Whether a call fits depends
    only on the number of its positional arguments and the names of the others: what fitted once is remembered.

    >>> Parameters.of(lambda a, b=2: a + b).misfit((1,), {"c": 3})
    "got an unexpected keyword argument 'c'"
    """

    __slots__ = ("_fitting", "_signature", "kinds")

    def __init__(self, kinds: tuple[tuple[str, int, bool], ...]) -> None:
        self.kinds = kinds
        self._signature: inspect.Signature | None = None  # made when it is first needed
        self._fitting: set[tuple[Any, ...]] = set()

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters | None:
        """Those of a function or class; None if they cannot be known, as for some functions written in C."""
        try:
            # A wrapper's own parameters: it may take others than the function that it wraps.
            signature = inspect.signature(function, follow_wrapped=False)
        except (ValueError, TypeError):
            return None
        given = signature.parameters.values()
        return cls(tuple((p.name, int(p.kind), p.default is not p.empty) for p in given))

    @classmethod
    def of_method(cls, owner: type, name: str) -> Parameters | None:
        """Those of a method as its caller sees them: without `self`."""
        raw = inspect.getattr_static(owner, name)
        if isinstance(raw, (staticmethod, classmethod)):
            return cls.of(getattr(owner, name))
        return cls.of(types.MethodType(raw, owner)) if inspect.isfunction(raw) else None

    def misfit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Why a call with these arguments could not be made; None if it could."""
        call = (len(args), *kwargs)
        if call in self._fitting:
            return None
        if self._signature is None:
            self._signature = _signature(self.kinds)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        if len(self._fitting) < _MOST_REMEMBERED:
            self._fitting.add(call)
        return None

    def __reduce__(self) -> Any:
        return with_kinds, (self.kinds,)


@lru_cache(maxsize=1024)
def with_kinds(kinds: tuple[tuple[str, int, bool], ...]) -> Parameters:
    """Parameters that have travelled: every handle of an actor that arrives shares them."""
    return Parameters(kinds)


def _signature(kinds: tuple[tuple[str, int, bool], ...]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect._ParameterKind(kind), default=None if optional else inspect.Parameter.empty)
            for name, kind, optional in kinds
        ]
    )
