"""Spaces as lists of leaves: how nested observations become plain arrays.

Everywhere inside, an observation is a tuple of arrays, one for each leaf of the observation space, in the order of
`leaves(space)`. A plain space has one leaf; Dict and Tuple have those of their parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.errors import EnvError

Leaves = tuple[np.ndarray, ...]

_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box"
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


def leaves(space: spaces.Space[Any], path: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """The leaves of an observation space, in a fixed order; names what is not supported."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and not len(space.spaces):
        raise EnvError(f"the {Leaf(path, space).name} has nothing in it: its space is {space}")
    if isinstance(space, spaces.Dict):
        return tuple(leaf for key in sorted(space.spaces) for leaf in leaves(space.spaces[key], (*path, key)))
    if isinstance(space, spaces.Tuple):
        return tuple(leaf for i, part in enumerate(space.spaces) for leaf in leaves(part, (*path, i)))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        if 0 in (space.shape or ()):
            raise EnvError(f"the {Leaf(path, space).name} has nothing in it: its space is {space}")
        return (Leaf(path, space),)
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
        part = _follow(observation, leaf.path) if leaf.path else observation
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


def _follow(observation: Any, path: tuple[str | int, ...]) -> Any:
    for step, key in enumerate(path):
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            name = Leaf(path[: step + 1], spaces.Discrete(1)).name
            raise EnvError(f"the environment returned an observation without {name}, which its space has") from error
    return observation


def empty(of: tuple[Leaf, ...], *batch: int) -> Leaves:
    """Arrays for a batch of observations."""
    return tuple(np.zeros((*batch, *leaf.shape), leaf.dtype) for leaf in of)


def problem_in(leaf: Leaf, values: np.ndarray) -> str:
    """What is wrong with the values of a leaf, in words: not finite, or no choice of its space. Empty if nothing is."""
    if np.issubdtype(leaf.dtype, np.floating):
        finite = np.isfinite(values)
        return "" if finite.all() else f"is {values[~finite][0]}; every number that it returns must be finite"
    if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete)) and values.size:
        low = leaf.space.start
        high = low + (leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec)
        wrong = (values < low) | (values >= high)
        return f"holds {values[wrong][0]}, which is not in its space {leaf.space}" if wrong.any() else ""
    return ""


def check_action_space(space: spaces.Space[Any]) -> None:
    """Refuse by name what no policy can act in."""
    if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
        raise EnvError(f"the action space {type(space).__name__} is not supported; {_ACTIONS} are")
    if isinstance(space, spaces.Box) and not np.issubdtype(np.dtype(space.dtype), np.floating):
        raise EnvError(
            f"the action space {space} is not supported: a Box of actions must hold floats, not {space.dtype}"
        )
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)) and len(space.shape or ()) != 1:
        raise EnvError(f"the action space {space} is not supported: it must have one dimension")
