"""DQN (Mnih et al. 2015) and what was added to it: double, dueling, n-step, prioritised, distributional, noisy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from outplay import qlearning
from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.learner import Learner, mean_metrics
from outplay.config import AlgorithmConfig, Fraction, NotNegative, Positive, QConfig, at
from outplay.fragments import Batch
from outplay.optimizers import check_norm
from outplay.policies import Policy, QPolicy
from outplay.policies.policy import flatten
from outplay.replay import PrioritizedReplay, Replay, Transitions
from outplay.streams import stream


class DQNConfig(AlgorithmConfig):
    """Settings of DQN."""

    num_envs: Positive = Field(8, description="How many environments there are in all.")
    num_env_groups: Positive = Field(1, description="Into how many EnvGroups they are split.")
    train_batch_size: Positive = Field(64, description="Steps per iteration; at least so many are collected.")
    lr: NotNegative = Field(5e-4, description="The learning rate.")
    grad_clip: float | None = Field(10.0, gt=0, description="Gradients longer than this are shortened to it.")
    sgd_minibatch_size: Positive = Field(64, description="Transitions per update.")
    training_intensity: NotNegative = Field(
        0.5, description="Updates per step that was collected, whatever the number of workers."
    )
    learning_starts: Positive = Field(1_000, description="Steps that are collected before the first update.")
    buffer_size: Positive = Field(50_000, description="Steps that are kept.")
    n_step: Positive = Field(1, description="Over how many steps rewards are added up before a value is asked for.")
    double_q: bool = Field(True, description="The network chooses the next action, its target says what it is worth.")
    q: QConfig = Field(QConfig(), description="How the network says what actions are worth.")
    prioritized_replay: bool = Field(False, description="Draw transitions by how wrong the network was about them.")
    prioritized_replay_alpha: Fraction = Field(0.6, description="0 draws all alike, 1 in proportion to the error.")
    prioritized_replay_beta: Fraction = Field(
        0.4, description="How far importance weights make up for that, in the beginning; 1 in the end."
    )
    prioritized_replay_beta_timesteps: Positive = Field(100_000, description="After so many steps it is 1.")
    target_network_update_freq: Positive = Field(500, description="Updates between two updates of the target.")
    tau: Fraction = Field(1.0, description="How far the target then moves towards the network; 1: all the way.")
    initial_epsilon: Fraction = Field(1.0, description="How often an action is drawn at random, in the beginning.")
    final_epsilon: Fraction = Field(0.05, description="The same, in the end.")
    epsilon_timesteps: Positive = Field(10_000, description="When the end is reached; linear in between.")


class DQNLearner(Learner[DQNConfig]):
    """Owns the replay, the network and its target."""

    def __init__(self, policy: Policy, config: DQNConfig) -> None:
        super().__init__(policy, config)
        assert isinstance(policy, QPolicy)
        self.q_network = policy.q_network
        self.target = copy.deepcopy(self.q_network)
        self.target_flat = flatten(self.target, self.device)
        self.updates = 0
        self.owed = 0.0
        self.replay: Replay | None = None
        self._set_epsilon(0)

    def _make_replay(self, lanes: int) -> Replay:
        config = self.config
        arguments: dict[str, Any] = {"n_step": config.n_step, "gamma": config.gamma}
        if config.prioritized_replay:
            alpha = config.prioritized_replay_alpha
            return PrioritizedReplay(self.policy.leaves, lanes, config.buffer_size, alpha=alpha, **arguments)
        return Replay(self.policy.leaves, lanes, config.buffer_size, **arguments)

    @torch.no_grad()
    def _set_epsilon(self, timesteps: int) -> None:
        config = self.config
        schedule = [(0.0, config.initial_epsilon), (float(config.epsilon_timesteps), config.final_epsilon)]
        self.q_network.epsilon.fill_(0.0 if config.q.noisy else at(schedule, 0.0, timesteps))

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        config = self.config
        after = timesteps + batch.steps
        self._set_epsilon(after)
        if self.replay is None:
            self.replay = self._make_replay(batch.rewards.shape[1])
        self.replay.add(batch, self.rewards(batch), self.over(batch))
        metrics = {"epsilon": float(self.q_network.epsilon), "replay_steps": float(len(self.replay))}
        if after < config.learning_starts or not len(self.replay):
            return {**metrics, "updates": float(self.updates)}
        self.owed += batch.steps * config.training_intensity
        lr, pieces = self.lr(timesteps), []
        while self.owed >= 1:
            self.owed -= 1
            pieces.append(self._update(lr, after))
        metrics |= {"updates": float(self.updates), "lr": lr}
        return {**metrics, **(mean_metrics(pieces) if pieces else {})}

    def _update(self, lr: float, timesteps: int) -> dict[str, Tensor]:
        """One step down the loss of a minibatch."""
        config, replay = self.config, self.replay
        rng = stream(config.seed, "replay", self.updates)
        if isinstance(replay, PrioritizedReplay):
            end = float(config.prioritized_replay_beta_timesteps)
            beta = at([(0.0, config.prioritized_replay_beta), (end, 1.0)], 1.0, timesteps)
            drawn = replay.sample(config.sgd_minibatch_size, rng, beta)
        else:
            assert replay is not None
            drawn = replay.sample(config.sgd_minibatch_size, rng)
        if config.q.noisy:
            self.q_network.draw_noise(rng)
            self.target.draw_noise(rng)
        losses, values = self.losses(drawn)
        loss = (losses * self.tensor(drawn.weights)).mean()
        norm = self.optimizer.step(loss, lr, config.grad_clip)
        check_norm(float(norm), lr)
        if isinstance(replay, PrioritizedReplay):
            replay.update(drawn.places, losses.detach().cpu().numpy())
        self.updates += 1
        if self.updates % config.target_network_update_freq == 0:
            self.target_flat.lerp_(self.policy.flat.detach(), config.tau)
        return {"loss": loss.detach(), "q_mean": values.mean(), "grad_norm": norm}

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        state, tensors = super().state()
        kept = {} if self.replay is None else self.replay.state()
        state |= {"updates": self.updates, "owed": self.owed}
        if self.replay is not None:
            state |= {"lanes": self.replay.lanes, "added": self.replay.added, "highest": self.replay.highest}
        arrays = {f"replay.{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in kept.items()}
        return state, {**tensors, "target": self.target_flat, **arrays}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load(state, tensors)
        self.updates, self.owed = int(state["updates"]), float(state["owed"])
        self.target_flat.copy_(tensors["target"])
        self.replay = None
        if "lanes" in state:
            self.replay = self._make_replay(int(state["lanes"]))
            arrays = {name[7:]: tensor.numpy() for name, tensor in tensors.items() if name.startswith("replay.")}
            self.replay.load(int(state["added"]), float(state["highest"]), arrays)

    def losses(self, drawn: Transitions) -> tuple[Tensor, Tensor]:
        """(loss, value of the action that was taken) of each transition, (B,) each."""
        network = self.q_network
        actions = self.tensor(drawn.actions)
        rewards, discounts = self.tensor(drawn.rewards), self.tensor(drawn.discounts)
        following = self.tensors(drawn.next_observations)
        outputs = network(self.tensors(drawn.observations))
        taken = qlearning.chosen(outputs, actions)
        with torch.no_grad():
            values = qlearning.chosen(network.expected(outputs), actions)
            after = self.target(following)
            best = network.values(following) if self.config.double_q else self.target.expected(after)
            next_taken = qlearning.chosen(after, best.argmax(-1))
        if network.kind == "c51":
            with torch.no_grad():
                goal = qlearning.projected(network.atoms, next_taken.softmax(-1), rewards, discounts)
            return qlearning.cross_entropy(taken, goal), values
        goal = qlearning.target_values(rewards[:, None], discounts[:, None], next_taken)
        if network.kind == "qr":
            return qlearning.quantile_huber(taken, goal), values
        return torch.nn.functional.smooth_l1_loss(taken, goal, reduction="none").squeeze(-1), values


class DQN(Algorithm):
    """Deep Q-learning.

    >>> with DQN(env="CartPole-v1", config={"n_step": 3, "q": {"dueling": True}}) as trainer:
    ...     result = trainer.train()
    """

    Config = DQNConfig
    Learner = DQNLearner
    policy_class = QPolicy
    with_value = False
