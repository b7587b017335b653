"""Weights: what workers act with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

Array = np.ndarray


@dataclass(frozen=True)
class Weights:
    """An immutable, versioned snapshot of the weights for acting: put once per version, read by all workers."""

    version: int
    values: Array | Tensor  # of `flat`; a tensor on the learner's GPU stays there until another process needs it
    exploration: dict[str, float] = field(default_factory=dict)  # exploration values by name, such as ε
    updates: int = 0  # updates of the learner before this snapshot

    @property
    def flat(self) -> Array:
        """Parameters and buffers for acting, without the critic, in the order of `Policy.flat`."""
        return self.values.cpu().numpy() if isinstance(self.values, Tensor) else self.values

    def __reduce__(self) -> tuple[Any, ...]:
        return Weights, (self.version, self.flat, self.exploration, self.updates)
