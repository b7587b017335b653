"""The policy of Q-learning: the best action, or now and then one at random."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from outplay.config import ModelConfig, QConfig
from outplay.errors import EnvError
from outplay.policies.networks import Network
from outplay.policies.policy import Policy
from outplay.policies.qnetwork import QNetwork

Array = np.ndarray


class QPolicy(Policy):
    """Chooses among discrete actions by their values.

    >>> policy = QPolicy(observation_space, action_space, ModelConfig(), seed=0, q=QConfig())
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        model: ModelConfig,
        seed: int,
        with_value: bool = False,
        normalize_observations: bool = False,
        normalize_actions: bool = True,
        clip_actions: bool = False,
        q: QConfig | None = None,
    ) -> None:
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise EnvError(f"DQN needs a Discrete action space, and this one is {action_space}; PPO takes any")
        self._q = q or QConfig()
        super().__init__(
            observation_space,
            action_space,
            model,
            seed,
            with_value,
            normalize_observations,
            normalize_actions,
            clip_actions,
        )

    @staticmethod
    def settings(config: Any) -> dict[str, Any]:
        return {"q": config.q}

    @property
    def q_network(self) -> QNetwork:
        assert isinstance(self.network, QNetwork)
        return self.network

    def _make_network(self, model: ModelConfig, with_value: bool, generator: torch.Generator) -> Network:  # noqa: ARG002
        return QNetwork(self.leaves, self.distribution.num_params, model, self._q, generator)

    def _outputs(self, observations: tuple[Tensor, ...]) -> Tensor:
        return self.q_network.values(self.network.arranged(observations))

    def _chosen(self, params: Array, explore: bool, rng: np.random.Generator) -> Array:
        best: Array = params.argmax(-1)
        if not explore:
            return best
        rows, actions = params.shape
        drawn = rng.integers(0, actions, rows)
        return np.where(rng.random(rows) < float(self.q_network.epsilon), drawn, best)
