"""Action scaling: from the policy's actions to the environment's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from outplay import spaces

Array = np.ndarray


class ActionScaling:
    """From the policy's actions to the environment's, as one array.

    Box actions, if normalised: [-1, 1] is [low, high] where both are finite; a bound that is finite is never crossed.
    Those of integers are rounded. The parts of Dict and Tuple actions are scaled each by itself, side by side.
    """

    def __init__(self, space: gymnasium.Space[Any], normalize: bool, clip: bool) -> None:
        self.space = space
        self.shape = tuple(space.shape or ())
        self.start: Any = 0
        self.parts: list[ActionScaling] = []
        if spaces.is_composite(space):
            self.parts = [ActionScaling(part, normalize, clip) for part in spaces.action_parts(space)]
        elif isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
            self.start = space.start
        self.is_box = isinstance(space, gymnasium.spaces.Box)
        self.clips = normalize or clip
        if isinstance(space, gymnasium.spaces.Box):
            self.low, self.high, bounded = _bounds(space)
            self.rounds = not np.issubdtype(np.dtype(space.dtype), np.floating)
            self.clips |= self.rounds  # a larger integer would not fit its type
            bounded &= normalize
            low, high = np.where(bounded, self.low, -1.0), np.where(bounded, self.high, 1.0)
            self.scale = ((high - low) / 2).astype(np.float64 if self.rounds else np.float32)
            self.middle = ((high + low) / 2).astype(self.scale.dtype)

    def __call__(self, actions: Array) -> Array:
        if self.parts:
            return self._side_by_side(actions)
        if not self.is_box:
            # A choice has no axis of its own; several have one, whatever the shape of their space.
            actions = actions.reshape(*actions.shape[:-1], *self.shape) if self.shape else actions
            return actions + self.start if np.any(self.start) else actions
        shape = (*actions.shape[:-1], *self.shape)
        actions = self.middle + self.scale * actions
        if self.rounds:
            actions = np.rint(actions)
        if self.clips:
            actions = actions.clip(self.low, self.high)
        return actions.reshape(shape).astype(self.space.dtype, copy=False)

    def _side_by_side(self, actions: Array) -> Array:
        """In doubles, which hold floats and integers alike."""
        batch, columns, begin = actions.shape[:-1], [], 0
        for part in self.parts:
            size = spaces.action_size(part.space)
            if isinstance(part.space, gymnasium.spaces.Discrete):
                own = part(actions[..., begin])
            else:
                own = part(actions[..., begin : begin + size])
            columns.append(own.reshape(*batch, size).astype(np.float64))
            begin += size
        return np.concatenate(columns, -1)


_LARGEST = 2.0**53  # integers beyond are not exact as doubles


def _bounds(space: gymnasium.spaces.Box) -> tuple[Array, Array, Array]:
    """The bounds of a Box, (n,) each, and where both are: not where they are only what the type can hold."""
    low, high = space.low.ravel(), space.high.ravel()
    if np.issubdtype(np.dtype(space.dtype), np.floating):
        return low, high, np.isfinite(low) & np.isfinite(high)
    bounded = space.bounded_below.ravel() & space.bounded_above.ravel()
    low, high = low.astype(np.float64).clip(min=-_LARGEST), high.astype(np.float64).clip(max=_LARGEST)
    return low, high, bounded & (high - low < _LARGEST)
