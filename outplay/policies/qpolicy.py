"""The ε-greedy policy of Q-learning."""

from __future__ import annotations

import copy
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from outplay.errors import EnvError
from outplay.policies.network import Network
from outplay.policies.policy import Policy
from outplay.policies.qnetwork import QNetwork, QOptions
from outplay.policies.recurrent import Memory
from outplay.policies.spec import PolicySpec
from outplay.spaces import in_one_line

Array = np.ndarray


class QPolicy(Policy):
    """ε-greedy over the Q-values of discrete actions.

    >>> policy = QPolicy(PolicySpec(observation_space, action_space, options=QOptions(dueling=True)))

    While it explores, lane i of N takes a random action with probability ε^(1 + spread · i/(N − 1)). ε comes with the
    Weights. All lanes have the same ε if `epsilon_spread` is 0; Ape-X uses 7 (Horgan et al. 2018).
    """

    def __init__(self, spec: PolicySpec) -> None:
        if not isinstance(spec.action_space, gymnasium.spaces.Discrete):
            raise EnvError(
                f"DQN needs a Discrete action space, and this one is {in_one_line(spec.action_space)}; PPO takes any"
            )
        self._options: QOptions = spec.options or QOptions()
        self._epsilons: Array | None = None  # ε of each lane
        super().__init__(spec)
        self.exploration = {"epsilon": 0.0}

    @staticmethod
    def options_from(config: Any) -> QOptions:
        own = {name: getattr(config, name) for name in QOptions.__dataclass_fields__ if name != "epsilon_spread"}
        return QOptions(**own, epsilon_spread=config.exploration_config.epsilon_spread)

    @property
    def q_network(self) -> QNetwork:
        assert isinstance(self.network, QNetwork)
        return self.network

    def for_lanes(self, first: int, number: int, total: int) -> Self:
        """A copy with the ε of these lanes, which shares the network. Valid until the next Weights."""
        shared = copy.copy(self)
        if "epsilon" not in self.exploration:
            return shared
        exponents = 1.0 + self._options.epsilon_spread * np.arange(first, first + number) / max(1, total - 1)
        shared._epsilons = self.exploration["epsilon"] ** exponents
        return shared

    def _before_acting(self, explore: bool, rng: np.random.Generator) -> None:
        if self._options.noisy:
            self.q_network.draw_noise(rng if explore else None)

    def _act_at_random(self) -> None:
        super()._act_at_random()
        self.exploration = {"epsilon": 1.0}

    def _make_network(self, generator: torch.Generator) -> Network:
        num_actions, previous = self.distribution.num_params, self._previous.size
        return QNetwork(self.leaves, num_actions, self.spec.model, self._options, generator, previous)

    def _outputs(self, observations: tuple[Tensor, ...], memory: Memory | None = None) -> Tensor:
        return self.q_network.values(self.network.arranged(observations), memory)

    def _choose(self, params: Array, mask: Array | None, explore: bool, rng: np.random.Generator) -> Array:
        best: Array = params.argmax(-1)
        if not explore:
            return best
        if (temperature := self.exploration.get("temperature")) is not None:
            # The maximum of logits plus Gumbel noise is a sample of their softmax.
            noisy: Array = params.astype(np.float64) / temperature + rng.gumbel(size=params.shape)
            allowed: Array = noisy if mask is None else np.where(mask, noisy, -np.inf)
            drawn: Array = allowed.argmax(-1)
            return drawn
        epsilons: Any = self.exploration["epsilon"] if self._epsilons is None else self._epsilons
        is_random = rng.random(len(params)) < epsilons
        if not is_random.any():
            return best
        return np.where(is_random, _uniform(params.shape, mask, rng), best)


def _uniform(shape: tuple[int, ...], mask: Array | None, rng: np.random.Generator) -> Array:
    """A uniformly random allowed action per row."""
    rows, actions = shape
    if mask is None:
        return rng.integers(0, actions, rows)
    rank = rng.integers(0, mask.sum(-1))  # index among the allowed actions
    chosen: Array = (mask.cumsum(-1) > rank[:, None]).argmax(-1)
    return chosen
