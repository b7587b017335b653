"""PQN: parallel Q-learning (Gallici et al. 2024): LayerNorm, Q(λ) returns; no replay buffer, no target network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.exploration import QExplorationConfig
from outplay.config import AlgorithmConfig
from outplay.cudagraphs import Scalar
from outplay.fragments import Batch
from outplay.groups import ModelConfig
from outplay.learning import returns
from outplay.learning.learner import JsonAndTensors, Segments, mean_metrics
from outplay.learning.onpolicy import OnPolicyLearner, OnPolicyState, explained_variance
from outplay.learning.optimizers import check_norm
from outplay.learning.qlearning import chosen
from outplay.learning.rows import TargetRows
from outplay.policies import Policy, QPolicy, masked
from outplay.schema import Counter
from outplay.settings import Fraction, Lanes, Positive, with_default
from outplay.spaces import Leaves

Array = np.ndarray


class PQNModelConfig(ModelConfig):
    """The network. Without a target network, LayerNorm keeps Q-learning stable."""

    layer_norm: bool = with_default(ModelConfig, "layer_norm", True)


class PQNExplorationConfig(QExplorationConfig):
    """Exploration by Q-values."""

    epsilon_timesteps: Positive = with_default(QExplorationConfig, "epsilon_timesteps", 50_000)


class PQNConfig(AlgorithmConfig):
    """Settings of PQN."""

    dueling: ClassVar[bool] = False  # an option of the QPolicy

    num_envs: Lanes = with_default(AlgorithmConfig, "num_envs", 32)
    train_batch_size: Positive = with_default(AlgorithmConfig, "train_batch_size", 1024)
    exploration_config: PQNExplorationConfig = Field(PQNExplorationConfig(), description="How to explore.")
    model: PQNModelConfig = Field(PQNModelConfig(), description="The network.")
    grad_clip: Annotated[float, Field(gt=0)] | None = with_default(AlgorithmConfig, "grad_clip", 10.0)
    lambda_: Fraction = Field(0.65, alias="lambda", description="λ of the Q(λ) returns.")
    sgd_minibatch_size: Positive = Field(128, description="Minibatch size in steps.")
    num_sgd_iter: Positive = Field(4, description="Epochs: passes over the batch per iteration.")


class PQNState(OnPolicyState):
    timesteps: Counter


class PQNLearner(OnPolicyLearner[PQNConfig]):
    """Several epochs of minibatch steps per batch, towards Q(λ) returns."""

    State = PQNState

    def __init__(self, policy: Policy, config: PQNConfig, frame_stack: int = 1) -> None:
        super().__init__(policy, config, frame_stack)
        assert isinstance(policy, QPolicy)
        self.q_network = policy.q_network
        self.timesteps = 0
        self.start_iteration()

    def start_iteration(self) -> None:
        """Set the policy's ε, or its temperature. Loaded weights may carry that of another run."""
        self.policy.exploration = self.config.exploration_config.values(self.timesteps)

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        config, lr = self.config, self.lr(timesteps)
        targets = self.targets(batch)
        observations, _, memory, take = self.inputs(batch)
        actions = take(batch.actions)
        rows = TargetRows(observations, self.tensor(actions), self.tensor(take(targets)), memory=memory)
        measured, norms = [], []
        for epoch in range(config.num_sgd_iter):
            for minibatch in self.minibatches(rows, config.sgd_minibatch_size, iteration, epoch, shuffle=True):
                norm, metrics = self.step(minibatch, lr)
                norms.append(norm)
                measured.append(self.weighted(metrics))
        mean_norm = float(torch.stack(norms).mean())
        check_norm(mean_norm, lr)
        before = take(batch.extras["dist"])[np.arange(len(actions)), actions]
        self.timesteps = timesteps + batch.steps
        self.start_iteration()
        return {
            **self.policy.exploration,
            **mean_metrics(self.summed(measured)),
            "grad_norm": mean_norm,
            "explained_variance": explained_variance(before, take(targets)),
            "lr": lr,
        }

    def targets(self, batch: Batch) -> Array:
        """Q(λ) returns (T, N), from the Q-values that were recorded when acting. No weights have changed since."""
        following = returns.next_values(
            batch.extras["dist"].max(-1),
            self.values_of(batch.last_observations, batch.last_policy_state, batch.last_action_mask),
            self.no_bootstrap(batch),
            self.values_of(batch.final_observations, batch.final_states, batch.final_action_mask),
            batch.final_steps,
            batch.final_lanes,
        )
        rewards, ends = self.rewards(batch), self.returns_end(batch)
        with np.errstate(over="ignore", invalid="ignore"):  # the optimizer reports values that are not finite
            return returns.lambda_returns(rewards, following, ends, self.config.gamma, self.config.lambda_)

    @torch.no_grad()
    def values_of(
        self, observations: Leaves, state: Mapping[str, Array] | None = None, mask: Array | None = None
    ) -> Array:
        """The largest Q-value of the allowed actions at each observation. `state` is the recurrent state before it."""
        if not len(observations[0]):
            return np.zeros(0, np.float32)
        memory = self.policy.memory(state or {}) if self.is_recurrent else None
        values = self.q_network.values(self.tensors(observations), memory)
        best: Tensor = masked(values, None if mask is None else self.tensor(mask)).amax(-1)
        return best.cpu().numpy()

    def step(self, rows: TargetRows, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        """One gradient step on a minibatch. Returns the gradient norm and metrics."""
        # Batches of complete episodes have varying sizes: each would need a CUDA graph of its own.
        if not self.captures or self.config.batch_mode == "complete_episodes":
            return self._step(rows, lr)
        return self.captured(self._step, rows, lr)

    def _step(self, rows: TargetRows, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        """Of ½ (Q(s, a) − G)², averaged over the rows."""
        values = chosen(self.q_network.values(rows.observations, rows.memory), rows.actions)
        loss = 0.5 * torch.nn.functional.mse_loss(values, rows.targets)
        norm = self.optimizer.step(loss, lr, self.config.grad_clip)
        return norm, {"loss": loss.detach(), "q_mean": values.detach().mean()}

    def state(self) -> JsonAndTensors:
        state, tensors = super().state()
        return {**state, "timesteps": self.timesteps}, tensors

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self.timesteps = int(state["timesteps"])
        return super().load(state, tensors, segments)


class PQN(Algorithm[PQNConfig]):
    """Parallel Q-learning.

    >>> with PQN(env="CartPole-v1", config={"num_envs": 64, "lambda": 0.9}) as trainer:
    ...     result = trainer.train()
    """

    Config = PQNConfig
    Learner = PQNLearner
    policy_class = QPolicy
    with_value = False
