"""Action masks: which part of an observation is one, and checks of masks.

A mask is an array of booleans with one entry per choice: (n,) for Discrete(n), the concatenated masks of all parts for
MultiDiscrete. True means that a choice is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.errors import EnvError, described, type_name
from outplay.spaces import Leaf, NotSeen, in_one_line

KEYS = ("action_mask", "action_masks")  # of a mask in an observation or an info


class MaskPart(NotSeen):
    """Placeholder for the action mask in an observation, which networks do not see.

    With `stack`, it has that many masks, the newest last: those of stacked observations.
    """

    def __init__(self, sizes: Sequence[int], stack: int = 1) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.stack = stack

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:  # noqa: ARG002
        return np.ones((self.stack,) * (self.stack > 1) + (sum(self.sizes),), np.int8)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskPart) and (self.sizes, self.stack) == (other.sizes, other.stack)

    def __hash__(self) -> int:
        return hash((MaskPart, *self.sizes))

    def __repr__(self) -> str:
        return f"action mask {self.sizes}"


def with_mask_part(
    space: spaces.Space[Any], action_space: spaces.Space[Any], stack: int = 1
) -> tuple[spaces.Space[Any], str]:
    """(the observation space with a MaskPart in place of its action mask, why a part with that name is not a mask).

    The mask is the part "action_mask" (or "action_masks") of a Dict, if its space has the values 0 and 1 and the sizes
    that the action space needs. Otherwise the space is returned unchanged.
    """
    keys = [key for key in KEYS if isinstance(space, spaces.Dict) and key in space.spaces]
    if not keys:
        return space, ""
    assert isinstance(space, spaces.Dict)
    if len(keys) > 1:
        return space, f"the observation has both {keys[0]!r} and {keys[1]!r}"
    key = keys[0]
    try:
        sizes = mask_sizes(action_space)
    except EnvError as error:
        return space, str(error)
    if not _is_mask(space.spaces[key], sizes, stack):
        return space, (
            f"the observation[{key!r}] is {in_one_line(space.spaces[key])}; the action space "
            f"{in_one_line(action_space)} needs {sum(sizes)} values of 0 and 1"
        )
    if len(space.spaces) == 1:
        raise EnvError("the observation has an action mask and nothing else; add an 'observation' beside it")
    return spaces.Dict({k: MaskPart(sizes, stack) if k == key else part for k, part in space.spaces.items()}), ""


def _is_mask(space: spaces.Space[Any], sizes: list[int], stack: int) -> bool:
    if isinstance(space, spaces.Tuple):
        return len(space.spaces) == len(sizes) and all(
            _is_mask(part, [size], stack) for part, size in zip(space.spaces, sizes, strict=True)
        )
    if space.shape != (stack,) * (stack > 1) + (sum(sizes),):
        return False
    if isinstance(space, spaces.Box):
        return bool((space.low >= 0).all() and (space.high <= 1).all())
    if isinstance(space, spaces.MultiDiscrete):
        return bool((space.nvec == 2).all() and (space.start == 0).all())
    return isinstance(space, spaces.MultiBinary)


def mask_key(space: spaces.Space[Any]) -> str | None:
    """The key of the action mask in observations of this space, which `with_mask_part` returned. None without one."""
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else ()
    return next((key for key, part in parts if isinstance(part, MaskPart)), None)


def mask_in(observation: Any, space: spaces.Space[Any], source: str) -> Any:
    """The action mask in an observation as the environment returns it, unchecked. None if the space has none."""
    if (key := mask_key(space)) is None:
        return None
    assert isinstance(space, spaces.Dict)
    part = space.spaces[key]
    assert isinstance(part, MaskPart)
    try:
        mask = observation[key]
    except (KeyError, IndexError, TypeError) as error:
        name = Leaf((key,), part).name
        raise EnvError(described(source, "observation", f"without {name}, its action mask")) from error
    if part.stack == 1:
        return mask
    return tuple(frames[-1] for frames in mask) if isinstance(mask, tuple) else mask[-1]


def mask_sizes(space: spaces.Space[Any]) -> list[int]:
    """The number of choices of each part of a masked action: [n] for Discrete(n), nvec for MultiDiscrete(nvec)."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    raise EnvError(f"action masks need a Discrete or MultiDiscrete action space, but this one is {in_one_line(space)}")


def checked_mask(mask: Any, sizes: list[int], source: str) -> np.ndarray:
    """Check and convert an action mask to a bool array (sum of sizes,), True where an action is allowed.

    The mask of several parts may be a tuple or list with the mask of each part.
    """
    array = _as_array(mask, sizes, source)
    if array.dtype != bool:
        if array.dtype.kind not in "iuf" or ((array != 0) & (array != 1)).any():
            raise EnvError(described(source, "mask", "with values other than True and False (1 and 0)"))
        array = array.astype(bool)
    if (forbidden := part_without_choice(array, sizes)) is not None:
        part = f"choice for part {forbidden} of the action" if len(sizes) > 1 and array.any() else "action"
        remedy = "allow at least one, or end the episode a step earlier"
        raise EnvError(described(source, "mask", f"that allows no {part}; {remedy}"))
    return array


def _as_array(mask: Any, sizes: list[int], source: str) -> np.ndarray:
    try:
        by_part = isinstance(mask, (tuple, list)) and len(sizes) > 1 and any(np.ndim(part) for part in mask)
        if by_part and [np.size(part) for part in mask] == sizes:
            mask = np.concatenate([np.ravel(part) for part in mask])
        array = np.asarray(mask)
    except ValueError as error:  # a ragged list
        raise EnvError(described(source, "mask", f"that is {type_name(mask)}, not an array")) from error
    if array.shape != (sum(sizes),):
        needed = f"one value per {'action' if len(sizes) == 1 else 'choice'} is needed: ({sum(sizes)},)"
        raise EnvError(described(source, "mask", f"of shape {array.shape}; {needed}"))
    return array


def part_without_choice(mask: np.ndarray, sizes: list[int]) -> int | None:
    """The first part of the action for which a bool mask allows no choice. None if all parts have one."""
    allowed = np.logical_or.reduceat(mask, np.cumsum([0, *sizes[:-1]]))
    return None if allowed.all() else int(allowed.argmin())


def sample_allowed(space: spaces.Space[Any], mask: np.ndarray, rng: np.random.Generator) -> Any:
    """Draw a random action that the mask allows, in the environment's format."""
    parts = np.split(mask, np.cumsum(mask_sizes(space))[:-1])
    choices = [int(rng.choice(np.flatnonzero(part))) for part in parts]
    if isinstance(space, spaces.Discrete):
        return space.start + np.asarray(choices[0], space.dtype)
    assert isinstance(space, spaces.MultiDiscrete)
    return space.start + np.reshape(choices, space.shape).astype(space.dtype)
