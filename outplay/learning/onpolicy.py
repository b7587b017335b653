"""On-policy learning: value estimates, advantages, minibatches, value normalisation. For PG, A2C, PPO."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from outplay.config import AlgorithmConfig
from outplay.fragments import Batch
from outplay.learning import returns
from outplay.learning.intrinsic import VALUE_EPOCHS, Distillation, IntrinsicConfig
from outplay.learning.learner import JsonAndTensors, Learner, LearnerState, Segments
from outplay.learning.optimizers import ParameterGroup
from outplay.learning.rows import R, Rows, TargetRows
from outplay.learning.shares import Share, sequences_of
from outplay.policies import ActorCritic, Distribution
from outplay.policies.recurrent import PREVIOUS, Memory
from outplay.schema import FiniteNumber, validated_part
from outplay.settings import Fraction, NotNegative, Schedule, at, with_default
from outplay.spaces import Leaves
from outplay.streams import seed_for, stream

Array = np.ndarray

_INTRINSIC_MINIBATCH = 256
_VALUE_DECAY = 0.9  # of the moving moments of value targets


class CriticConfig(AlgorithmConfig):
    """Settings that algorithms with an actor and a critic share."""

    grad_clip: Annotated[float, Field(gt=0)] | None = Field(0.5, description="Maximum gradient norm.")
    use_gae: bool = Field(True, description="Use generalized advantage estimation; otherwise lambda is 1.")
    lambda_: Fraction = Field(0.95, alias="lambda", description="GAE parameter λ.")
    normalize_advantages: bool = Field(True, description="Standardize advantages.")
    normalize_values: bool = Field(
        True, description="The value network predicts standardized returns (PopArt, van Hasselt et al. 2016)."
    )
    vf_loss_coeff: NotNegative = Field(0.5, description="Value loss coefficient.")
    entropy_coeff: NotNegative = Field(0.01, description="Entropy bonus coefficient.")
    entropy_coeff_schedule: Schedule | None = Field(
        None, description="entropy_coeff as [[step, value], …], linearly interpolated; replaces entropy_coeff."
    )

    def entropy_coeff_at(self, timesteps: int) -> float:
        return at(self.entropy_coeff_schedule, self.entropy_coeff, timesteps)


class ActorCriticConfig(CriticConfig):
    """The same, for algorithms that learn from batches of the present policy: they support intrinsic rewards."""

    normalize_observations: bool | Literal["auto"] = with_default(AlgorithmConfig, "normalize_observations", "auto")

    intrinsic_reward: IntrinsicConfig | None = Field(
        None, description="Intrinsic rewards for new observations, beside those of the environment: {type: RND}."
    )


C = TypeVar("C", bound=AlgorithmConfig)


class OnPolicyState(LearnerState):
    value_moments: Annotated[list[FiniteNumber], Field(min_length=3, max_length=3)]
    intrinsic_returns: Annotated[list[FiniteNumber], Field(min_length=3, max_length=3)] | None = None


@dataclass
class Estimates:
    """Values, advantages and value targets of a Batch, (T, N) each."""

    values: Array
    advantages: Array
    targets: Array
    intrinsic_targets: Array | None = None  # of the critic of intrinsic rewards


class OnPolicyLearner(Learner[C]):
    """Learns from Batches that the present policy collected. A subclass implements `update`.

    >>> learner = PPOLearner(policy, config)
    >>> metrics = learner.update(batch, timesteps=2048, iteration=1)
    """

    State: ClassVar[type[LearnerState]] = OnPolicyState

    distribution: Distribution

    value_moments: tuple[float, float, float] = (0.0, 0.0, 0.0)  # weight, mean and mean square of the value targets

    intrinsic: Distillation | None = None  # with intrinsic rewards

    def make_networks(self) -> None:
        settings = getattr(self.config, "intrinsic_reward", None)
        if settings is None:
            return
        seed = seed_for(self.config.seed, "intrinsic")
        self.intrinsic = Distillation(self.policy.leaves, settings, seed)
        self._predictor_flat = self.add_network("rnd", self.intrinsic.predictor)
        self._critic_flat = self.add_network("rnd_value", self.intrinsic.critic)
        self.add_network("rnd_target", self.intrinsic.target)
        for network in (self.intrinsic.predictor, self.intrinsic.critic, self.intrinsic.target):
            network.normalises = True

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        groups = super().parameter_groups()
        if self.intrinsic is None:
            return groups
        optimizer = self.config.optimizer
        predictor, critic = (list(n.parameters()) for n in (self.intrinsic.predictor, self.intrinsic.critic))
        return [
            *groups,
            ParameterGroup("rnd", predictor, self._predictor_flat, optimizer),
            ParameterGroup("rnd_value", critic, self._critic_flat, optimizer),
        ]

    def add_intrinsic(self, batch: Batch, estimates: Estimates, lambda_: float) -> dict[str, float]:
        """Add the advantages of intrinsic rewards to those of the environment's. Returns metrics."""
        if self.intrinsic is None:
            return {}
        if not self.config.normalize_observations:  # otherwise they are updated once per iteration
            self.update_normalisers(batch)
        observations = self.tensors(tuple(leaf.reshape(-1, *leaf.shape[2:]) for leaf in batch.observations))
        last = self.tensors(batch.last_observations)
        found = self.intrinsic.estimates(observations, last, batch.valid, lambda_)
        estimates.advantages = estimates.advantages + self.intrinsic.config.coefficient * found.advantages
        estimates.intrinsic_targets = found.targets
        return {"intrinsic_reward_mean": float(batch.rows(found.rewards).mean())}

    def train_intrinsic(self, rows: Rows, iteration: int, lr: float) -> None:
        """Train the predictor of the random network for one epoch, and the critic of intrinsic rewards for several."""
        if self.intrinsic is None:
            return
        assert rows.intrinsic_targets is not None
        single = TargetRows(rows.observations, rows.actions, rows.intrinsic_targets)
        for epoch in range(VALUE_EPOCHS):
            order = torch.from_numpy(stream(self.config.seed, "intrinsic", iteration, epoch).permutation(len(rows)))
            for chosen in torch.split(order.to(self.device), _INTRINSIC_MINIBATCH):
                with self.part(single.shuffled(chosen)) as part:
                    loss = self.intrinsic.value_loss(part.observations, part.targets)
                    self.optimizer.step(loss, lr, only=["rnd_value"])
                    if epoch == 0:
                        self.optimizer.step(self.intrinsic.errors(part.observations).mean(), lr, only=["rnd"])

    @property
    def policy_groups(self) -> list[str]:
        """The optimizer's parameter groups of policy and value."""
        return [name for name in self.optimizer.groups if not name.startswith("rnd")]

    @property
    def actor_critic(self) -> ActorCritic:
        assert isinstance(self.network, ActorCritic)
        return self.network

    # Estimates.

    def returns_end(self, batch: Batch) -> Array:
        """Where returns end: where nothing is bootstrapped, and at truncations."""
        ends: Array = self.no_bootstrap(batch) | batch.truncated
        return ends

    @torch.no_grad()
    def values_of(self, observations: Leaves, state: Mapping[str, Array] | None = None) -> Array:
        """Values of observations. `state` is the recurrent state before each."""
        if not len(observations[0]):
            return np.zeros(0, np.float32)
        memory = self.policy.memory(state or {}) if self.is_recurrent else None
        return self.actor_critic.value(self.tensors(observations), memory).cpu().numpy()

    @property
    def is_recurrent(self) -> bool:
        return self.network.core is not None

    def estimates(self, batch: Batch, lambda_: float, use_gae: bool = True) -> Estimates:
        """Values, GAE advantages and value targets. Truncated episodes bootstrap from their final observation."""
        if "value" in batch.extras:
            values = batch.extras["value"]
        else:
            flat = tuple(leaf.reshape(-1, *leaf.shape[2:]) for leaf in batch.observations)
            values = self.values_of(flat).reshape(batch.rewards.shape)
        following = self.bootstrap_values(batch, values)
        rewards, ends = self.rewards(batch), self.returns_end(batch)
        with np.errstate(over="ignore", invalid="ignore"):  # the optimizer reports values that are not finite
            advantages = returns.gae(rewards, values, following, ends, self.config.gamma, lambda_ if use_gae else 1.0)
        return Estimates(values, advantages, advantages + values)

    def bootstrap_values(self, batch: Batch, values: Array) -> Array:
        """The value after each step, (T, N), from those of the steps: see `returns.next_values`."""
        return returns.next_values(
            values,
            self.values_of(batch.last_observations, batch.last_policy_state),
            self.no_bootstrap(batch),
            self.values_of(batch.final_observations, batch.final_states),
            batch.final_steps,
            batch.final_lanes,
        )

    def monte_carlo(self, batch: Batch) -> Estimates:
        """Returns of whole episodes as advantages, without a critic."""
        seen = returns.discounted_returns(self.rewards(batch), self.returns_end(batch), self.config.gamma)
        return Estimates(np.zeros_like(seen), seen, seen)

    # Rows and minibatches.

    def rows(self, batch: Batch, estimates: Estimates, standardize: bool) -> Rows:
        """The valid steps, in the order in which a recurrent network needs them: see `inputs`."""
        rows, take = self.recorded(batch)
        advantages = take(estimates.advantages)
        rows.advantages = self.tensor(returns.standardized(advantages) if standardize else advantages)
        rows.targets = self.actor_critic.normalised(self.tensor(take(estimates.targets)))
        if estimates.intrinsic_targets is not None:
            rows.intrinsic_targets = self.tensor(take(estimates.intrinsic_targets))
        return rows

    def recorded(self, batch: Batch) -> tuple[Rows, Callable[[Array], Array]]:
        """(`rows` without advantages and targets, function that takes the same rows from a (T, N, …) array)."""
        observations, mask, memory, take = self.inputs(batch)
        actions, old_params = self.tensor(take(batch.actions)), self.tensor(take(batch.extras["dist"]))
        old_log_prob = self.distribution.log_prob(old_params, actions)
        unknown = torch.full_like(old_log_prob, torch.nan)
        rows = Rows(observations, actions, old_params, old_log_prob, unknown, unknown, mask=mask, memory=memory)
        return rows, take

    def inputs(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor | None, Memory | None, Callable[[Array], Array]]:
        """(observations, masks, memory, function that takes the same rows from a (T, N, …) array).

        For a recurrent network, rows are ordered by sequence, and the memory says which rows form one.
        """
        if not self.is_recurrent:
            mask = None if batch.action_mask is None else self.tensor(batch.rows(batch.action_mask))
            return self.observation_rows(batch), mask, None, batch.rows
        sequences = batch.sequences(self.policy.initial_state)
        mask = None if batch.action_mask is None else self.tensor(sequences.take(batch.action_mask))
        memory = self.policy.memory(sequences.policy_state)
        memory.lengths = sequences.lengths
        if PREVIOUS in batch.extras:
            memory.previous = self.tensor(sequences.take(batch.extras[PREVIOUS]))
        return self.tensors(tuple(map(sequences.take, batch.observations))), mask, memory, sequences.take

    def observation_rows(self, batch: Batch) -> tuple[Tensor, ...]:
        """The observations of the whole Batch as rows, in the layout that the network takes."""
        if self.device.type == "cpu" or not batch.all_valid:
            return self.tensors(batch.observation_rows())
        # On a GPU they are joined there, which is faster.
        leaves = range(len(self.policy.leaves))
        joined = [torch.cat([self.tensor(part) for part in batch.observation_parts(i)], 1) for i in leaves]
        return self.network.arranged(tuple(leaf.flatten(0, 1) for leaf in joined))

    def minibatches(self, rows: R, size: int, iteration: int, epoch: int, shuffle: bool) -> Iterator[R]:
        """All rows once, in minibatches of about `size`, shuffled by a random stream of the run.

        Sequences of a recurrent network are shuffled, but not split. With several learners, each gets its `part` of
        every minibatch.
        """
        rng = stream(self.config.seed, "minibatches", iteration, epoch)
        number = -(-len(rows) // size)
        if rows.memory is not None:
            assert rows.memory.lengths is not None
            lengths = rows.memory.lengths
            order = rng.permutation(len(lengths)) if shuffle else np.arange(len(lengths))
            before = np.cumsum(lengths[order]) - lengths[order]  # rows before each sequence
            for i in range(number):
                chosen = order[(before * number // len(rows)) == i]
                if len(chosen):
                    with self.part(rows.sequences(chosen)) as part:
                        yield part
            return
        if shuffle:
            rows = rows.shuffled(torch.from_numpy(rng.permutation(len(rows))).to(self.device))
        edges = [len(rows) * i // number for i in range(number + 1)]
        for begin, end in itertools.pairwise(edges):
            with self.part(rows.slice(begin, end)) as part:
                yield part

    @contextmanager
    def part(self, rows: R, is_sum: bool = False) -> Iterator[R]:
        """The part of a minibatch that this learner computes on: all of it, unless there are several learners.

        Losses are means or sums over its rows: see `share`. Parts for a recurrent network are whole sequences.
        """
        communicator = self.communicator
        if communicator is None:
            yield rows
        elif rows.memory is None:
            with self.share(len(rows), is_sum) as chosen:
                yield rows.slice(chosen.start, chosen.stop)
        else:
            assert rows.memory.lengths is not None
            sequences, share = sequences_of(rows.memory.lengths, communicator.rank, communicator.size)
            with communicator.sharing(share, is_sum):
                yield rows.sequences(sequences)

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Gradients that are applied in this block are sums over the rows of this learner's parts."""
        if self.communicator is None:
            yield
            return
        with self.communicator.sharing(Share(0, 1, 1), is_sum=True):
            yield

    # Value normalisation.

    @torch.no_grad()
    def update_value_normaliser(self, targets: Array) -> None:
        """Track mean and scale of the value targets. The denormalised outputs of the network do not change.

        Van Hasselt et al., "Learning values across many orders of magnitude", 2016 (PopArt).
        """
        weight, mean, square = self.value_moments
        weight = _VALUE_DECAY * weight + (1 - _VALUE_DECAY)
        mean = _VALUE_DECAY * mean + (1 - _VALUE_DECAY) * float(targets.mean(dtype=np.float64))
        square = _VALUE_DECAY * square + (1 - _VALUE_DECAY) * float(np.square(targets, dtype=np.float64).mean())
        self.value_moments = (weight, mean, square)
        new_mean = mean / weight
        new_scale = max(square / weight - new_mean**2, 1e-4) ** 0.5
        network = self.actor_critic
        head, old_mean, old_scale = network.value_head, network.value_mean, network.value_scale
        head.weight.mul_(old_scale / new_scale)
        head.bias.mul_(old_scale).add_(old_mean - new_mean).div_(new_scale)
        old_mean.fill_(new_mean)
        old_scale.fill_(new_scale)

    # State.

    def state(self) -> JsonAndTensors:
        state, tensors = super().state()
        state = {"value_moments": list(self.value_moments), **state}
        if self.intrinsic is not None:
            moments = self.intrinsic.moments
            state["intrinsic_returns"] = [moments.count, float(moments.mean), float(moments.variance)]
        return state, tensors

    def check_moments(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().check_moments(state, tensors)
        validated_part(OnPolicyState, state)

    def check(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> None:
        super().check(state, tensors, segments)
        if self.intrinsic is not None and state.get("intrinsic_returns") is None:
            raise ValueError("intrinsic_returns is missing")

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self._load_value_moments(state)
        if self.intrinsic is not None:
            count, mean, variance = map(float, state["intrinsic_returns"])
            self.intrinsic.moments.load(count, np.array(mean), np.array(variance))
        return super().load(state, tensors, segments)

    def start_from_weights(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().start_from_weights(state, tensors)
        self._load_value_moments(state)

    def _load_value_moments(self, state: dict[str, Any]) -> None:
        weight, mean, square = map(float, state["value_moments"])
        self.value_moments = (weight, mean, square)


def explained_variance(predicted: Array, actual: Array) -> float:
    """1 − Var(actual − predicted) / Var(actual); 0 if the actual values do not vary."""
    variance = float(actual.var())
    return 0.0 if variance == 0 else 1.0 - float((actual - predicted).var()) / variance
