"""Checks of recorded experience: the types and shapes of its columns, and the values of rows when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.data import transitions
from outplay.data.columns import Array, Column
from outplay.errors import DataError
from outplay.masks import mask_sizes
from outplay.spaces import Leaf, action_parts, action_size, in_one_line, is_composite

_ANOTHER = "it was recorded in another environment"
_NUMBERS = ("biuf", "numbers")
_KINDS = {  # dtypes of columns with one value per row
    transitions.REWARD: _NUMBERS,
    transitions.TERMINATED: _NUMBERS,
    transitions.EPISODE: ("biufU", "numbers"),
    transitions.STEP: ("iu", "integers"),
    transitions.LOGP: ("f", "floats"),
}
_ROUNDING = 1e-6  # relative to the size of a bound
_MARGIN = 1e-4  # relative to the width of a Box


def check_columns(
    columns: Mapping[str, Column], leaves: Sequence[Leaf], action_space: Any, needed: Sequence[str], where: str
) -> None:
    """Raise DataError unless a data set has the columns that are needed, and they fit the environment."""
    transitions.check_transitions(columns, leaves, needed, where)
    prefixes = [name for name in (transitions.OBSERVATION, transitions.NEXT_OBSERVATION) if name in needed]
    for prefix in {transitions.OBSERVATION, *prefixes}:
        for name in transitions.leaf_columns(leaves, prefix):
            _check_kind(name, columns[name], _NUMBERS, where)
    for name in needed:
        if name in _KINDS:
            _check_kind(name, columns[name], _KINDS[name], where)
            _check_shape(name, columns[name], (), "one value per row is needed", where)
        elif name == transitions.ACTION:
            shape = (action_size(action_space),) if is_composite(action_space) else tuple(action_space.shape or ())
            problem = f"those of the environment have shape {list(shape)}; {_ANOTHER}"
            _check_kind(name, columns[name], _NUMBERS, where)
            _check_shape(name, columns[name], shape, problem, where)
        elif name in (transitions.MASK, transitions.NEXT_MASK):
            size = sum(mask_sizes(action_space))
            _check_kind(name, columns[name], ("b", "booleans"), where)
            _check_shape(name, columns[name], (size,), f"one value per choice is needed, [{size}]; {_ANOTHER}", where)


def _check_kind(name: str, column: Column, allowed: tuple[str, str], where: str) -> None:
    kinds, words = allowed
    if column.dtype.kind not in kinds:
        raise DataError(f"{where}: column {name!r} has the type {column}, but {words} are needed; convert the column")


def _check_shape(name: str, column: Column, shape: tuple[int, ...], problem: str, where: str) -> None:
    if column.shape != shape:
        raise DataError(f"{where}: column {name!r} has rows of shape {list(column.shape)}, but {problem}")


def check_finite(rows: Mapping[str, Array], names: Sequence[str], where: str) -> None:
    """Raise DataError if one of these columns has NaN or infinite values."""
    for name in names:
        if rows[name].dtype.kind == "f" and not np.isfinite(rows[name]).all():
            raise DataError(f"{where}: column {name!r} has NaN or infinite values; remove or repair these rows")


class ActionCheck:
    """Raises DataError for actions (rows, …) that are not in the action space.

    `bounded`: whether those of a Box are within its bounds; a policy that neither scales nor clips may exceed them.

    >>> check = ActionCheck(spaces.Discrete(2), True, "input data/")
    >>> check(np.array([0, 1, 1]))
    """

    def __init__(self, space: spaces.Space[Any], bounded: bool, where: str) -> None:
        self.space, self.where = space, where
        parts = action_parts(space)
        limits = [_limits(part, bounded) for part in parts]
        self._low, self._high = (np.concatenate([limit[i] for limit in limits]) for i in (0, 1))
        self._whole = np.concatenate([np.full(action_size(part), not isinstance(part, spaces.Box)) for part in parts])

    def __call__(self, actions: Array) -> None:
        if not len(actions):
            return
        flat = actions.reshape(len(actions), -1)
        fits = (flat.min(0) >= self._low) & (flat.max(0) <= self._high)  # false for NaN
        if not fits.all() or (flat.dtype.kind == "f" and self._has_fractions(flat).any()):
            wrong = ~((flat >= self._low) & (flat <= self._high)).all(1) | self._has_fractions(flat)
            raise DataError(
                f"{self.where}: column {transitions.ACTION!r} has the action {actions[wrong][0]}, which is not in the "
                f"action space {in_one_line(self.space)}; was it recorded in another environment?"
            )

    def _has_fractions(self, flat: Array) -> Array:
        """Whether a choice is not a whole number, (rows,)."""
        choices = flat[:, self._whole]
        found: Array = (choices != np.rint(choices)).any(1) if flat.dtype.kind == "f" else np.zeros(len(flat), bool)
        return found


def _limits(space: spaces.Space[Any], bounded: bool) -> tuple[Array, Array]:
    """The least and largest value of each element of an action, with a margin for rounding."""
    if isinstance(space, spaces.Discrete):
        return np.array([float(space.start)]), np.array([float(space.start + space.n - 1)])
    if isinstance(space, spaces.MultiDiscrete):
        start = space.start.ravel().astype(np.float64)
        return start, start + space.nvec.ravel() - 1
    size, largest = action_size(space), np.finfo(np.float64).max
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(size), np.ones(size)
    if not isinstance(space, spaces.Box) or not bounded:
        return np.full(size, -largest), np.full(size, largest)
    low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    is_finite = np.isfinite(low) & np.isfinite(high)
    width = np.where(is_finite, high / 2 - np.where(is_finite, low, 0.0) / 2, 0.0)
    margin = [_MARGIN * width + _ROUNDING * np.maximum(1.0, np.abs(bound)) for bound in (low, high)]
    return (
        np.where(np.isfinite(low), low - np.where(np.isfinite(low), margin[0], 0.0), -largest),
        np.where(np.isfinite(high), high + np.where(np.isfinite(high), margin[1], 0.0), largest),
    )
