"""From requests to arrays: observations and action masks as JSON or bytes, all values checked; and actions as JSON.

An observation in JSON has the structure of its space: nested lists for arrays, objects for Dict, lists for Tuple. An
array may also be {"data": base64 of its bytes, "dtype": "uint8", "shape": [84, 84, 4]}.

An observation in bytes is the arrays of its leaves one after the other: little-endian, in C order, with the dtypes of
their spaces. A batch is one observation after the other.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from outplay import spaces
from outplay.errors import ConfigError, EnvError, described, shortened, type_name
from outplay.masks import checked_mask, mask_in, mask_key, mask_sizes
from outplay.sequences import Padded
from outplay.spaces import Leaf, Leaves

if TYPE_CHECKING:
    from outplay.serve.source import Policy

Array = np.ndarray

_ENCODED = {"data", "dtype", "shape"}
_DTYPES = {
    np.dtype(kind).name: np.dtype(kind).newbyteorder("<")
    for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}
_KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers with a fraction", "U": "strings"}


class Decoder:
    """Reads observations for one policy."""

    def __init__(self, policy: Policy, check_bounds: bool = True) -> None:
        self._policy = policy
        self._check_bounds = check_bounds
        self._has_mask = mask_key(policy.observation_space) is not None
        self.leaves = policy.leaves
        fields = [(f"leaf{i}", leaf.dtype.newbyteorder("<"), leaf.shape) for i, leaf in enumerate(self.leaves)]
        self._record = np.dtype(fields)

    def rows(self, observations: Sequence[Any], is_batch: bool) -> Leaves:
        """The leaves of observations in JSON, with one row each. Raises EnvError with what is wrong."""
        return tuple(self._leaf(leaf, observations, is_batch) for leaf in self.leaves)

    def rows_from_bytes(self, data: bytes) -> Leaves:
        """The leaves of observations in bytes, with one row each."""
        if (why := self.not_binary()) is not None:
            raise EnvError(f"{why}; send JSON")
        size = self._record.itemsize
        if not data or len(data) % size:
            raise EnvError(f"{len(data):,} bytes are not a number of observations of {size:,} bytes each")
        records = np.frombuffer(data, self._record)
        rows = []
        for i, leaf in enumerate(self.leaves):
            array = np.ascontiguousarray(records[f"leaf{i}"]).astype(leaf.dtype, copy=False)
            self._check_values(leaf, array, len(records) > 1)
            rows.append(array)
        return tuple(rows)

    def not_binary(self) -> str | None:
        """Why the policy's observations or actions cannot be sent as bytes; None if they can."""
        if any(isinstance(leaf.space, Padded) for leaf in self.leaves):
            return "observations of variable length have no binary form"
        if self._has_mask:
            return "observations with an action mask have no binary form"
        if spaces.is_composite(self._policy.action_space):
            return "actions of a Dict or Tuple space have no binary form"
        return None

    def mask(self, observations: Sequence[Any], masks: Sequence[Any] | None) -> Array | None:
        """The action masks (n, choices): `masks`, or those in the observations. None if there are none."""
        if masks is None:
            if not self._has_mask:
                return None
            masks = [mask_in(each, self._policy.observation_space, "") for each in observations]
        elif len(masks) != len(observations):
            raise ConfigError(f"{len(observations)} observations need {len(observations)} masks, not {len(masks)}")
        self._policy.check_masks()
        sizes = mask_sizes(self._policy.action_space)
        return np.stack([checked_mask(mask, sizes, "") for mask in masks])

    def _leaf(self, leaf: Leaf, observations: Sequence[Any], is_batch: bool) -> Array:
        parts = [_follow(each, leaf.path, _where(row, is_batch)) for row, each in enumerate(observations)]
        if (array := _all_at_once(leaf, parts)) is None:
            array = np.stack([_one(leaf, part, _where(row, is_batch)) for row, part in enumerate(parts)])
        self._check_values(leaf, array, is_batch)
        return array

    def _check_values(self, leaf: Leaf, array: Array, is_batch: bool) -> None:
        if (wrong := spaces.invalid_value(leaf, array)) is not None:
            at, clause = wrong
            clause = clause.replace("all observations and rewards must be finite", "it must be finite")
            name = spaces.element(leaf, at[1:])
            raise EnvError(_where(at[0], is_batch) + described("", name, f"that {clause}"))
        if not self._check_bounds:
            return
        space = leaf.space
        if isinstance(space, gymnasium.spaces.MultiBinary) and ((array != 0) & (array != 1)).any():
            raise EnvError(described("", leaf.name, f"with values other than 0 and 1: its space is {space}"))
        if not isinstance(space, gymnasium.spaces.Box) or not ((array < space.low) | (array > space.high)).any():
            return
        for row, values in enumerate(array):
            if (index := spaces.out_of_bounds(leaf, values)) is not None:
                low, high = (
                    np.broadcast_to(space.low, leaf.shape)[index],
                    np.broadcast_to(space.high, leaf.shape)[index],
                )
                clause = f"that is {values[index]}, outside of its space: from {low} to {high}"
                raise EnvError(_where(row, is_batch) + described("", spaces.element(leaf, index), clause))


