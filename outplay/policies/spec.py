"""The PolicySpec: everything needed to create the same policy in any process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium

from outplay.groups import ModelConfig
from outplay.policies.network import without_initial_weights
from outplay.policies.policy import Policy
from outplay.policies.scaling import ActionScaling


@dataclass(frozen=True)
class PolicySpec:
    """Constructor arguments of a Policy, the same in every process.

    >>> policy = PolicySpec(observation_space, action_space, seed=7).make()
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    model: ModelConfig = field(default_factory=ModelConfig)
    seed: int = 0
    with_value: bool = True
    normalize_observations: bool = False
    normalize_actions: bool = True
    clip_actions: bool = False
    policy_class: type[Policy] = Policy
    with_masks: bool = False  # whether the environment has action masks
    preprocessor: Any = None  # a fitted preprocessor: see outplay.preprocessors
    options: Any = None  # of the policy class, as its `options_from` makes them: QOptions for QPolicy

    def make(self) -> Policy:
        return self.policy_class(self)

    def make_for_loading(self) -> Policy:
        """A policy that acts only after weights were loaded: its first weights are not drawn."""
        with without_initial_weights():
            return self.make()

    def action_scaling(self) -> ActionScaling:
        """From the policy's actions to the environment's."""
        return ActionScaling(self.action_space, self.normalize_actions, self.clip_actions)
