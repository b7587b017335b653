"""Off-policy learning from a replay buffer: what DQN uses, and SAC, TD3 and offline algorithms can share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import numpy as np
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor, nn

from outplay.config import AsyncConfig
from outplay.cudagraphs import Minibatch
from outplay.errors import ConfigError
from outplay.fragments import Batch, Fragment
from outplay.learning.learner import JsonAndTensors, Learner, LearnerState, Segments, mean_metrics
from outplay.learning.optimizers import ParameterGroup, check_norm
from outplay.learning.sequences import BurnIn, SequenceBatch, recurrence_of, same_length, with_previous
from outplay.learning.shares import distributed
from outplay.learning.targets import TargetNetwork
from outplay.learning.traces import one_dnn
from outplay.masks import mask_sizes
from outplay.policies import Policy
from outplay.policies.fused import FEW_INPUTS
from outplay.replay import (
    Replay,
    ReplaySpec,
    Sample,
    Segment,
    Sequences,
    ShardedReplay,
    mask_leaf,
    with_masks,
    with_missing_masks,
)
from outplay.replay.checking import ReplayState, check_counters, check_segment
from outplay.schema import Counter, FiniteNumber, validated_part
from outplay.settings import LARGEST, Fraction, NotNegative, Positive, Processes, at, refuse_unused
from outplay.spaces import Leaves
from outplay.streams import stream

if TYPE_CHECKING:
    from outplay.learning.communicator import Communicator

Array = np.ndarray
N = TypeVar("N", bound=nn.Module)

_LARGE = 128  # rows and units; below, a call of oneDNN takes longer than that of MKL


class ReplayConfig(AsyncConfig):
    """Settings that algorithms with a replay buffer share."""

    sgd_minibatch_size: Positive = Field(64, description="Minibatch size: transitions per update.")
    training_intensity: NotNegative = Field(
        0.5, description="Updates per environment step once learning has started, for any number of workers."
    )
    learning_starts: Positive = Field(1_000, description="Steps in the replay buffer before learning starts.")
    buffer_size: Positive = Field(50_000, description="Capacity of the replay buffer in steps.")
    replay_shards: Processes = Field(
        0, description="Actors that share the replay buffer; 0 keeps it in the main process. Part of the result."
    )
    n_step: Positive = Field(1, description="n of the n-step return.")
    burn_in_len: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        10,
        description="Recurrent networks, of DQN only: steps before each sequence that only update the stored state "
        "(R2D2). The start of an episode needs none.",
    )
    prioritized_replay: bool = Field(False, description="Prioritized experience replay (Schaul et al. 2016).")
    prioritized_replay_alpha: Fraction = Field(0.6, description="Priority exponent α; 0 samples uniformly.")
    prioritized_replay_beta: Fraction = Field(0.4, description="Initial importance-sampling exponent β; annealed to 1.")
    prioritized_replay_beta_timesteps: Positive = Field(100_000, description="Environment steps until β is 1.")
    target_network_update_freq: Positive = Field(500, description="Updates between two target network updates.")
    tau: Fraction = Field(1.0, description="Target network update rate τ; 1 copies the weights.")

    @model_validator(mode="after")
    def _check_replay(self) -> ReplayConfig:
        if self.batch_mode != "truncate_episodes":
            name = type(self).__name__.removesuffix("Config")
            raise ValueError(
                f"batch_mode: {name} learns from single steps or short sequences; leave it truncate_episodes"
            )
        if self.replay_shards > self.num_groups:
            raise ValueError(
                f"replay_shards is {self.replay_shards}, but there are only {self.num_groups} EnvGroups; set it to at "
                f"most {self.num_groups}, or num_env_groups to at least {self.replay_shards}"
            )
        if self.learning_starts > self.buffer_size:
            raise ValueError(
                f"learning_starts ({self.learning_starts}) is more than buffer_size ({self.buffer_size}), so learning "
                "would never start; set a larger buffer_size, or a smaller learning_starts"
            )
        if not self.prioritized_replay:
            names = [f"prioritized_replay_{name}" for name in ("alpha", "beta", "beta_timesteps")]
            refuse_unused(self, names, "prioritized_replay: false")
        return self


C = TypeVar("C", bound=ReplayConfig)


class ReplayLearnerState(LearnerState):
    updates: Counter
    owed: Annotated[FiniteNumber, Field(ge=0)]
    timesteps: Counter
    groups: list[int]
    replay: ReplayState


@dataclass
class TransitionBatch(Minibatch):
    """Transitions on the learner's device. `weights` are importance-sampling weights."""

    observations: tuple[Tensor, ...]
    actions: Tensor
    rewards: Tensor  # n-step
    next_observations: tuple[Tensor, ...]
    discounts: Tensor  # of the bootstrapped value: γ^n, 0 after a termination
    weights: Tensor
    mask: Tensor | None = None  # (B, n): actions allowed at `observations`; None without action masks
    next_mask: Tensor | None = None  # (B, n): actions allowed at `next_observations`
    noise: Tensor | None = None  # random numbers of the update, for learners that need them


