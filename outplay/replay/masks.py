"""Action masks in a replay buffer: they are stored as the last leaf of the observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
from gymnasium import spaces

from outplay.fragments import Fragment
from outplay.spaces import Leaf

Array = np.ndarray


def mask_leaf(size: int) -> Leaf:
    """An action mask as the last leaf of the stored observations, for environments that mask actions."""
    return Leaf(("action_mask",), spaces.Box(0, 1, (size,), np.bool_))


def with_leaf(fragment: Fragment, each: Array, last: Array, final: Array) -> Fragment:
    """The Fragment with one more leaf: of its observations, its last observations and its final observations."""
    return replace(
        fragment,
        observations=(*fragment.observations, each),
        last_observations=(*fragment.last_observations, last),
        final_observations=(*fragment.final_observations, final),
    )


def with_masks(fragment: Fragment) -> Fragment:
    """The Fragment with the action masks as the last leaf of its observations: see `mask_leaf`."""
    masks = (fragment.action_mask, fragment.last_action_mask, fragment.final_action_mask)
    assert all(mask is not None for mask in masks)
    return with_leaf(fragment, *cast("tuple[Array, Array, Array]", masks))


def with_missing_masks(arrays: Mapping[str, Array], leaves: tuple[Leaf, ...]) -> dict[str, Array]:
    """Saved arrays from before masks were stored, with masks that allow all actions as the last of `leaves`."""
    completed, mask = dict(arrays), leaves[-1]
    for name, first in arrays.items():
        kind, _, number = name.rpartition(".")
        if (
            number == "0"
            and kind not in ("priorities", "states")
            and (own := f"{kind}.{len(leaves) - 1}") not in arrays
        ):
            completed[own] = np.ones((*first.shape[: 1 + (kind == "observations")], *mask.shape), mask.dtype)
    return completed
