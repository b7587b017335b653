"""Critics that are trained on recorded data: what CQL and IQL share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from outplay.data import transitions
from outplay.learning.offline import OfflineConfig, OfflineLearner
from outplay.learning.offpolicy import ReplayConfig, TransitionBatch
from outplay.learning.optimizers import ParameterGroup
from outplay.policies.box import Actor
from outplay.policies.critics import CriticOptions, Critics
from outplay.settings import AboveZero, Few, Fraction, Positive, with_default
from outplay.streams import seed_for


class OfflineCriticConfig(OfflineConfig):
    """Settings that CQL and IQL share."""

    lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = with_default(OfflineConfig, "lr", 3e-4)
    tau: Fraction = with_default(ReplayConfig, "tau", 0.005)
    num_critics: Few = Field(2, description="Critics in the ensemble. The minimum of their values counts.")
    critic_hiddens: list[Positive] | None = Field(
        None, description="Sizes of the critics' hidden layers; default: those of the policy (model.fcnet_hiddens)."
    )
    critic_norm: Literal["layer"] | None = Field(
        None, description="Normalisation in the critics after each hidden layer: LayerNorm."
    )
    critic_lr_scale: AboveZero = Field(1.0, description="Learning rate of the critics as a multiple of lr.")


C = TypeVar("C", bound=OfflineCriticConfig)


class OfflineCriticLearner(OfflineLearner[C]):
    """Critics Q(s, a) with a target network, for Box or Discrete actions."""

    needs = (transitions.ACTION, transitions.REWARD, transitions.TERMINATED, transitions.NEXT_OBSERVATION)
    network: Actor

    def make_networks(self) -> None:
        config = self.config
        self.is_discrete = isinstance(self.policy.action_space, spaces.Discrete)
        self.num_inputs = 0 if self.is_discrete else self.distribution.shape[0]
        outputs = self.distribution.num_params if self.is_discrete else 1
        self.critics = self.make_critics("critics", config.num_critics, self.num_inputs, outputs)
        self.target = self.add_target("target", self.critics, self.networks["critics"])

    def make_critics(self, name: str, number: int, num_inputs: int, num_outputs: int) -> Critics:
        """Networks of the observations, and of actions with `num_inputs` numbers; trained and saved as `name`."""
        config, model = self.config, self.policy.spec.model
        options = CriticOptions(number, config.critic_hiddens, config.critic_norm)
        generator = torch.Generator().manual_seed(seed_for(config.seed, name))
        critics = Critics(self.policy.seen, model, options, num_inputs, num_outputs, generator)
        self.add_network(name, critics)
        critics.eval()
        return critics

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        settings = self.config.optimizer
        actor = ParameterGroup("actor", self.policy.parameters, self.policy.flat, settings, is_fused=True)
        return [actor, self.critic_group("critics", self.critics)]

    def critic_group(self, name: str, network: Critics) -> ParameterGroup:
        flat, scale = self.networks[name], self.config.critic_lr_scale
        return ParameterGroup(name, list(network.parameters()), flat, self.config.optimizer, scale, True)

    def taken(self, critics: Critics, batch: TransitionBatch) -> Tensor:
        """Q(s, a) of the recorded actions, (N, B)."""
        return self.chosen(critics(batch.observations, None if self.is_discrete else batch.actions), batch)

    def chosen(self, values: Tensor, batch: TransitionBatch) -> Tensor:
        """The values of the recorded actions: (N, B, 1 or A) to (N, B)."""
        if not self.is_discrete:
            return values.squeeze(-1)
        return values.gather(-1, batch.actions.expand(len(values), -1)[..., None]).squeeze(-1)

    def log_prob(self, params: Tensor, batch: TransitionBatch) -> Tensor:
        """log π(a|s) of the recorded actions, (B,)."""
        distribution: Any = self.distribution
        found: Tensor = distribution.log_prob(self.floored(params), batch.actions)
        return found
