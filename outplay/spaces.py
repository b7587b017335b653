"""Spaces as lists of leaves: how nested observations and actions become plain arrays.

Everywhere inside, an observation is a tuple of arrays, one for each leaf of the observation space, in the order of
`leaves(space)`. A plain space has one leaf; Dict and Tuple have those of their parts. Text is left out.

An action is one array. That of a Dict or Tuple space holds the numbers of all parts side by side, in the order of
`action_parts(space)`, until an environment takes it: `nested_action`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.errors import EnvError

Leaves = tuple[np.ndarray, ...]

_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary, Box, and Dict and Tuple of these"
_SMALLEST_IMAGE = 8


@dataclass(frozen=True)
class Leaf:
    """One array of an observation: `path` leads to it from the whole."""

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
        """Images are bytes with height and width; what is small or a float is a vector."""
        return (
            isinstance(self.space, spaces.Box)
            and self.dtype == np.uint8
            and len(self.shape) >= 2
            and (sorted(self.shape)[-2] >= _SMALLEST_IMAGE)
        )

    @property
    def name(self) -> str:
        return "observation" + "".join(f"[{key!r}]" for key in self.path)


class LeftOut(spaces.Space[Any]):
    """Stands for a part of an observation that is text: no network here reads it."""

    def sample(self, mask: Any = None, probability: Any = None) -> None:  # noqa: ARG002
        return None

    def contains(self, x: Any) -> bool:  # noqa: ARG002
        return True

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeftOut)

    def __hash__(self) -> int:
        return hash(LeftOut)

    def __repr__(self) -> str:
        return "text (left out)"


def without_text(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space with `LeftOut` in place of text, as MiniGrid's mission; itself if there is none."""
    if not text_in(space):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: without_text(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([without_text(part) for part in space.spaces])
    return LeftOut()


def text_in(space: spaces.Space[Any], path: tuple[str | int, ...] = ()) -> list[str]:
    """The names of the parts of an observation that are text."""
    if isinstance(space, spaces.Dict):
        return [name for key in sorted(space.spaces) for name in text_in(space.spaces[key], (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [name for i, part in enumerate(space.spaces) for name in text_in(part, (*path, i))]
    # Packages have text spaces of their own: what they share is the dtype.
    is_text = isinstance(space, LeftOut) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")
    return [Leaf(path, space).name] if is_text else []


def leaves(space: spaces.Space[Any]) -> tuple[Leaf, ...]:
    """The leaves of an observation space, in a fixed order; names what is not supported."""
    found = _leaves(space, ())
    if not found:
        raise EnvError(f"the observation is nothing but text, which no network here reads: its space is {space}")
    return found


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> tuple[Leaf, ...]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and not len(space.spaces):
        raise EnvError(f"the {Leaf(path, space).name} has nothing in it: its space is {space}")
    if isinstance(space, spaces.Dict):
        return tuple(leaf for key in sorted(space.spaces) for leaf in _leaves(space.spaces[key], (*path, key)))
    if isinstance(space, spaces.Tuple):
        return tuple(leaf for i, part in enumerate(space.spaces) for leaf in _leaves(part, (*path, i)))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        if 0 in (space.shape or ()):
            raise EnvError(f"the {Leaf(path, space).name} has nothing in it: its space is {space}")
        return (Leaf(path, space),)
    if isinstance(space, LeftOut):
        return ()
    where = f" at {Leaf(path, space).name}" if path else ""
    raise EnvError(f"the observation space {type(space).__name__}{where} is not supported; {_OBSERVATIONS} are")


def split(observation: Any, of: tuple[Leaf, ...]) -> Leaves:
    """One observation, or a batch of them as Gymnasium's vectors make it, as leaves."""
    return tuple(np.asarray(_follow(observation, leaf.path), dtype=leaf.dtype) for leaf in of)


def write(
    observation: Any, of: tuple[Leaf, ...], into: Leaves, row: int, source: str = "the environment returned"
) -> None:
    """Put one observation into row `row` of a batch; refuse what does not have the space's shape."""
    if isinstance(observation, tuple) and len(observation) == 2 and observation[1] == {} and len(of) == 1:
        raise EnvError(f"{source} (observation, info) where the observation alone is needed")
    for leaf, array in zip(of, into, strict=True):
        part = _follow(observation, leaf.path, source) if leaf.path else observation
        try:
            shape = part.shape if isinstance(part, np.ndarray) else np.shape(part)
            if shape == leaf.shape:
                array[row] = part
                continue
        except (TypeError, ValueError) as error:  # a text, None, a list of lists of different lengths
            raise EnvError(
                f"{source} an {leaf.name} that is a {type(part).__name__} and does not fit its space {leaf.space}"
            ) from error
        raise EnvError(
            f"{source} an {leaf.name} of shape {tuple(shape)}, but its observation space {leaf.space} says {leaf.shape}"
        )


def _follow(observation: Any, path: tuple[str | int, ...], source: str = "the environment returned") -> Any:
    for step, key in enumerate(path):
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            name = Leaf(path[: step + 1], spaces.Discrete(1)).name
            raise EnvError(f"{source} an observation without {name}, which its space has") from error
    return observation


def empty(of: tuple[Leaf, ...], *batch: int) -> Leaves:
    """Arrays for a batch of observations."""
    return tuple(np.zeros((*batch, *leaf.shape), leaf.dtype) for leaf in of)


def problem_in(leaf: Leaf, values: np.ndarray) -> tuple[tuple[int, ...], str] | None:
    """The first of a leaf's values that is not finite, or no choice of its space: where in `values`, what is wrong."""
    if np.issubdtype(leaf.dtype, np.floating):
        if not len(wrong := np.argwhere(~np.isfinite(values))):
            return None
        at = tuple(wrong[0].tolist())
        return at, f"is {values[at]}; every number that it returns must be finite"
    if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete)):
        low = leaf.space.start
        high = low + (leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec)
        if not len(wrong := np.argwhere((values < low) | (values >= high))):
            return None
        at = tuple(wrong[0].tolist())
        return at, f"is {values[at]}, which is not in its space {leaf.space}"
    return None


def outside_of_bounds(leaf: Leaf, values: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first number of one observation that lies outside of its Box; None if none does."""
    if not isinstance(leaf.space, spaces.Box):
        return None
    wrong = np.argwhere((values < leaf.space.low) | (values > leaf.space.high))
    return tuple(wrong[0].tolist()) if len(wrong) else None


def element(leaf: Leaf, index: tuple[int, ...]) -> str:
    """The name of one number of a leaf.

    >>> element(Leaf(("camera",), image), (3, 0))
    "observation['camera'][3, 0]"
    """
    return leaf.name + (f"[{', '.join(map(str, index))}]" if index else "")


def in_one_line(space: spaces.Space[Any]) -> str:
    return " ".join(str(space).split())


def check_action_space(space: spaces.Space[Any]) -> None:
    """Refuse by name what no policy can act in."""
    for part in action_parts(space):
        if not isinstance(part, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
            raise EnvError(f"the action space {type(part).__name__} is not supported; {_ACTIONS} are")
    if not action_size(space):
        raise EnvError(f"the action space {space} has nothing in it")


def is_composite(space: spaces.Space[Any]) -> bool:
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def action_parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The plain spaces that an action space is made of, in a fixed order; a plain space is its only part."""
    if isinstance(space, spaces.Dict):
        return [leaf for key in sorted(space.spaces) for leaf in action_parts(space.spaces[key])]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in action_parts(part)]
    return [space]


def action_size(space: spaces.Space[Any]) -> int:
    """How many numbers an action has."""
    return sum(int(np.prod(part.shape or ())) for part in action_parts(space))


def flat_action(space: spaces.Space[Any], action: Any) -> np.ndarray:
    """An action of the environment as one array: what `nested_action` takes."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([flat_action(space.spaces[key], action[key]).ravel() for key in sorted(space.spaces)])
    if isinstance(space, spaces.Tuple):
        return np.concatenate([flat_action(part, a).ravel() for part, a in zip(space.spaces, action, strict=True)])
    return np.asarray(action)


def nested_action(space: spaces.Space[Any], flat: np.ndarray) -> Any:
    """An array with the numbers of an action as the environment takes it; that of a plain space as it is."""
    if not is_composite(space):
        return flat
    action, used = _nested(space, flat)
    assert used == len(flat)
    return action


def _nested(space: spaces.Space[Any], flat: np.ndarray) -> tuple[Any, int]:
    """An action from the beginning of `flat`, and how many numbers it took."""
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


def mask_sizes(space: spaces.Space[Any]) -> list[int]:
    """How many choices each part of a masked action has: [n] for Discrete(n), nvec for MultiDiscrete(nvec)."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    raise EnvError(
        f"action masks are for Discrete and MultiDiscrete action spaces, and this one is {in_one_line(space)}"
    )


def checked_mask(mask: Any, sizes: list[int], source: str) -> np.ndarray:
    """An action mask as a bool array (sum of sizes,), True where an action is allowed."""
    try:
        array = np.asarray(mask)
    except ValueError as error:  # lists of different lengths
        raise EnvError(f"{source} a {type(mask).__name__} that is not an array") from error
    if array.shape != (sum(sizes),):
        raise EnvError(f"{source} a mask of shape {array.shape}; one entry per choice is needed: ({sum(sizes)},)")
    if array.dtype != bool:
        if array.dtype.kind not in "iuf" or ((array != 0) & (array != 1)).any():
            raise EnvError(f"{source} a mask of other values than True and False (1 and 0)")
        array = array.astype(bool)
    if not array.any():
        raise EnvError(f"{source} a mask that allows no action")
    if len(sizes) > 1:
        begins = np.cumsum([0, *sizes[:-1]])
        allowed = np.logical_or.reduceat(array, begins)
        if not allowed.all():
            raise EnvError(f"{source} a mask that allows no choice for part {int(allowed.argmin())} of the action")
    return array


def sample_allowed(space: spaces.Space[Any], mask: np.ndarray, rng: np.random.Generator) -> Any:
    """A random action, as the environment takes it, among those that a mask allows."""
    parts = np.split(mask, np.cumsum(mask_sizes(space))[:-1])
    choices = [int(rng.choice(np.flatnonzero(part))) for part in parts]
    if isinstance(space, spaces.Discrete):
        return space.start + np.asarray(choices[0], space.dtype)
    assert isinstance(space, spaces.MultiDiscrete)
    return space.start + np.reshape(choices, space.shape).astype(space.dtype)
