"""Converts nested observations and actions to plain arrays, and back.

Observations: internally, an observation is a tuple of arrays, one per leaf of the observation space, in the order of
`leaves(space)`. A plain space has one leaf. Dict and Tuple spaces have the leaves of their parts. `readable` converts
parts without a fixed shape first: sequences are padded, text is ignored or read as a sequence of characters.

Actions: internally, an action is one array. For a Dict or Tuple space it concatenates the numbers of all parts, in the
order of `action_parts(space)`. `nested_action` converts it for the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.errors import EnvError, described, type_name
from outplay.sequences import DEFAULT, Padded, Reading, is_text_space, sequence, text

Leaves = tuple[np.ndarray, ...]

_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, Sequence, and Dict and Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary, Box, and Dict and Tuple of these"
_SMALLEST_IMAGE = 8


@dataclass(frozen=True)
class Leaf:
    """One array of an observation. `path` holds the keys that lead to it: () for a plain space."""

    path: tuple[str | int, ...]
    space: spaces.Space[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.space.shape or ())

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.space.dtype)

    @property
    def is_image(self) -> bool:
        """Whether it is an image: uint8, with height and width of at least 8 pixels. Everything else is a vector."""
        return (
            isinstance(self.space, spaces.Box)
            and self.dtype == np.uint8
            and len(self.shape) >= 2
            and (sorted(self.shape)[-2] >= _SMALLEST_IMAGE)
        )

    @property
    def name(self) -> str:
        return "observation" + "".join(f"[{key!r}]" for key in self.path)


class NotSeen(spaces.Space[Any]):
    """Placeholder for a part of an observation that networks do not see."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        return None

    def contains(self, x: Any) -> bool:  # noqa: ARG002
        return True

    @property
    def is_np_flattenable(self) -> bool:
        return False


class LeftOut(NotSeen):
    """Placeholder for a text part of an observation."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeftOut)

    def __hash__(self) -> int:
        return hash(LeftOut)

    def __repr__(self) -> str:
        return "text (left out)"


def readable(
    space: spaces.Space[Any], reading: Reading = DEFAULT, path: tuple[str | int, ...] = ()
) -> spaces.Space[Any]:
    """The space with `Padded` in place of sequences, and `LeftOut` in place of text that is ignored.

    Unchanged if it has neither.
    """
    if isinstance(space, spaces.Dict):
        parts = {key: readable(part, reading, (*path, key)) for key, part in space.spaces.items()}
        return space if all(parts[key] is part for key, part in space.spaces.items()) else spaces.Dict(parts)
    if isinstance(space, spaces.Tuple):
        items = [readable(part, reading, (*path, i)) for i, part in enumerate(space.spaces)]
        return space if all(new is old for new, old in zip(items, space.spaces, strict=True)) else spaces.Tuple(items)
    if isinstance(space, spaces.Sequence):
        return sequence(space, Leaf(path, space).name, reading)
    if is_text_space(space):
        return text(space, reading) if reading.with_text else LeftOut()
    return space


def left_out(space: spaces.Space[Any], path: tuple[str | int, ...] = ()) -> list[str]:
    """The names of the text parts of an observation that are ignored."""
    if isinstance(space, spaces.Dict):
        return [name for key in sorted(space.spaces) for name in left_out(space.spaces[key], (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [name for i, part in enumerate(space.spaces) for name in left_out(part, (*path, i))]
    return [Leaf(path, space).name] if isinstance(space, LeftOut) else []


def leaves(space: spaces.Space[Any]) -> tuple[Leaf, ...]:
    """The leaves of an observation space, in a fixed order. Raises EnvError if a part is not supported."""
    found = _leaves(space, ())
    if not found:
        raise EnvError("the observation consists of text only, which is ignored; set model: {text: characters}")
    return found


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> tuple[Leaf, ...]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and not len(space.spaces):
        raise EnvError(f"the {Leaf(path, space).name} has nothing in it: its space is {space}")
    if isinstance(space, spaces.Dict):
        return tuple(leaf for key in sorted(space.spaces) for leaf in _leaves(space.spaces[key], (*path, key)))
    if isinstance(space, spaces.Tuple):
        return tuple(leaf for i, part in enumerate(space.spaces) for leaf in _leaves(part, (*path, i)))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, Padded)):
        if 0 in (space.shape or ()):
            raise EnvError(f"the {Leaf(path, space).name} has nothing in it: its space is {space}")
        return (Leaf(path, space),)
    if isinstance(space, NotSeen):
        return ()
    where = f" at {Leaf(path, space).name}" if path else ""
    raise EnvError(f"the observation space {type(space).__name__}{where} is not supported; {_OBSERVATIONS} are")


def joined(of: tuple[Leaf, ...]) -> spaces.Space[Any]:
    """The space that these leaves come from, without the parts that are left out.

    >>> joined(leaves(Dict({"a": Discrete(2)})))
    Dict('a': Discrete(2))
    """
    if of[0].path == ():
        return of[0].space
    parts: dict[Any, list[Leaf]] = {}
    for leaf in of:
        parts.setdefault(leaf.path[0], []).append(Leaf(leaf.path[1:], leaf.space))
    inner = {key: joined(tuple(found)) for key, found in parts.items()}
    if all(isinstance(key, int) for key in inner):
        return spaces.Tuple(list(inner.values()))
    return spaces.Dict(inner)


def split(observation: Any, of: tuple[Leaf, ...]) -> Leaves:
    """Split one observation, or a batch in the format of Gymnasium's vectors, into leaves."""
    return tuple(np.asarray(_follow(observation, leaf.path), dtype=leaf.dtype) for leaf in of)


