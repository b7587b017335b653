"""The ε-greedy policy of Q-learning."""

from __future__ import annotations

import copy
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from outplay.errors import ConfigError, EnvError
from outplay.policies.network import Network
from outplay.policies.perturbing import perturb, perturbable
from outplay.policies.policy import Policy
from outplay.policies.qnetwork import QNetwork, QOptions
from outplay.policies.recurrent import Memory
from outplay.policies.spec import PolicySpec
from outplay.spaces import Leaves, in_one_line
from outplay.streams import stream

Array = np.ndarray


class QPolicy(Policy):
    """ε-greedy over the Q-values of discrete actions.

    >>> policy = QPolicy(PolicySpec(observation_space, action_space, options=QOptions(dueling=True)))

    While it explores, lane i of N takes a random action with probability ε^(1 + spread · i/(N − 1)). ε comes with the
    Weights. All lanes have the same ε if `epsilon_spread` is 0; Ape-X uses 7 (Horgan et al. 2018).

    If a "stddev" comes with the Weights, too, a copy of the policy with perturbed parameters explores (Plappert et al.
    2018). Its noise is a function of the seed and of "noise_key". The parameters of the policy itself have no noise.
    """

    samples_distribution = False

    def __init__(self, spec: PolicySpec) -> None:
        self._options: QOptions = spec.options or QOptions()
        if not isinstance(spec.action_space, gymnasium.spaces.Discrete):
            raise EnvError(
                f"{self._options.algorithm} needs a Discrete action space, and this one is "
                f"{in_one_line(spec.action_space)}; PPO takes any"
            )
        if spec.model.custom_action_dist is not None:
            raise ConfigError(
                "model.custom_action_dist: a policy of Q-values has no action distribution; PPO, A2C and PG use one"
            )
        self._epsilons: Array | None = None  # ε of each lane
        self._perturbed: QPolicy | None = None  # the copy that explores; made when first needed
        self._is_perturbed = False  # whether the copy has the present weights, with noise
        super().__init__(spec)
        self.exploration = {"epsilon": 0.0}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_perturbed": None, "_is_perturbed": False}

    @staticmethod
    def options_from(config: Any) -> QOptions:
        """The options that the config has; `dueling` and the like are settings of some algorithms only."""
        own = {name: getattr(config, name) for name in QOptions.__dataclass_fields__ if hasattr(config, name)}
        spread, algorithm = config.exploration_config.epsilon_spread, type(config).__name__.removesuffix("Config")
        return QOptions(**own, epsilon_spread=spread, algorithm=algorithm)

    @property
    def q_network(self) -> QNetwork:
        assert isinstance(self.network, QNetwork)
        return self.network

    def for_lanes(self, first: int, number: int, total: int) -> Self:
        """A copy with the ε of these lanes, which shares the network. Valid until the next Weights."""
        shared = copy.copy(self)
        if "stddev" in self.exploration:
            shared._perturbed = self._exploring().for_lanes(first, number, total)
            return shared
        if "epsilon" not in self.exploration:
            return shared
        exponents = 1.0 + self._options.epsilon_spread * np.arange(first, first + number) / max(1, total - 1)
        shared._epsilons = self.exploration["epsilon"] ** exponents
        return shared

    def act(
        self,
        observations: Leaves,
        state: dict[str, Array],
        mask: Array | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        if explore and "stddev" in self.exploration:
            return self._exploring().act(observations, state, mask, explore, rng)
        return super().act(observations, state, mask, explore, rng)

    def _exploring(self) -> QPolicy:
        """The copy with perturbed parameters. While the weights are not frozen, they may change: then it is renewed."""
        if self._perturbed is not None and self._is_perturbed and self.network.is_frozen:
            return self._perturbed
        if self._perturbed is None:
            self._perturbed = copy.deepcopy(self)
        weights = self.snapshot(self.version, everything=True)
        rng = stream(self.spec.seed, "parameter noise", int(weights.exploration.pop("noise_key")))
        stddev = weights.exploration.pop("stddev")
        perturb(torch.from_numpy(weights.flat), perturbable(self.network), stddev, rng)
        self._perturbed.load(weights)
        self._is_perturbed = True
        return self._perturbed

    def _freeze(self) -> None:
        super()._freeze()
        self._is_perturbed = False

    def _before_acting(self, explore: bool, rng: np.random.Generator) -> None:
        if self._options.noisy:
            self.q_network.draw_noise(rng if explore else None)

    def _act_at_random(self) -> None:
        super()._act_at_random()
        self.exploration = {"epsilon": 1.0}

    def _make_network(self, generator: torch.Generator) -> Network:
        num_actions, previous = self.distribution.num_params, self._previous.size
        return QNetwork(self.seen, num_actions, self.spec.model, self._options, generator, previous)

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
