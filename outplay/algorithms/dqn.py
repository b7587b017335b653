"""DQN (Mnih et al. 2015) and what was added to it: double, dueling, n-step, prioritised, distributional, noisy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.atomic import atomically
from outplay.collect.asynchronous import Agents
from outplay.config import (
    LARGEST,
    AlgorithmConfig,
    ExplorationConfig,
    Fraction,
    Lanes,
    NotNegative,
    Positive,
    Processes,
    Schedule,
    at,
    is_true,
    one_name_each,
)
from outplay.cudagraphs import Scalar
from outplay.engine.slots import count_cpus
from outplay.envs import GroupState, split_envs
from outplay.errors import ConfigError
from outplay.fragments import Batch, Fragment, join
from outplay.learning import qlearning
from outplay.learning.learner import Learner, LearnerState, Segments, mean_metrics
from outplay.learning.optimizers import check_norm
from outplay.learning.qlearning import Drawn
from outplay.policies import Policy, QPolicy, Weights
from outplay.policies.policy import flatten
from outplay.replay import Replay, ReplaySpec, Segment, ShardedReplay, Transitions
from outplay.replay.checking import ReplayState, check_counters, check_segment
from outplay.schema import Counter, FiniteNumber, validated_part
from outplay.streams import stream

Array = np.ndarray

_APEX = {"initial_epsilon": 0.4, "final_epsilon": 0.4, "epsilon_spread": 7.0}  # Horgan et al. 2018
_UPDATES_AT_A_TIME = 8  # before agents are looked after again
_VERSIONS = 10_000  # of the Weights: whose updates are remembered


def _total_envs(given: dict[str, Any]) -> int:
    try:
        return DQNConfig.model_validate(given).total_envs
    except ValidationError:  # told later, with its name
        return 1


class EpsilonConfig(ExplorationConfig):
    """How often an action is drawn at random: ε. With `async`, unless given, 0.4 all along and a spread of 7."""

    type: Literal["EpsilonGreedy"] = Field("EpsilonGreedy", description="The only way.")  # type: ignore[assignment]
    initial_epsilon: Fraction = Field(1.0, description="ε in the beginning.")
    final_epsilon: Fraction = Field(0.05, description="ε in the end.")
    epsilon_timesteps: Positive = Field(10_000, description="When the end is reached; linear in between.")
    epsilon_schedule: Schedule | None = Field(
        None, description="ε as [[step, value], …], linear in between; then the three above are not used."
    )
    epsilon_spread: NotNegative = Field(
        0.0, description="Environment i of N has ε^(1 + spread · i/(N − 1)): some explore much, others little."
    )


class DQNConfig(AlgorithmConfig):
    """Settings of DQN."""

    num_envs: Lanes = Field(8, description="How many environments there are in all.")
    num_env_groups: Lanes = Field(
        1,
        description="Into how many EnvGroups they are split, one worker each at most; with async as many as num_envs.",
    )
    train_batch_size: Positive = Field(256, description="Steps per iteration; at least so many are collected.")
    exploration_config: EpsilonConfig = Field(EpsilonConfig(), description="How often actions are drawn at random.")
    lr: NotNegative = Field(5e-4, description="The learning rate.")
    grad_clip: Annotated[float, Field(gt=0)] | None = Field(
        10.0, description="Gradients longer than this are shortened to it (the norm over all parameters)."
    )
    sgd_minibatch_size: Positive = Field(64, description="Transitions per update.")
    training_intensity: NotNegative = Field(
        0.5, description="Updates per step that is collected after learning has started, whatever the workers."
    )
    learning_starts: Positive = Field(1_000, description="Learning starts when so many steps are kept.")
    buffer_size: Positive = Field(50_000, description="Steps that are kept.")
    replay_shards: Processes = Field(
        0, description="Actors that the replay is spread over; 0 keeps it in the program itself. Part of the result."
    )
    n_step: Positive = Field(1, description="Over how many steps rewards are added up before a value is asked for.")
    double_q: bool = Field(True, description="The network chooses the next action, its target says what it is worth.")
    dueling: bool = Field(True, description="Value and advantages apart, added up (Wang et al. 2016).")
    distributional: Literal["c51", "qr"] | None = Field(
        None, description="Learn the distribution of the value: over fixed atoms (c51) or as quantiles (qr)."
    )
    num_atoms: Annotated[int, Field(ge=2, le=LARGEST)] = Field(51, description="Atoms or quantiles of a distribution.")
    v_min: FiniteFloat = Field(-10.0, description="c51: the least atom.")
    v_max: FiniteFloat = Field(10.0, description="c51: the greatest atom.")
    noisy: bool = Field(
        False, description="Explore by noise in the weights of linear layers (Fortunato et al. 2018), and not by ε."
    )
    noisy_sigma: NotNegative = Field(0.5, description="The size of that noise in the beginning.")
    prioritized_replay: bool = Field(
        False, description="Draw transitions by how wrong the network was about them; with async true unless given."
    )
    prioritized_replay_alpha: Fraction = Field(0.6, description="0 draws all alike, 1 in proportion to the error.")
    prioritized_replay_beta: Fraction = Field(
        0.4, description="How far importance weights make up for that, in the beginning; 1 in the end."
    )
    prioritized_replay_beta_timesteps: Positive = Field(100_000, description="After so many steps it is 1.")
    target_network_update_freq: Positive = Field(500, description="Updates between two updates of the target.")
    tau: Fraction = Field(1.0, description="How far the target then moves towards the network; 1: all the way.")
    async_: bool = Field(
        False, alias="async", description="Agents and learner side by side (Ape-X): faster, not exactly repeatable."
    )
    weights_interval: Positive = Field(
        16,
        description="async: updates between two versions of the Weights."
        " There is a new one after train_batch_size steps, too.",
    )
    most_updates_behind: Positive = Field(
        500, description="async: when so many updates are due, agents wait for the learner."
    )

    @model_validator(mode="before")
    @classmethod
    def _for_async(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = one_name_each(cls, data)
        if is_true(data.get("async", data.get("async_", False))):
            envs = {name: data[name] for name in ("num_envs", "num_envs_per_worker", "num_workers") if name in data}
            data = {"prioritized_replay": True, "num_env_groups": _total_envs(envs), **data}
            given = data.get("exploration_config") or {}
            if isinstance(given, dict):
                data["exploration_config"] = {**_APEX, **given}
        return data

    @model_validator(mode="after")
    def _fits(self) -> DQNConfig:
        if self.batch_mode != "truncate_episodes":
            raise ValueError("batch_mode: DQN learns from steps, not from whole episodes; leave it truncate_episodes")
        if self.async_ and self.num_workers == 0:
            raise ValueError("async: agents run beside the learner, which needs num_workers of at least 1")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min ({self.v_min:g}) must be less than v_max ({self.v_max:g})")
        groups = min(self.total_envs, self.num_env_groups)
        if self.replay_shards > groups:
            raise ValueError(f"replay_shards is {self.replay_shards}, but there are {groups} EnvGroups to spread")
        if self.learning_starts > self.buffer_size:
            raise ValueError("learning_starts is more than buffer_size: learning would never start")
        return self


class DQNState(LearnerState):
    updates: Counter
    owed: Annotated[FiniteNumber, Field(ge=0)]
    timesteps: Counter
    groups: list[int]
    replay: ReplayState


class DQNLearner(Learner[DQNConfig]):
    """Owns the replay, the network and its target.

    `update` is what a synchronous iteration needs. Its parts are for an asynchronous one: `take` steps, `learn` for as
    many updates as are `due` or fewer, `figures` now and then.
    """

    State = DQNState

    def __init__(self, policy: Policy, config: DQNConfig, stack: int = 1) -> None:
        super().__init__(policy, config)
        assert isinstance(policy, QPolicy)
        self.q_network = policy.q_network
        self.target = copy.deepcopy(self.q_network)
        self.target_flat = flatten(self.target, self.device)
        self._num_parameters = sum(parameter.numel() for parameter in policy.parameters)
        alpha = config.prioritized_replay_alpha if config.prioritized_replay else None
        self.replay_spec = ReplaySpec(policy.leaves, config.buffer_size, config.n_step, config.gamma, stack, alpha)
        self.groups = dict(enumerate(split_envs(config.total_envs, config.num_env_groups)))
        least = (config.fragment_length + config.n_step + stack) * config.total_envs
        if config.buffer_size < least:
            raise ConfigError(
                f"buffer_size is {config.buffer_size}, which an iteration fills; at least {least} is needed"
            )
        self._replay: Replay | ShardedReplay | None = None
        self.updates = 0
        self.owed = 0.0
        self.timesteps = 0
        self._pieces: list[dict[str, Tensor]] = []  # metrics of the updates since the last figures
        self.set_epsilon()

    @property
    def replay(self) -> Replay | ShardedReplay:
        """Made when it is first needed, since it is large."""
        if self._replay is None:
            self._replay = self._make_replay()
        return self._replay

    def _make_replay(self) -> Replay | ShardedReplay:
        shards, spec, groups = self.config.replay_shards, self.replay_spec, self.groups
        return ShardedReplay(spec, groups, shards) if shards else spec.make(groups)

    def begin_from_weights(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().begin_from_weights(state, tensors)
        self.target_flat.copy_(self.policy.flat.detach())

    # Learning.

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        self.take(batch.fragments, timesteps + batch.steps)
        self.learn(self.due)
        return self.figures()

    def take(self, fragments: Sequence[Fragment], timesteps: int) -> None:
        """Keep these steps; there are `timesteps` in all now."""
        self.timesteps = timesteps
        self.set_epsilon()
        for fragment in fragments:
            if self.replay.is_ready and self.replay.steps >= self.config.learning_starts:
                self.owed += fragment.steps * self.config.training_intensity
            self.replay.add(fragment, self.rewards(fragment), self.over(fragment))

    @property
    def due(self) -> int:
        """How many updates the steps so far are worth, beyond those that were made."""
        return int(self.owed)

    def learn(self, updates: int) -> None:
        config = self.config
        lr = self.lr(self.timesteps)
        end = float(config.prioritized_replay_beta_timesteps)
        beta = at([(0.0, config.prioritized_replay_beta), (end, 1.0)], 1.0, self.timesteps)
        first = self.updates
        rngs = (stream(config.seed, "replay", number) for number in range(first, first + updates))
        # Both networks see observations normalised alike; only the parameters of the target stay behind.
        self.target_flat[self._num_parameters :].copy_(self.policy.flat[self._num_parameters :].detach())
        for drawn in self.replay.draw(config.sgd_minibatch_size, rngs, beta):
            if config.noisy:
                rng = stream(config.seed, "noise", self.updates)
                self.q_network.draw_noise(rng)
                self.target.draw_noise(rng)
            norm, metrics = self.step(self.here(drawn), lr)
            errors = metrics.pop("errors")
            if config.prioritized_replay:
                if not errors.isfinite().all():
                    check_norm(math.nan, lr)
                self.replay.update(drawn.places, errors.cpu().numpy())
            self._follow()
            self._pieces.append({**metrics, "grad_norm": norm})
        if self._pieces:  # on a GPU nothing was looked at so far
            check_norm(float(self._pieces[-1]["grad_norm"]), lr)

    @torch.no_grad()
    def _follow(self) -> None:
        """One more update was made: the target follows, if it is time."""
        self.updates += 1
        self.owed -= 1
        if self.updates % self.config.target_network_update_freq == 0:
            end = self._num_parameters
            self.target_flat[:end].lerp_(self.policy.flat[:end].detach(), self.config.tau)

    def here(self, drawn: Transitions) -> Drawn:
        return Drawn(
            self.tensors(drawn.observations),
            self.tensor(drawn.actions),
            self.tensor(drawn.rewards),
            self.tensors(drawn.next_observations),
            self.tensor(drawn.discounts),
            self.tensor(drawn.weights),
        )

    def step(self, drawn: Drawn, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn from a minibatch: the norm of the gradient, and metrics; among them how wrong the network was, (B,)."""
        return self.recorded(self._step, drawn, lr) if self.records else self._step(drawn, lr)

    def _step(self, drawn: Drawn, lr: Scalar) -> tuple[Tensor, dict[str, Tensor]]:
        losses, errors, values = qlearning.losses(self.q_network, self.target, drawn, self.config.double_q)
        loss = (losses * drawn.weights).mean()
        norm = self.optimizer.step(loss, lr, self.config.grad_clip)
        return norm, {"loss": loss.detach(), "q_mean": values.mean(), "errors": errors}

    def figures(self) -> dict[str, float]:
        """The means over the updates since they were last asked for."""
        pieces, self._pieces = self._pieces, []
        means = mean_metrics(pieces) if pieces else {}
        return {
            "epsilon": float(self.q_network.epsilon),
            "replay_steps": float(self.replay.steps),
            "updates": float(self.updates),
            "lr": self.lr(self.timesteps),
            **means,
        }

    @torch.no_grad()
    def set_epsilon(self) -> None:
        """To what it is to be after so many steps."""
        config = self.config.exploration_config
        points = [(0.0, config.initial_epsilon), (float(config.epsilon_timesteps), config.final_epsilon)]
        epsilon = at(config.epsilon_schedule or points, 0.0, self.timesteps)
        self.q_network.epsilon.fill_(0.0 if self.config.noisy else epsilon)

    # Saving.

    def remember(self) -> Callable[[], None]:
        """The replay is not copied: from now on it remembers what is overwritten."""
        go_back = self._way_back(*self._without_replay(), self._load_without_replay)
        replay, pieces = self._replay, list(self._pieces)
        replay_back = None if replay is None else replay.remember()

        def all_back() -> None:
            go_back()
            self._replay, self._pieces = replay, list(pieces)
            if replay_back is not None:
                replay_back()

        return all_back

    def _without_replay(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        state, tensors = super().state()
        state |= {"updates": self.updates, "owed": self.owed, "timesteps": self.timesteps}
        return state, tensors

    def _saved_tensors(self) -> dict[str, Tensor]:
        return {**super()._saved_tensors(), "target": self.target_flat}

    def check(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> None:
        super().check(state, tensors, segments)
        checked = validated_part(DQNState, state)
        config = self.config
        steps = config.fragment_length * config.total_envs + config.least_steps
        if checked.owed > 2 * (steps * config.training_intensity + config.most_updates_behind) + 1:
            raise ValueError(f"owed: {checked.owed:g} updates are more than iterations leave behind")
        if checked.groups == list(self.groups.values()):
            check_counters(self.replay_spec, self.groups, checked.replay, _replay_arrays(tensors), segments)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        state, tensors = self._without_replay()
        replay, arrays = self.replay.state()
        state |= {"replay": replay, "groups": list(self.groups.values())}
        return state, {**tensors, **{f"replay.{name}": self.tensor(array).cpu() for name, array in arrays.items()}}

    def segments(self, known: Collection[str]) -> Segments:
        return self.replay.segments(known)

    def _load_without_replay(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load(state, tensors, {})
        self.updates, self.owed, self.timesteps = int(state["updates"]), float(state["owed"]), int(state["timesteps"])
        if tensors["target"].shape != self.target_flat.shape:
            raise ValueError(f"the target network has {tensors['target'].numel()} numbers, not {len(self.target_flat)}")
        self.target_flat.copy_(tensors["target"])

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self._load_without_replay(state, tensors)
        self._replay = None
        if state["groups"] != list(self.groups.values()):  # the environments begin anew, and so does the replay
            self.owed = 0.0
            return False
        replay = self._make_replay()
        replay.load(state["replay"], _replay_arrays(tensors))
        began: dict[int, Array] = {}  # by EnvGroup: of the last step that was written
        for name in sorted(segments):
            arrays, group = segments[name](), Segment.named(name).group
            lanes, num_actions = self.groups[group], self.q_network.num_actions
            began[group] = check_segment(self.replay_spec, lanes, num_actions, name, arrays, began.get(group))
            replay.write(name, arrays)
        self._replay = replay  # now that all of it is there
        return True


def _replay_arrays(tensors: dict[str, Tensor]) -> dict[str, Array]:
    prefix = "replay."
    return {name.removeprefix(prefix): t.numpy() for name, t in tensors.items() if name.startswith(prefix)}


class DQN(Algorithm):
    """Deep Q-learning.

    >>> with DQN(env="CartPole-v1", config={"n_step": 3, "prioritized_replay": True}) as trainer:
    ...     result = trainer.train()
    """

    Config = DQNConfig
    Learner = DQNLearner
    policy_class = QPolicy
    with_value = False

    config: DQNConfig
    learner: DQNLearner

    def _make_learner(self) -> DQNLearner:
        self._agents: Agents | None = None
        self._sent: Weights | None = None  # the newest version
        self._sent_at = 0  # steps
        self._updates_at: dict[int, int] = {}  # of each version
        self._lags: list[int] = []  # in updates, of the Fragments since the last figures
        return DQNLearner(self.policy, self.config, self.env_spec.stacked_frames)

    @property
    def num_workers(self) -> int:
        if not self.config.async_:
            return super().num_workers
        wanted = self.config.num_workers
        return min(count_cpus(), len(self.group_sizes)) if wanted == "auto" else int(wanted)

    def _iterate(self) -> dict[str, float]:
        self.learner.set_epsilon()  # weights that were loaded have that of another run
        return self._iterate_async() if self.config.async_ else super()._iterate()

    def _iterate_async(self) -> dict[str, float]:
        """Take what agents send, learn as much as is due, until there are enough steps."""
        enough = self.timesteps + self.config.least_steps
        agents = self._agents = self._agents or Agents(self.workers)
        while self.timesteps < enough:
            if self.learner.due < self.config.most_updates_behind:
                agents.ask(self._newest_weights())
            with self.timers("wait"):
                ready = agents.ready(wait=not self.learner.due)
            with self.timers("take"):
                for place in ready:
                    self._take(agents.take(place))
            with self.timers("learn"), self._learner_threads():
                self.learner.learn(min(self.learner.due, _UPDATES_AT_A_TIME))
        lags, self._lags = self._lags, []
        lag = {"policy_lag": float(np.mean(lags)), "policy_lag_max": float(max(lags))} if lags else {}
        return {**self.learner.figures(), **lag}

    def _take(self, fragments: list[Fragment]) -> None:
        self._look_at_rebuilding(fragments)
        self._lags += [self.learner.updates - self._updates_at.get(fragment.version, 0) for fragment in fragments]
        self._count(fragments)
        self.learner.take(fragments, self.timesteps)
        if self.config.normalize_observations and fragments:
            self.learner.normalise_observations(join(fragments))

    def _newest_weights(self) -> Weights:
        """A new version, if the learner has gone on far enough since the last; or ε and normalisers, with the steps."""
        learned = 0 if self._sent is None else self.learner.updates - self._updates_at[self._sent.version]
        seen = self.timesteps - self._sent_at
        if self._sent is None or learned >= self.config.weights_interval or seen >= self.config.least_steps:
            self._sent, self._sent_at = self._snapshot(), self.timesteps
            self._updates_at[self._sent.version] = self.learner.updates
            self._updates_at.pop(self._sent.version - _VERSIONS, None)
        return self._sent

    def _drop_workers(self, states: list[GroupState] | None) -> None:
        self._agents = self._sent = None
        self._lags = []
        super()._drop_workers(states)

    def _rest(self) -> None:
        if self._agents is not None:
            atomically(self, "coming to rest", partial(self._drain, self._agents))

    def _drain(self, agents: Agents) -> None:
        while places := agents.under_way():
            for place in places:
                self._take(agents.take(place))
        with self._learner_threads():
            self.learner.learn(self.learner.due)
