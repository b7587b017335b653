"""Observations of variable length, as arrays of a fixed shape: Gymnasium's Sequence spaces, and text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.errors import EnvError, described, type_name

_CHARACTERS = 256  # characters beyond Latin-1 share the last number


@dataclass(frozen=True)
class Reading:
    """How parts of an observation are read that have no fixed shape: settings of the model."""

    max_length: int = 64  # of a sequence or a text
    with_text: bool = False  # False: text is ignored


DEFAULT = Reading()


class Padded(spaces.Space[Any]):
    """A sequence of at most `max_length` elements, padded.

    - Box elements of k numbers: rows of k + 1 numbers, the first of which is 1, and 0 in the padding. (L, k + 1)
    - Discrete elements and characters: their index plus 1, and 0 in the padding. (L,)
    """

    def __init__(self, element: spaces.Box | spaces.Discrete, max_length: int, is_text: bool = False) -> None:
        self.element = element
        self.max_length = max_length
        self.is_text = is_text
        if isinstance(element, spaces.Discrete):
            super().__init__((max_length,), np.int32)
        else:
            super().__init__((max_length, 1 + int(np.prod(element.shape))), np.float32)

    def padded(self, value: Any, name: str, source: str) -> np.ndarray:
        """Pad one observation. Raises EnvError if it is too long, or does not fit the space of its elements."""
        if self.is_text:
            if not isinstance(value, str):
                raise EnvError(described(source, name, f"that is {type_name(value)}, not a string"))
            value = [min(ord(character), _CHARACTERS - 1) for character in value]
        try:
            number = len(value)
        except TypeError as error:
            raise EnvError(described(source, name, f"that is {type_name(value)}, not a sequence")) from error
        if number > self.max_length:
            what = "characters" if self.is_text else "elements"
            clause = f"of {number} {what}, more than the maximum {self.max_length}"
            remedy = f"set model: {{max_sequence_length: {number}}} or more"
            raise EnvError(f"{described(source, name, clause)}; {remedy}")
        array: np.ndarray = np.zeros(self.shape or (), self.dtype)
        if number:
            elements = self._elements(value)
            if elements is None:
                raise EnvError(described(source, name, f"with an element that is not in its space {self.element}"))
            if isinstance(self.element, spaces.Discrete):
                array[:number] = elements + 1
            else:
                array[:number, 0] = 1.0
                array[:number, 1:] = elements.reshape(number, -1)
        return array

    def _elements(self, value: Any) -> np.ndarray | None:
        """The elements in one array, indices of Discrete ones from 0. None if one does not fit its space."""
        try:
            elements: np.ndarray = np.stack([np.asarray(element, self.element.dtype) for element in value])
        except (TypeError, ValueError):  # ragged, or strings
            return None
        if elements.shape[1:] != (self.element.shape or ()):
            return None
        if isinstance(self.element, spaces.Discrete):
            elements = elements - int(self.element.start)
            if ((elements < 0) | (elements >= self.element.n)).any():
                return None
        return elements

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """An observation as the environment returns it."""
        number = int(self.np_random.integers(0, self.max_length + 1))
        self.element.seed(int(self.np_random.integers(2**31)))
        elements = [self.element.sample() for _ in range(number)]
        return "".join(chr(int(e)) for e in elements) if self.is_text else tuple(elements)

    def contains(self, x: Any) -> bool:
        try:
            self.padded(x, "", "")
        except EnvError:
            return False
        return True

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Padded) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        what = "characters" if self.is_text else self.element
        return f"Sequence(up to {self.max_length}, {what})"


def is_text_space(space: spaces.Space[Any]) -> bool:
    """Packages define their own text spaces. All have a string dtype."""
    return space.dtype is not None and np.dtype(space.dtype).kind == "U"


def text(space: spaces.Space[Any], reading: Reading) -> Padded:
    """A text as a sequence of characters."""
    longest = min(reading.max_length, getattr(space, "max_length", reading.max_length))
    return Padded(spaces.Discrete(_CHARACTERS), longest, is_text=True)


def sequence(space: spaces.Sequence, name: str, reading: Reading) -> Padded:
    element = space.feature_space
    if not isinstance(element, (spaces.Box, spaces.Discrete)):
        raise EnvError(f"the {name} is a Sequence of {type(element).__name__}; only those of Box and Discrete are read")
    return Padded(element, reading.max_length)
