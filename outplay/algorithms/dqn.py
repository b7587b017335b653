"""DQN (Mnih et al. 2015) and its extensions.

Double, dueling, n-step, prioritized, distributional, noisy, Ape-X; R2D2 with a recurrent network; parameter noise.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, FiniteFloat, model_validator
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.exploration import QExplorationConfig
from outplay.config import AlgorithmConfig
from outplay.cudagraphs import Scalar
from outplay.learning import parameternoise, qlearning
from outplay.learning.learner import JsonAndTensors
from outplay.learning.offpolicy import ReplayConfig, ReplayLearner, ReplayLearnerState, TransitionBatch
from outplay.learning.parameternoise import AdaptiveNoise
from outplay.learning.sequences import SequenceBatch
from outplay.policies import QPolicy, masked
from outplay.settings import (
    LARGEST,
    Lanes,
    NotNegative,
    Positive,
    is_true,
    one_name_each,
    with_default,
)
from outplay.streams import stream

_APEX = {"initial_epsilon": 0.4, "final_epsilon": 0.4, "epsilon_spread": 7.0}  # Horgan et al. 2018


class DQNExplorationConfig(QExplorationConfig):
    """Exploration by Q-values. With `async`, the defaults are those of Ape-X: a constant ε of 0.4, a spread of 7."""

    with_epsilon: ClassVar[tuple[str, ...]] = ("EpsilonGreedy", "ParameterNoise")

    type: Literal["EpsilonGreedy", "SoftQ", "ParameterNoise", "Random"] = Field(  # type: ignore[assignment]
        "EpsilonGreedy",
        description="EpsilonGreedy: a random action with probability ε. SoftQ: an action with probability ∝ "
        "exp(Q/temperature). ParameterNoise: EpsilonGreedy with noise on the network's parameters. Random: all actions "
        "are random.",
    )
    initial_stddev: Annotated[float, Field(ge=parameternoise.LEAST, le=parameternoise.MOST)] = Field(
        1.0,
        description="ParameterNoise: initial standard deviation σ of the noise; adapted so that the noise changes the "
        "policy as much as the present ε does.",
    )

    @classmethod
    def only_for(cls) -> dict[str, tuple[str, ...]]:
        return {**super().only_for(), "initial_stddev": ("ParameterNoise",)}


class DQNConfig(ReplayConfig):
    """Settings of DQN."""

    num_envs: Lanes = with_default(AlgorithmConfig, "num_envs", 8)
    train_batch_size: Positive = with_default(AlgorithmConfig, "train_batch_size", 256)
    exploration_config: DQNExplorationConfig = Field(DQNExplorationConfig(), description="How to explore.")
    prioritized_replay: bool = Field(
        False, description="Prioritized experience replay (Schaul et al. 2016); with async, true unless given."
    )
    lr: NotNegative = with_default(AlgorithmConfig, "lr", 5e-4)
    grad_clip: Annotated[float, Field(gt=0)] | None = with_default(AlgorithmConfig, "grad_clip", 10.0)
    double_q: bool = Field(True, description="Double Q-learning (van Hasselt et al. 2016).")
    dueling: bool = Field(True, description="Dueling network (Wang et al. 2016).")
    distributional: Literal["c51", "qr"] | None = Field(
        None, description="Distributional Q-learning: categorical (c51) or quantile regression (qr)."
    )
    num_atoms: Annotated[int, Field(ge=2, le=LARGEST)] = Field(51, description="Atoms (c51) or quantiles (qr).")
    v_min: FiniteFloat = Field(-10.0, description="c51: the smallest atom.")
    v_max: FiniteFloat = Field(10.0, description="c51: the largest atom.")
    noisy: bool = Field(False, description="Noisy networks (Fortunato et al. 2018) instead of ε-greedy exploration.")
    noisy_sigma: NotNegative = Field(0.5, description="Initial noise σ₀ of noisy networks.")

    @model_validator(mode="before")
    @classmethod
    def _for_async(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = one_name_each(cls, data)
        if is_true(data.get("async", data.get("async_", False))):
            data = {"prioritized_replay": True, **data}
            given = data.get("exploration_config") or {}
            if isinstance(given, dict) and given.get("type", "EpsilonGreedy") in DQNExplorationConfig.with_epsilon:
                data["exploration_config"] = {**_APEX, **given}
        return data

    @model_validator(mode="after")
    def _check_noisy(self) -> DQNConfig:
        kind = self.exploration_config.type
        if self.noisy and kind != "EpsilonGreedy":
            raise ValueError(f"noisy networks explore by themselves; leave exploration_config.type {kind} out")
        return self

    @model_validator(mode="after")
    def _check_atoms(self) -> DQNConfig:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min ({self.v_min:g}) must be less than v_max ({self.v_max:g})")
        return self


class DQNState(ReplayLearnerState):
    stddev: Annotated[float, Field(ge=parameternoise.LEAST, le=parameternoise.MOST)] | None = None  # ParameterNoise


class DQNLearner(ReplayLearner[DQNConfig]):
    """Q-learning on minibatches from the replay buffer."""

    State = DQNState
    supports_recurrence = True

    def make_networks(self) -> None:
        assert isinstance(self.policy, QPolicy)
        self.q_network = self.policy.q_network
        self.target = self.add_target("target", self.q_network, self.policy.flat)
        exploration = self.config.exploration_config
        self.noise: AdaptiveNoise | None = None
        if exploration.type == "ParameterNoise":
            self.noise = AdaptiveNoise(self.q_network, self.policy.flat, exploration.initial_stddev)

    def before_update(self) -> None:
        if self.config.noisy:
            rng = stream(self.config.seed, "noise", self.updates)
            self.q_network.draw_noise(rng)
            self.target.network.draw_noise(rng)

    @property
    def is_traced(self) -> bool:
        return self.can_trace and self.q_network.is_written_out

    @cached_property
    def uses_one_dnn(self) -> bool:
        return super().uses_one_dnn and not self.q_network.is_written_out  # which calls oneDNN itself

    def step(self, batch: TransitionBatch | SequenceBatch, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        measured = {} if self.noise is None else {"noise_kl": self._adapt(self.noise, batch)}
        if isinstance(batch, TransitionBatch) and self.q_network.is_written_out:
            is_captured = self.captures or self.is_traced
            norm, metrics = self.captured(self._mlp_step, batch, lr) if is_captured else self._mlp_step(batch, lr)
        elif self.captures and isinstance(batch, TransitionBatch):
            norm, metrics = self.captured(self._step, batch, lr)
        else:
            norm, metrics = self._step(batch, lr)
        return norm, {**metrics, **measured}

    def _adapt(self, noise: AdaptiveNoise, batch: TransitionBatch | SequenceBatch) -> Tensor:
        rng = stream(self.config.seed, "parameter noise of an update", self.updates)
        return noise.adapt(batch, self.policy.exploration["epsilon"], rng, self.mean_of_parts)

    def _step(self, batch: TransitionBatch | SequenceBatch, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        losses, errors, values = qlearning.losses(self.q_network, self.target.network, batch, self.config.double_q)
        loss = (losses * batch.weights).mean()
        norm = self.optimizer.step(loss, lr, self.config.grad_clip)
        return norm, {"loss": loss.detach(), "q_mean": values.mean(), "errors": errors}

    @torch.no_grad()
    def _mlp_step(self, batch: TransitionBatch, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        """The same for an MLP whose outputs are values: with gradients that are written out."""
        after = best = self.target.network.record(batch.next_observations).outputs
        observations = batch.observations
        if self.config.double_q:  # one pass for both observations
            observations = tuple(map(torch.cat, zip(observations, batch.next_observations, strict=True)))
        forward = self.q_network.record(observations)
        values = forward.outputs
        if self.config.double_q:
            values, best = values.chunk(2)
        following = after.gather(1, masked(best, batch.next_mask).argmax(-1, keepdim=True)).squeeze(1)
        targets = qlearning.target_values(batch.rewards, batch.discounts, following)
        loss, slopes, errors, values = qlearning.huber_slopes(values, targets, batch.actions, batch.weights)
        norm = self.optimizer.apply(forward.weight_gradients(slopes), lr, self.config.grad_clip)
        return norm, {"loss": loss, "q_mean": values.mean(), "errors": errors}

    def metrics(self) -> dict[str, float]:
        metrics = {**self.policy.exploration, **super().metrics()}
        metrics.pop("noise_key", None)
        return metrics

    def exploration(self) -> dict[str, float]:
        """ε, or the temperature, at the current step; and σ of parameter noise."""
        values = self.config.exploration_config.values(self.timesteps)
        if self.noise is not None:
            values |= {"stddev": self.noise.stddev, "noise_key": float(self.timesteps)}
        return {"epsilon": 0.0} if self.config.noisy else values

    def state_without_replay(self) -> JsonAndTensors:
        state, tensors = super().state_without_replay()
        return state if self.noise is None else {**state, "stddev": self.noise.stddev}, tensors

    def load_without_replay(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_without_replay(state, tensors)
        if self.noise is not None and state.get("stddev") is not None:  # None: a run with another type of exploration
            self.noise.stddev = float(state["stddev"])


class DQN(Algorithm[DQNConfig]):
    """Deep Q-learning.

    >>> with DQN(env="CartPole-v1", config={"n_step": 3, "prioritized_replay": True}) as trainer:
    ...     result = trainer.train()
    """

    Config = DQNConfig
    Learner = DQNLearner
    policy_class = QPolicy
    with_value = False

    learner: DQNLearner