def _where(row: int, is_batch: bool) -> str:
    return f"observations[{row}]: " if is_batch else ""


def _follow(observation: Any, path: tuple[str | int, ...], where: str) -> Any:
    for step, key in enumerate(path):
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            name = Leaf(path[: step + 1], gymnasium.spaces.Discrete(1)).name
            raise EnvError(where + described("", "observation", f"without {name}, which its space has")) from error
    return observation


def _all_at_once(leaf: Leaf, parts: list[Any]) -> Array | None:
    """The rows of a leaf, if all are nested lists of the right numbers and shape: the usual case, and the fast one."""
    if isinstance(leaf.space, Padded) or any(isinstance(part, Mapping) for part in parts):
        return None
    try:
        array = np.asarray(parts)
    except ValueError:  # ragged
        return None
    if array.shape != (len(parts), *leaf.shape) or not _has_kind(leaf, array):
        return None
    return _converted(leaf, array)


def _one(leaf: Leaf, part: Any, where: str) -> Array:
    """One row of a leaf. Raises EnvError."""
    if isinstance(leaf.space, Padded):
        try:
            return leaf.space.padded(part, leaf.name, "")
        except EnvError as error:
            raise EnvError(f"{where}{error}") from None
    array = _decoded(leaf, part, where) if isinstance(part, Mapping) else _array(leaf, part, where)
    if array.shape != leaf.shape:
        raise EnvError(where + _wrong_shape(leaf, array.shape))
    if not _has_kind(leaf, array):
        found = _KINDS.get(array.dtype.kind, f"values of type {shortened(array.dtype.name)}")
        raise EnvError(where + described("", leaf.name, f"with {found}, but its space needs {leaf.dtype.name}"))
    if (converted := _converted(leaf, array)) is None:
        raise EnvError(where + described("", leaf.name, f"with values outside of {leaf.dtype.name}"))
    return converted


def _array(leaf: Leaf, part: Any, where: str) -> Array:
    if not isinstance(part, (list, tuple, int, float, np.ndarray, np.generic)):
        clause = f"that is {type_name(part)} and does not fit its space {spaces.in_one_line(leaf.space)}"
        raise EnvError(where + described("", leaf.name, clause))
    try:
        return np.asarray(part)
    except ValueError as error:
        raise EnvError(where + described("", leaf.name, "that is a list whose parts differ in length")) from error


def _decoded(leaf: Leaf, part: Mapping[str, Any], where: str) -> Array:
    """The array of {"data": …, "dtype": …, "shape": …}."""
    if set(part) != _ENCODED:
        raise EnvError(where + described("", leaf.name, "that is an object without exactly data, dtype and shape"))
    dtype = _DTYPES.get(part["dtype"]) if isinstance(part["dtype"], str) else None
    if dtype is None:
        raise EnvError(where + described("", leaf.name, f"of an unknown dtype; valid: {', '.join(_DTYPES)}"))
    shape = part["shape"]
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise EnvError(where + described("", leaf.name, "with a shape that is not a list of integers"))
    if tuple(shape) != leaf.shape:
        raise EnvError(where + _wrong_shape(leaf, tuple(shape)))
    try:
        data = base64.b64decode(part["data"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise EnvError(where + described("", leaf.name, "with data that is not base64")) from error
    needed = int(np.prod(shape)) * dtype.itemsize
    if len(data) != needed:
        raise EnvError(where + described("", leaf.name, f"of {len(data):,} bytes; its dtype and shape need {needed:,}"))
    return np.frombuffer(data, dtype).reshape(shape)


def _wrong_shape(leaf: Leaf, shape: tuple[int, ...]) -> str:
    space = spaces.in_one_line(leaf.space)
    return described("", leaf.name, f"of shape {shape}, but its observation space {space} says {leaf.shape}")


def _has_kind(leaf: Leaf, array: Array) -> bool:
    if leaf.dtype.kind == "f":
        return array.dtype.kind in "iuf"
    is_binary = leaf.dtype.kind == "b" or isinstance(leaf.space, gymnasium.spaces.MultiBinary)
    return array.dtype.kind in ("iub" if is_binary else "iu")


def _converted(leaf: Leaf, array: Array) -> Array | None:
    """The array with the dtype of its space; None if a value does not fit."""
    if leaf.dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(leaf.dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            return None
    if leaf.dtype.kind == "b" and array.dtype.kind in "iu" and ((array != 0) & (array != 1)).any():
        return None
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        return array.astype(leaf.dtype)


def plain_action(space: gymnasium.Space[Any], action: Any) -> Any:
    """One action of a policy as JSON: numbers, nested lists, objects for Dict and lists for Tuple."""
    return _plain(spaces.nested_action(space, action))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist()