class ReplayLearner(Learner[C], ABC):
    """Learns from a replay buffer, with target networks. A subclass implements `step`, and perhaps `before_update`.

    Updates are owed per environment step (`training_intensity`), so their number does not depend on timing.
    """

    State: ClassVar[type[LearnerState]] = ReplayLearnerState
    supports_recurrence = False  # a subclass whose `step` takes a SequenceBatch, too, sets it

    def __init__(self, policy: Policy, config: C, frame_stack: int = 1) -> None:
        self.targets: dict[str, TargetNetwork[Any]] = {}  # by the name of their tensor in checkpoints
        super().__init__(policy, config, frame_stack)
        alpha = config.prioritized_replay_alpha if config.prioritized_replay else None
        is_discrete = isinstance(policy.action_space, spaces.Discrete)
        self.has_masks = policy.spec.with_masks
        mask = (mask_leaf(sum(mask_sizes(policy.action_space))),) if self.has_masks else ()
        self.recurrence, previous = recurrence_of(policy, config.burn_in_len)
        self.has_previous = bool(previous)
        self.replay_spec = ReplaySpec(
            policy.leaves + previous + mask,
            config.buffer_size,
            config.n_step,
            config.gamma,
            frame_stack,
            alpha,
            action_shape=self.distribution.shape,
            num_actions=self.distribution.num_params if is_discrete else None,
            recurrence=self.recurrence,
        )
        self.groups = dict(enumerate(config.group_sizes))
        spare = 0 if self.recurrence is None else self.recurrence.length  # in which a sequence starts
        least = (config.fragment_length + self.replay_spec.span + spare + frame_stack) * config.total_envs
        if config.buffer_size < least:
            raise ConfigError(
                f"buffer_size is {config.buffer_size}, less than one iteration fills; set it to at least {least}"
            )
        self._replay: Replay | ShardedReplay | None = None
        self.owed = 0.0  # updates that collected steps are worth, beyond those made
        self.timesteps = 0
        self._metrics: list[dict[str, Tensor]] = []  # of the updates since the last call of metrics()
        self.set_exploration()

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        """One group. Updates are small and many, so Adam is one operation."""
        return [
            ParameterGroup("policy", self.policy.parameters, self.policy.flat, self.config.optimizer, is_fused=True)
        ]

    def exploration(self) -> dict[str, float]:
        """The policy's exploration values at the current step."""
        return {}

    def set_exploration(self) -> None:
        self.policy.exploration = self.exploration()

    def start_iteration(self) -> None:
        self.set_exploration()  # loaded weights may carry the values of another run

    def add_target(self, name: str, source: N, flat: Tensor) -> TargetNetwork[N]:
        """A target network, updated after every `target_network_update_freq` updates and saved as tensor `name`."""
        target = self.targets[name] = TargetNetwork(source, flat)
        return target

    @property
    def replay(self) -> Replay | ShardedReplay:
        """The replay buffer, allocated when first used: it is large."""
        if self._replay is None:
            self._replay = self._make_replay()
        return self._replay

    def _make_replay(self) -> Replay | ShardedReplay:
        shards, spec, groups = self.config.replay_shards, self.replay_spec, self.groups
        return ShardedReplay(spec, groups, shards) if shards else spec.make(groups)

    # Learning.

    @abstractmethod
    def step(self, batch: Any, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        """One update on a minibatch: (gradient norm, metrics). The metric "errors" holds the TD error of each row.

        `batch` is a TransitionBatch; for a recurrent network, a SequenceBatch.
        """

    def before_update(self) -> None:
        """Called before each update."""

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        self.take(batch.fragments, timesteps + batch.steps)
        self.learn(self.due)
        return self.metrics()

    def take(self, fragments: Sequence[Fragment], timesteps: int) -> None:
        """Add Fragments to the replay buffer; `timesteps` include them."""
        self.timesteps = timesteps
        for fragment in fragments:
            if self.replay.is_ready and self.replay.steps >= self.config.learning_starts:
                self.owed += fragment.steps * self.config.training_intensity
            stored = with_previous(fragment) if self.has_previous else fragment
            stored = with_masks(stored) if self.has_masks else stored
            self.replay.add(stored, self.rewards(fragment), self.no_bootstrap(fragment))
        self.set_exploration()

    @property
    def due(self) -> int:
        return int(self.owed)

    def update_on_all(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        return self.update(batch, timesteps, iteration)  # `learn` runs on all

    def learn(self, updates: int) -> None:
        if updates > 0:
            self.on_all("make_updates", updates, self.timesteps)
        else:
            self.make_updates(0, self.timesteps)
        self.set_exploration()

    def make_updates(self, updates: int, timesteps: int) -> None:
        """Make this many updates, as one of the learners. Only the first one has the replay buffer."""
        config, self.timesteps = self.config, timesteps
        self.set_exploration()
        lr = self.lr(timesteps)
        for target in self.targets.values():
            target.copy_buffers()
        measured = []
        for batch, places in self._minibatches(updates):
            self.before_update()
            with self.products():
                norm, metrics = self.step(batch, lr)
            errors = metrics.pop("errors")
            if config.prioritized_replay:
                errors = self.gathered(errors)
                if not errors.isfinite().all():
                    check_norm(math.nan, lr)
                if self.is_first:
                    self.replay.update(places, errors.cpu().numpy())
            self.updates += 1
            self.owed -= 1
            if self.updates % config.target_network_update_freq == 0:
                for target in self.targets.values():
                    target.update(config.tau)
            measured.append(self.weighted({**metrics, "grad_norm": norm}))
        measured = self.summed(measured)
        for name in ("grad_norm", "actor_grad_norm"):  # on a GPU, norms have not been checked so far
            if norms := [found[name] for found in measured if name in found]:
                check_norm(float(norms[-1]), lr)
        if self.is_first:
            self._metrics += measured

    def products(self) -> AbstractContextManager[None]:
        """Where updates run: with oneDNN's matrix products, unless minibatch or network are small.

        In bfloat16, large products are oneDNN's in any case, and those with few inputs are faster with MKL.
        """
        return one_dnn() if self.uses_one_dnn else nullcontext()

    @cached_property
    def uses_one_dnn(self) -> bool:
        widths = [part.out_features for part in self.network.modules() if isinstance(part, nn.Linear)]
        is_large = min(max(widths, default=0), self.config.sgd_minibatch_size) >= _LARGE
        is_low = self.config.model.precision == "bfloat16"
        is_faster = not is_low or self.network.encoder.num_features >= FEW_INPUTS
        return is_large and is_faster and self.device.type == "cpu"

    def _minibatches(self, updates: int) -> Iterator[tuple[Any, Array]]:
        """The minibatches of updates, and the places of their rows in the replay buffer."""
        drawn = self._from_blocks(updates) if self.communicator is None else self._own_parts(self.communicator, updates)
        return ((self.with_noise(rows, number), places) for number, (rows, places) in enumerate(drawn, self.updates))

    def _own_parts(self, communicator: Communicator, updates: int) -> Iterator[tuple[Any, Array]]:
        """This learner's parts of the minibatches, with several learners."""
        drawn = distributed(communicator, lambda: self.replay.draw(*self._sampling(updates)), updates)
        return ((self.to_device(rows), places) for rows, places in drawn)

    def _from_blocks(self, updates: int) -> Iterator[tuple[Any, Array]]:
        """The minibatches: those that are read at a time are brought to the device at a time."""
        for block, count in self.replay.blocks(*self._sampling(updates)):
            batch, size = self.to_device(block), len(block.places) // count
            if count == 1:
                yield batch, block.places
                continue
            assert isinstance(batch, Minibatch)
            for rows in (slice(i * size, (i + 1) * size) for i in range(count)):
                yield batch.rows(rows), block.places[rows]

    def with_noise(self, batch: Any, number: int) -> Any:  # noqa: ARG002
        """The minibatch of an update with its random numbers, which depend on the number of the update only."""
        return batch

    def _sampling(self, updates: int) -> tuple[int, Iterator[np.random.Generator], float]:
        """How the next minibatches are sampled: (transitions or sequences, the random stream of each, β)."""
        config = self.config
        end = float(config.prioritized_replay_beta_timesteps)
        beta = at([(0.0, config.prioritized_replay_beta), (end, 1.0)], 1.0, self.timesteps)
        rngs = (stream(config.seed, "replay", number) for number in range(self.updates, self.updates + updates))
        size = config.sgd_minibatch_size
        number = size if self.recurrence is None else max(1, size // self.recurrence.length)
        return number, rngs, beta

    def to_device(self, drawn: Sample) -> TransitionBatch | SequenceBatch:
        if isinstance(drawn, Sequences):
            return self._sequences_to_device(drawn)
        leaves = len(self.policy.leaves)  # the mask is stored behind them
        masks = (drawn.observations[-1], drawn.next_observations[-1]) if self.has_masks else ()
        return TransitionBatch(
            self.tensors(drawn.observations[:leaves]),
            self.tensor(drawn.actions),
            self.tensor(drawn.rewards),
            self.tensors(drawn.next_observations[:leaves]),
            self.tensor(drawn.discounts),
            self.tensor(drawn.weights),
            *(self.tensor(mask) for mask in masks),
        )

    def _sequences_to_device(self, drawn: Sequences) -> SequenceBatch:
        assert self.recurrence is not None
        leaves = len(self.policy.leaves)  # the previous action and reward are stored behind them, then the mask

        def inputs(rows: Leaves) -> tuple[tuple[Tensor, ...], Tensor | None]:
            return self.tensors(rows[:leaves]), self.tensor(rows[leaves]) if self.has_previous else None

        memory = self.policy.memory(dict(zip(self.recurrence.initial, drawn.states, strict=True)))
        memory.lengths = drawn.lengths
        observations, memory.previous = inputs(drawn.observations)
        burn_in = None
        if drawn.burns_in.any():
            chosen, (before, previous) = self.tensor(np.flatnonzero(drawn.burns_in)), inputs(drawn.burn_in)
            burn_in = BurnIn(chosen, before, same_length(memory.state, chosen, self.recurrence.burn_in, previous))
        steps = drawn.steps
        following = steps + drawn.ahead
        return SequenceBatch(
            observations,
            memory,
            burn_in,
            self.tensor(steps),
            self.tensor(following),
            self.tensor(drawn.actions),
            self.tensor(drawn.rewards),
            self.tensor(drawn.discounts),
            self.tensor(drawn.weights),
            *(self.tensor(drawn.observations[-1][rows]) for rows in ((steps, following) if self.has_masks else ())),
        )

    def metrics(self) -> dict[str, float]:
        minibatches, self._metrics = self._metrics, []
        return {
            "replay_steps": float(self.replay.steps),
            "updates": float(self.updates),
            "lr": self.lr(self.timesteps),
            **self.policy.exploration,
            **(mean_metrics(minibatches) if minibatches else {}),
        }

    # State.

    def rollback_point(self) -> Callable[[], None]:
        """The replay buffer is not copied: from now on it keeps an undo log."""
        restore_rest = self.restorer(*self.state_without_replay(), self.load_without_replay)
        replay, metrics = self._replay, list(self._metrics)
        restore_replay = None if replay is None else replay.remember()

        def restore() -> None:
            restore_rest()
            self._replay, self._metrics = replay, list(metrics)
            if restore_replay is not None:
                restore_replay()

        return restore

    def start_from_weights(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().start_from_weights(state, tensors)
        self.start_networks(tensors)
        for target in self.targets.values():
            target.reset()

    def state_without_replay(self) -> JsonAndTensors:
        """What `state` returns, but the replay buffer. A subclass with more state extends it."""
        state, tensors = super().state()
        return {**state, "updates": self.updates, "owed": self.owed, "timesteps": self.timesteps}, tensors

    def mirrored(self) -> JsonAndTensors:
        """Other learners have no replay buffer."""
        state, tensors = self.state_without_replay()
        return {**state, "owed": 0.0}, tensors

    def load_mirrored(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.load_without_replay(state, tensors)

    def state(self) -> JsonAndTensors:
        state, tensors = self.state_without_replay()
        replay, arrays = self.replay.state()
        state |= {"replay": replay, "groups": list(self.groups.values())}
        return state, {**tensors, **{f"replay.{name}": self.tensor(array).cpu() for name, array in arrays.items()}}

    def fixed_tensors(self) -> dict[str, Tensor]:
        return {**super().fixed_tensors(), **{name: target.flat for name, target in self.targets.items()}}

    def segments(self, known: Collection[str]) -> Segments:
        return self.replay.segments(known)

    def check(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> None:
        super().check(state, tensors, segments)
        checked = validated_part(ReplayLearnerState, state)
        config = self.config
        steps = config.fragment_length * config.total_envs + config.least_steps
        if checked.owed > 2 * (steps * config.training_intensity + config.most_updates_behind) + 1:
            raise ValueError(f"owed: {checked.owed:g} updates are more than any iteration leaves")
        if checked.groups == list(self.groups.values()):
            check_counters(self.replay_spec, self.groups, checked.replay, self._saved(tensors), segments)

    def load_without_replay(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `state_without_replay` returned."""
        super().load(state, tensors, {})
        self.updates, self.owed, self.timesteps = int(state["updates"]), float(state["owed"]), int(state["timesteps"])
        for name, target in self.targets.items():
            target.flat.copy_(tensors[name])

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self.load_without_replay(state, tensors)
        self._replay = None
        if state["groups"] != list(self.groups.values()):  # the environments start anew: so does the replay buffer
            self.owed = 0.0
            return False
        replay = self._make_replay()
        replay.load(state["replay"], self._saved(tensors))
        began: dict[int, Array] = {}  # by EnvGroup: of the last step that was written
        for name in sorted(segments):
            arrays, group = self._complete(segments[name]()), Segment.named(name).group
            lanes = self.groups[group]
            began[group] = check_segment(self.replay_spec, lanes, name, arrays, began.get(group))
            replay.write(name, arrays)
        self._replay = replay  # only when all of it is there
        return True

    def _saved(self, tensors: dict[str, Tensor]) -> dict[str, Array]:
        """The arrays of the replay buffer in a checkpoint, beside its segments."""
        prefix = "replay."
        named = {name.removeprefix(prefix): t.numpy() for name, t in tensors.items() if name.startswith(prefix)}
        return self._complete(named)

    def _complete(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """With masks, which an older checkpoint does not have."""
        return with_missing_masks(arrays, self.replay_spec.leaves) if self.has_masks else arrays
