"""Action scaling: from the policy's actions to the environment's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from outplay import spaces

Array = np.ndarray


class ActionScaling:
    """Converts a batch of the policy's actions to the environment's.

    - Box, normalised: [-1, 1] is mapped to [low, high] where both bounds are finite, and clipped to finite bounds.
    - Box of integers: rounded and clipped.
    - Dict and Tuple: each part is scaled separately; the result is one array.
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
        self.shifts = bool(np.any(self.start))
        self.is_box = isinstance(space, gymnasium.spaces.Box)
        self.clips = normalize or clip
        if isinstance(space, gymnasium.spaces.Box):
            self.low, self.high, bounded = bounds(space)
            self.rounds = not np.issubdtype(np.dtype(space.dtype), np.floating)
            self.clips |= self.rounds  # else an integer may overflow its dtype
            bounded &= normalize
            low, high = np.where(bounded, self.low, -1.0), np.where(bounded, self.high, 1.0)
            # Halved first: the difference of two large numbers may overflow. Halves are exact.
            self.scale = (high / 2 - low / 2).astype(np.float64 if self.rounds else np.float32)
            self.middle = (high / 2 + low / 2).astype(self.scale.dtype)

    def __call__(self, actions: Array) -> Array:
        if self.parts:
            return self._side_by_side(actions)
        if not self.is_box:
            # A Discrete action is a scalar. Others are flat, and take the shape of their space here.
            actions = actions.reshape(*actions.shape[:-1], *self.shape) if self.shape else actions
            return actions + self.start if self.shifts else actions
        shape = (*actions.shape[:-1], *self.shape)
        actions = self.middle + self.scale * actions
        if self.rounds:
            actions = np.rint(actions)
        if self.clips:
            actions = actions.clip(self.low, self.high)
        return actions.reshape(shape).astype(self.space.dtype, copy=False)

    def _side_by_side(self, actions: Array) -> Array:
        """Scale the parts and concatenate them as float64, which represents float32 and integers exactly."""
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

    def uniform(self, rows: int, rng: np.random.Generator) -> Array:
        """Actions of the policy (rows, n) that become uniformly random ones of a bounded Box, all integers alike."""
        if not self.rounds:
            return rng.uniform(-1, 1, (rows, len(self.low))).astype(np.float32)
        low, high = self.low.astype(np.int64), self.high.astype(np.int64)
        return self.inverse(rng.integers(low, high, (rows, len(low)), endpoint=True))

    def inverse(self, actions: Array) -> Array:
        """The policy's actions from the environment's: flat, shifted and scaled back. Clipping is not undone."""
        if self.parts:
            return self._parts_inverse(actions)
        flat = actions.reshape(len(actions), -1) if self.shape else actions
        if self.is_box:
            scale = np.where(self.scale == 0, 1, self.scale)  # low == high: the action is always 0
            return ((flat.astype(self.scale.dtype) - self.middle) / scale).astype(np.float32)
        start = np.asarray(self.start).ravel() if self.shape else self.start
        return flat - start if np.any(self.start) else flat

    def _parts_inverse(self, actions: Array) -> Array:
        columns, begin = [], 0
        for part in self.parts:
            size = spaces.action_size(part.space)
            own = actions[:, begin : begin + size]
            own = part.inverse(own[:, 0] if not part.shape else own.reshape(len(own), *part.shape))
            columns.append(own.reshape(len(own), size).astype(np.float32))
            begin += size
        return np.concatenate(columns, -1)


_LARGEST = 2.0**53  # float64 represents integers exactly up to here


def bounds(space: gymnasium.spaces.Box) -> tuple[Array, Array, Array]:
    """(low, high, bounded) of a Box, (n,) each. `bounded`: both bounds are real, not just the limits of the dtype."""
    low, high = space.low.ravel(), space.high.ravel()
    if np.issubdtype(np.dtype(space.dtype), np.floating):
        return low, high, np.isfinite(low) & np.isfinite(high)
    bounded = space.bounded_below.ravel() & space.bounded_above.ravel()
    low, high = low.astype(np.float64).clip(min=-_LARGEST), high.astype(np.float64).clip(max=_LARGEST)
    return low, high, bounded & (high - low < _LARGEST)
