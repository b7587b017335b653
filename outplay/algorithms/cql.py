"""CQL: conservative Q-learning (Kumar et al. 2020). SAC on recorded data, with low values of other actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, FiniteFloat, model_validator
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.sac import SACConfig, Temperature
from outplay.learning.offlinecritics import OfflineCriticConfig, OfflineCriticLearner
from outplay.learning.offlinelosses import discrete_gap, sampled_gap
from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.optimizers import ParameterGroup
from outplay.learning.soft import allowed_entropy, soft_value, temperature_gradient
from outplay.policies import masked
from outplay.policies.box import ConservativePolicy
from outplay.policies.squashed import SquashedGaussian
from outplay.settings import LARGEST, AboveZero, Decay, Few, NotNegative, refuse_unused, with_default
from outplay.streams import stream


class CQLConfig(OfflineCriticConfig):
    """Settings of CQL."""

    bc_iters: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        2_000, description="Updates at the start in which the policy is cloned from the data, before it follows Q."
    )
    min_q_weight: NotNegative = Field(
        5.0, description="Weight of the conservative term: how strongly values of actions outside the data are lowered."
    )
    temperature: AboveZero = Field(
        1.0, description="Temperature of the log-sum-exp over actions in the conservative term."
    )
    num_actions: Few = Field(
        10, description="Box actions: samples per row for the log-sum-exp: so many uniform ones, of the policy here, "
        "and of the policy at the next observation."
    )  # fmt: skip
    initial_alpha: float = with_default(SACConfig, "initial_alpha", 0.1)
    learn_alpha: bool = with_default(SACConfig, "learn_alpha", True)
    target_entropy: FiniteFloat | Literal["auto"] = with_default(SACConfig, "target_entropy", "auto")
    target_entropy_scale: Decay = with_default(SACConfig, "target_entropy_scale", 0.1)

    @model_validator(mode="after")
    def _check_temperature(self) -> Self:
        if not self.learn_alpha:
            refuse_unused(self, ["target_entropy", "target_entropy_scale"], "learn_alpha: false")
        return self


class CQLLearner(OfflineCriticLearner[CQLConfig]):
    """Critics with the penalty log Σ exp Q(s, ·) − Q(s, a); the policy of SAC. Targets have no entropy bonus."""

    def make_networks(self) -> None:
        super().make_networks()
        self.temperature = Temperature(self.config.initial_alpha)
        self.temperature_flat = self.add_network("temperature", self.temperature)

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        own = list(self.temperature.parameters())
        group = ParameterGroup("temperature", own, self.temperature_flat, self.config.optimizer, 1.0, True)
        return [*super().parameter_groups(), group]

    @property
    def alpha(self) -> Tensor:
        return self.temperature.log.detach().exp()

    def target_entropy(self, mask: Tensor | None) -> Tensor | float:
        if self.config.target_entropy != "auto":
            return float(self.config.target_entropy)
        if self.is_discrete:
            return self.config.target_entropy_scale * allowed_entropy(mask, self.distribution.num_params)
        return -float(self.num_inputs)

    def step(self, batch: TransitionBatch, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        rng, rows = stream(self.config.seed, "actions of an update", self.updates), self.part_of(len(batch))
        shape = (2 * self.config.num_actions + 2, rows.total, self.num_inputs)
        noise = self.tensor(rng.standard_normal(shape, "float32")[:, rows.rows])
        drawn = rng.uniform(-1, 1, (self.config.num_actions, *shape[1:])).astype("float32")
        norm, metrics = self._critic_step(batch, noise, self.tensor(drawn[:, rows.rows]), lr)
        return norm, {**metrics, **self._actor_step(batch, noise[-1], lr)}

    def _critic_step(
        self, batch: TransitionBatch, noise: Tensor, uniform: Tensor, lr: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        with torch.no_grad():
            goal = batch.rewards + batch.discounts * self._next_values(batch, noise[-2])
        values = self.critics(batch.observations, None if self.is_discrete else batch.actions)
        taken = self.chosen(values, batch)
        if self.is_discrete:
            gap = discrete_gap(values, taken, config.temperature, batch.mask)
        else:
            gap = sampled_gap(*self._sampled_values(batch, noise, uniform), taken, config.temperature)
        errors = (goal - taken).square().mean(-1).sum()
        penalty = gap.mean(-1).sum()
        norm = self.optimizer.step(errors + config.min_q_weight * penalty, lr, config.grad_clip, only=["critics"])
        metrics = {"critic_loss": errors.detach(), "conservative_gap": gap.detach().mean()}
        return norm, {**metrics, "q_mean": taken.detach().mean()}

    def _next_values(self, batch: TransitionBatch, noise: Tensor) -> Tensor:
        """The value of the policy at the next observations, by the target critics, (B,)."""
        params = self.network.policy(batch.next_observations)
        if self.is_discrete:
            log_probs = masked(params, batch.next_mask).log_softmax(-1)
            none = torch.zeros_like(self.alpha)
            return soft_value(self.target.network(batch.next_observations).amin(0), log_probs, none)
        actions, _ = self._sampled(params, noise)
        values: Tensor = self.target.network(batch.next_observations, actions)
        return values.amin(0).squeeze(-1)

    def _sampled_values(self, batch: TransitionBatch, noise: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """(values (N, B, S), log-densities (B, S)) of sampled actions: uniform ones, and of the policy."""
        number, rows = self.config.num_actions, len(batch)
        actions, densities = [uniform], [uniform.new_full((number, rows), -self.num_inputs * math.log(2.0))]
        with torch.no_grad():
            for i, seen in enumerate((batch.observations, batch.next_observations)):
                params = self.network.policy(seen).expand(number, -1, -1)
                own, log_prob = self._sampled(params, noise[i * number : (i + 1) * number])
                actions, densities = [*actions, own], [*densities, log_prob]
        every = torch.cat(actions)  # (S, B, n)
        repeated = tuple(
            leaf.expand(len(every), *leaf.shape).reshape(-1, *leaf.shape[1:]) for leaf in batch.observations
        )
        values = self.critics(repeated, every.reshape(-1, self.num_inputs)).squeeze(-1)
        return values.reshape(len(values), len(every), rows).transpose(1, 2), torch.cat(densities).T

    def _sampled(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.distribution, SquashedGaussian)
        return self.distribution.reparametrized(params, noise)

    def _actor_step(self, batch: TransitionBatch, noise: Tensor, lr: float) -> dict[str, Tensor]:
        """One update of the policy towards exp(Q/α), at the start towards the data; and of the temperature."""
        alpha, clones = self.alpha, self.updates < self.config.bc_iters
        params = masked(self.network.policy(batch.observations), batch.mask)
        if self.is_discrete:
            log_probs = params.log_softmax(-1)
            zeros = torch.zeros_like(log_probs)
            entropy = soft_value(zeros, log_probs, torch.ones_like(alpha))
            if clones:
                values = self.log_prob(params, batch)
            else:
                with torch.no_grad():
                    quality = self.critics(batch.observations).amin(0)
                values = soft_value(quality, log_probs, torch.zeros_like(alpha))
        else:
            actions, log_prob = self._sampled(params, noise)
            entropy = -log_prob
            if clones:
                values = self.log_prob(params, batch)
            else:
                values = self.critics(batch.observations, actions, trains=False).amin(0).squeeze(-1)
        loss = -(values + alpha * entropy).mean()
        self.optimizer.step(loss, lr, self.config.grad_clip, only=["actor"])
        if self.config.learn_alpha:
            gradient = temperature_gradient(entropy, self.target_entropy(batch.mask))
            self.optimizer.apply([gradient], lr, only=["temperature"])
        return {"actor_loss": loss.detach(), "entropy": entropy.detach().mean(), "alpha": alpha}


class CQL(Algorithm[CQLConfig]):
    """Conservative Q-learning from recorded data.

    >>> with CQL(env="Pendulum-v1", config={"input": "recorded/"}) as trainer:
    ...     result = trainer.train()
    """

    Config = CQLConfig
    Learner = CQLLearner
    policy_class = ConservativePolicy
    with_value = False

    learner: CQLLearner
