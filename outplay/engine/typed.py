"""Type checks for `@outplay.remote(typed=True)`.

The signature is read once, when the function is declared. Arguments are checked at the call. Values of Refs, and
results, are checked in the process that runs the function.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outplay.errors import TypeMismatchError

UNKNOWN: Any = typing.Any  # the type of a Ref's object is unknown


@dataclass(frozen=True)
class TypedSignature:
    """The names, kinds and annotations of a function's parameters, and the annotation of its result."""

    name: str
    signature: inspect.Signature
    result: Any

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, *, method: bool = False) -> TypedSignature:
        hints = typing.get_type_hints(function)
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1 if method else 0 :]
        typed = [
            parameter.replace(annotation=hints.get(parameter.name, UNKNOWN), default=parameter.default)
            for parameter in parameters
        ]
        result = hints.get("return", UNKNOWN)
        return cls(name, signature.replace(parameters=typed, return_annotation=result), result)

    def check_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], reference_type: Callable[[Any], Any] | None = None
    ) -> None:
        """Check all arguments. `reference_type` returns the type of a Ref's object, and None for other values."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeMismatchError(f"{self.name}(): {error}") from None
        for name, given in bound.arguments.items():
            parameter = self.signature.parameters[name]
            values: dict[str, Any] = {name: given}
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                values = {f"*{name}[{i}]": value for i, value in enumerate(given)}
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                values = {f"**{name}[{key!r}]": value for key, value in given.items()}
            for place, value in values.items():
                self._check_argument(place, value, parameter.annotation, reference_type)

    def _check_argument(
        self, place: str, value: Any, expected: Any, reference_type: Callable[[Any], Any] | None
    ) -> None:
        referenced = reference_type(value) if reference_type else None
        if referenced is not None:
            if not could_be(referenced, expected):
                self._raise(f"parameter {place!r}", expected, f"a Ref to {describe(referenced)}")
        else:
            problem = mismatch(value, expected)
            if problem:
                self._raise(f"parameter {place!r}", expected, problem)

    def check_results(self, results: list[Any]) -> None:
        for (place, expected), value in zip(self._result_places(len(results)), results, strict=True):
            problem = mismatch(value, expected)
            if problem:
                self._raise(place, expected, problem)

    def result_types(self, num_returns: int) -> list[Any]:
        """The annotation of each result."""
        return [expected for _, expected in self._result_places(num_returns)]

    def _result_places(self, num_returns: int) -> list[tuple[str, Any]]:
        if num_returns == 1:
            return [("the result", self.result)]
        parts: tuple[Any, ...] = ()
        if typing.get_origin(self.result) is tuple:
            parts = typing.get_args(self.result)
            if len(parts) == 2 and parts[1] is Ellipsis:
                parts = (parts[0],) * num_returns
            if len(parts) != num_returns:
                self._raise("the result", self.result, f"a tuple of {num_returns} (num_returns)")
        return [(f"result {i}", parts[i] if parts else UNKNOWN) for i in range(num_returns)]

    def _raise(self, place: str, expected: Any, given: str) -> None:
        raise TypeMismatchError(f"{self.name}(): {place} must be {describe(expected)}, but was given {given}")


def mismatch(value: Any, expected: Any) -> str | None:
    """The type of `value` if it does not match `expected`, otherwise None."""
    if expected is UNKNOWN:
        return None
    from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

    try:
        check_type(value, expected, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
    except TypeCheckError as error:
        given = describe(type(value))
        # For a plain class, the two type names are enough. For a container, the error says which item is wrong.
        return given if isinstance(expected, type) and not typing.get_args(expected) else f"{given} ({error})"
    return None


def could_be(given: Any, expected: Any) -> bool:
    """Whether a value of declared type `given` can be an instance of `expected`. False only if that is certain."""
    if given is UNKNOWN or expected is UNKNOWN or given == expected:
        return True
    if _is_union(given):
        return any(could_be(member, expected) for member in typing.get_args(given))
    if _is_union(expected):
        return any(could_be(given, member) for member in typing.get_args(expected))
    given_class = _class_of(given)
    expected_class = _class_of(expected)
    if given_class is None or expected_class is None:
        return True
    if expected_class is float and given_class in (int, bool):
        return True  # as in Python's typing rules
    if expected_class is complex and given_class in (int, float, bool):
        return True
    # The object of a Ref declared as a base class may be an instance of the expected subclass.
    return issubclass(given_class, expected_class) or issubclass(expected_class, given_class)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _class_of(annotation: Any) -> type | None:
    if annotation is None:
        return type(None)
    origin = typing.get_origin(annotation) or annotation
    return origin if isinstance(origin, type) else None


def describe(annotation: Any) -> str:
    """The name of a type, as in source code.

    >>> describe(dict[str, int]), describe(int), describe(None)
    ('dict[str, int]', 'int', 'None')
    """
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        module = annotation.__module__
        return annotation.__qualname__ if module == "builtins" else f"{module}.{annotation.__qualname__}"
    return str(annotation).replace("typing.", "")
