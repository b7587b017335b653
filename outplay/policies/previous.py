"""The previous action and reward as inputs of a recurrent network."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from outplay import spaces
from outplay.groups import ModelConfig
from outplay.policies.recurrent import PREVIOUS

Array = np.ndarray


class PreviousInputs:
    """Encodes actions (one-hot where they are discrete) and leaves room for the reward, which comes later."""

    def __init__(self, space: gymnasium.Space[Any], config: ModelConfig) -> None:
        parts = spaces.action_parts(space) if spaces.is_composite(space) else [space]
        # For each number of an action: how many values it has; 0 if it is not discrete.
        self._choices = [choices for part in parts for choices in _choices(part)] if config.lstm_use_prev_action else []
        self.uses_reward = config.lstm_use_prev_reward
        self.size = sum(max(1, choices) for choices in self._choices) + self.uses_reward

    def initial(self, lanes: int) -> dict[str, Array]:
        """At the start of an episode there is no previous action: zeros."""
        return {PREVIOUS: np.zeros((lanes, self.size), np.float32)} if self.size else {}

    def encoded(self, actions: Array) -> Array:
        """(B, size): the actions of the policy, and a reward of 0."""
        columns = actions.reshape(len(actions), -1)
        encoded = np.zeros((len(actions), self.size), np.float32)
        begin = 0
        for column, choices in enumerate(self._choices):
            if choices:
                encoded[np.arange(len(actions)), begin + columns[:, column].astype(np.int64)] = 1.0
            else:
                encoded[:, begin] = columns[:, column]
            begin += max(1, choices)
        return encoded


def _choices(space: gymnasium.Space[Any]) -> list[int]:
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return [0] * int(np.prod(space.shape or ()))