def write(
    observation: Any, of: tuple[Leaf, ...], into: Leaves, row: int, source: str = "the environment returned"
) -> None:
    """Write one observation to row `row` of a batch. Raises EnvError if its structure or shape is wrong."""
    is_pair = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict)
    if is_pair and not observation[1] and len(of) == 1:
        found = f"{source} (observation, info)" if source else "the observation is (observation, info)"
        raise EnvError(f"{found} where the observation alone is needed")
    for leaf, array in zip(of, into, strict=True):
        part = _follow(observation, leaf.path, source) if leaf.path else observation
        if isinstance(leaf.space, Padded):
            array[row] = leaf.space.padded(part, leaf.name, source)
            continue
        try:
            shape = part.shape if isinstance(part, np.ndarray) else np.shape(part)
            if shape == leaf.shape:
                array[row] = part
                continue
        except (TypeError, ValueError) as error:  # a string, None, a ragged list
            clause = f"that is {type_name(part)} and does not fit its space {leaf.space}"
            raise EnvError(described(source, leaf.name, clause)) from error
        clause = f"of shape {tuple(shape)}, but its observation space {leaf.space} says {leaf.shape}"
        raise EnvError(described(source, leaf.name, clause))


def _follow(observation: Any, path: tuple[str | int, ...], source: str = "the environment returned") -> Any:
    for step, key in enumerate(path):
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            name = Leaf(path[: step + 1], spaces.Discrete(1)).name
            raise EnvError(described(source, "observation", f"without {name}, which its space has")) from error
    return observation


def empty(of: tuple[Leaf, ...], *batch: int) -> Leaves:
    """Zero arrays for a batch of observations."""
    return tuple(np.zeros((*batch, *leaf.shape), leaf.dtype) for leaf in of)


def invalid_value(leaf: Leaf, values: np.ndarray) -> tuple[tuple[int, ...], str] | None:
    """(index, problem) of the first value that is not finite, or not in its discrete space. None if all are valid."""
    if np.issubdtype(leaf.dtype, np.floating):
        if not len(wrong := np.argwhere(~np.isfinite(values))):
            return None
        at = tuple(wrong[0].tolist())
        return at, f"is {values[at]}; all observations and rewards must be finite"
    if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete)):
        low = leaf.space.start
        high = low + (leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec)
        if not len(wrong := np.argwhere((values < low) | (values >= high))):
            return None
        at = tuple(wrong[0].tolist())
        return at, f"is {values[at]}, which is not in its space {leaf.space}"
    return None


def out_of_bounds(leaf: Leaf, values: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first value of one observation outside the bounds of its Box. None if there is none."""
    if not isinstance(leaf.space, spaces.Box):
        return None
    wrong = np.argwhere((values < leaf.space.low) | (values > leaf.space.high))
    return tuple(wrong[0].tolist()) if len(wrong) else None


def element(leaf: Leaf, index: tuple[int, ...]) -> str:
    """The name of one element of a leaf, for messages.

    >>> element(Leaf(("camera",), image), (3, 0))
    "observation['camera'][3, 0]"
    """
    return leaf.name + (f"[{', '.join(map(str, index))}]" if index else "")


def in_one_line(space: spaces.Space[Any]) -> str:
    """The string of a space without line breaks."""
    return " ".join(str(space).split())


def check_action_space(space: spaces.Space[Any]) -> None:
    """Raise EnvError if a part of the action space is not supported."""
    for part in action_parts(space):
        if not isinstance(part, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
            raise EnvError(f"the action space {type(part).__name__} is not supported; {_ACTIONS} are")
    if not action_size(space):
        raise EnvError(f"the action space {space} has nothing in it")


def is_composite(space: spaces.Space[Any]) -> bool:
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def action_parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The plain spaces in an action space, in a fixed order. A plain space is its only part."""
    if isinstance(space, spaces.Dict):
        return [leaf for key in sorted(space.spaces) for leaf in action_parts(space.spaces[key])]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in action_parts(part)]
    return [space]


def action_size(space: spaces.Space[Any]) -> int:
    """The number of elements of an action."""
    return sum(int(np.prod(part.shape or ())) for part in action_parts(space))


def flat_action(space: spaces.Space[Any], action: Any) -> np.ndarray:
    """Flatten an environment's action to one array: the inverse of `nested_action`."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([flat_action(space.spaces[key], action[key]).ravel() for key in sorted(space.spaces)])
    if isinstance(space, spaces.Tuple):
        return np.concatenate([flat_action(part, a).ravel() for part, a in zip(space.spaces, action, strict=True)])
    return np.asarray(action)


def nested_action(space: spaces.Space[Any], flat: np.ndarray) -> Any:
    """Convert a flat action to the nested action of a Dict or Tuple space. For plain spaces, return it unchanged."""
    if not is_composite(space):
        return flat
    action, used = _nested(space, flat)
    assert used == len(flat)
    return action


def _nested(space: spaces.Space[Any], flat: np.ndarray) -> tuple[Any, int]:
    """(action, size): the action from the first `size` elements of `flat`."""
    used = 0
    if isinstance(space, spaces.Dict):
        by_name = {}
        for key in sorted(space.spaces):
            by_name[key], size = _nested(space.spaces[key], flat[used:])
            used += size
        return by_name, used
    if isinstance(space, spaces.Tuple):
        parts = []
        for part in space.spaces:
            action, size = _nested(part, flat[used:])
            parts.append(action)
            used += size
        return tuple(parts), used
    shape = space.shape or ()
    used = int(np.prod(shape))
    numbers = flat[:used].astype(space.dtype)
    return (numbers.reshape(shape) if shape else numbers[0]), used
