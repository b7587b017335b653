"""The policy of Q-learning: the best action, or now and then one at random."""

from __future__ import annotations

import copy
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from outplay.config import ModelConfig
from outplay.errors import EnvError
from outplay.policies.network import Network
from outplay.policies.policy import Policy
from outplay.policies.qnetwork import QNetwork, QOptions
from outplay.spaces import Leaves, in_one_line

Array = np.ndarray


class QPolicy(Policy):
    """Chooses among discrete actions by their values.

    >>> policy = QPolicy(observation_space, action_space, ModelConfig(), seed=0, q=QOptions(dueling=True))

    While it explores, lane i of N draws an action at random with chance ε^(1 + spread · i/(N − 1)), where ε is part of
    the Weights: all lanes alike if `spread` is 0, as in Ape-X if it is 7 (Horgan et al. 2018).
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *arguments: Any,
        q: QOptions | None = None,
        spread: float = 0.0,
        **more: Any,
    ) -> None:
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise EnvError(
                f"DQN needs a Discrete action space, and this one is {in_one_line(action_space)}; PPO takes any"
            )
        self._q = q or QOptions()
        self._spread = spread
        self._chances: Array | None = None  # of an action at random, in each lane
        super().__init__(observation_space, action_space, *arguments, **more)

    @staticmethod
    def settings(config: Any) -> dict[str, Any]:
        names = QOptions.__dataclass_fields__
        options = QOptions(**{name: getattr(config, name) for name in names})
        return {"q": options, "spread": config.exploration_config.epsilon_spread or 0.0}

    @property
    def q_network(self) -> QNetwork:
        assert isinstance(self.network, QNetwork)
        return self.network

    def for_lanes(self, first: int, number: int, total: int) -> Self:
        """The same policy, for these lanes of all, until the next Weights."""
        shared = copy.copy(self)
        exponents = 1.0 + self._spread * np.arange(first, first + number) / max(1, total - 1)
        shared._chances = self.q_network.epsilon.item() ** exponents
        return shared

    def act(
        self, observations: Leaves, state: dict[str, Array], explore: bool, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        if self._q.noisy:
            self.q_network.draw_noise(rng if explore else None)
        return super().act(observations, state, explore, rng)

    @torch.no_grad()
    def _act_at_random(self) -> None:
        super()._act_at_random()
        self.q_network.epsilon.fill_(1.0)

    def _make_network(self, model: ModelConfig, with_value: bool, generator: torch.Generator) -> Network:  # noqa: ARG002
        return QNetwork(self.leaves, self.distribution.num_params, model, self._q, generator)

    def _outputs(self, observations: tuple[Tensor, ...]) -> Tensor:
        return self.q_network.values(self.network.arranged(observations))

    def _chosen(self, params: Array, explore: bool, rng: np.random.Generator) -> Array:
        best: Array = params.argmax(-1)
        if not explore:
            return best
        rows, actions = params.shape
        chances: Any = self.q_network.epsilon.item() if self._chances is None else self._chances
        at_random = rng.random(rows) < chances
        return np.where(at_random, rng.integers(0, actions, rows), best) if at_random.any() else best
