"""The Learner: owns the trained network and its optimizer. What on-policy algorithms share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from outplay.config import AlgorithmConfig, at
from outplay.cudagraphs import CapturedStep, Minibatch
from outplay.fragments import Batch, Fragment
from outplay.learning import returns
from outplay.learning.optimizers import Optimizer
from outplay.metrics import RunningMoments
from outplay.policies import ActorCritic, Policy, is_normalisable
from outplay.schema import FiniteNumber, Part, check_array, validated_part
from outplay.spaces import Leaves
from outplay.streams import stream

Array = np.ndarray
_MOST_IMAGES = 128
C = TypeVar("C", bound=AlgorithmConfig)
Segments = Mapping[str, Callable[[], dict[str, Array]]]  # by name: how to get what is in them


class LearnerState(Part):
    """What a learner writes as JSON. A subclass adds what its algorithm has besides."""

    value_moments: Annotated[list[FiniteNumber], Field(min_length=3, max_length=3)]
    counts: dict[str, Annotated[FiniteNumber, Field(ge=0)]]


@dataclass
class Estimates:
    """What the critic makes of a Batch, (T, N) each."""

    values: Array
    advantages: Array
    targets: Array


@dataclass
class Rows(Minibatch):
    """Steps as rows, for the loss: the (T, N) of a Batch without what is not valid."""

    observations: tuple[Tensor, ...]
    actions: Tensor
    old_params: Tensor  # of the distribution that acted
    old_log_prob: Tensor
    advantages: Tensor
    targets: Tensor  # of the value, normalised as the network's output is

    def shuffled(self, order: Tensor) -> Rows:
        return self.each(lambda tensor: _shuffled(tensor, order))

    def piece(self, begin: int, end: int) -> Rows:
        return self.each(lambda tensor: tensor[begin:end])


def _shuffled(tensor: Tensor, order: Tensor) -> Tensor:
    if tensor.dim() == 4:  # images, with the channels last in memory: so they stay, and whole rows are copied
        return tensor.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)
    return tensor.index_select(0, order)


class Learner(Generic[C]):
    """Learns from Batches. A subclass is one algorithm: it says how in `update`.

    >>> learner = PPOLearner(policy, config)
    >>> metrics = learner.update(batch, timesteps=2048, iteration=1)
    """

    State: ClassVar[type[LearnerState]] = LearnerState

    def __init__(self, policy: Policy, config: C) -> None:
        self.config = config
        self.device = torch.device("cuda" if config.num_gpus else "cpu")
        self.policy = policy
        self.network = policy.network
        self.distribution = policy.distribution
        self.optimizer = Optimizer(policy.parameters, policy.flat, config.optimizer, self.lr_scales())
        self.moments = {i: RunningMoments(leaf.shape) for i, leaf in enumerate(policy.leaves) if is_normalisable(leaf)}
        self.value_moments = (0.0, 0.0, 0.0)  # weight, mean and mean square of what values are to be
        self._recorded: dict[int, CapturedStep[Any]] = {}  # by the number of rows

    @property
    def model(self) -> ActorCritic:
        assert isinstance(self.network, ActorCritic)
        return self.network

    def lr_scales(self) -> list[float] | None:
        """A factor on the learning rate for each of the policy's parameters; None: 1 for all."""
        return None

    def begin_from_weights(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """The network was given the weights of another run: go on with the normalisers of its learner, saved as this.

        With the number of observations that they come from: or the first batch would replace them, and the policy would
        see its inputs shifted.
        """
        self._load_moments(state, tensors)

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        """Learn from a Batch: the metrics of it. `timesteps` before it, `iteration` that it belongs to."""
        raise TypeError(f"{type(self).__name__} does not say how it learns")

    # What an update is made of.

    @property
    def records(self) -> bool:
        """Whether steps can be recorded and replayed: on a GPU, if the network allows it."""
        return self.device.type == "cuda" and self.network.capturable

    def recorded(
        self, step: Callable[..., tuple[Tensor, dict[str, Tensor]]], rows: Minibatch, *scalars: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`step(rows, *scalars)`, which learns from a minibatch; recorded once for each number of rows."""
        if len(rows) not in self._recorded:
            self._recorded[len(rows)] = CapturedStep(step, rows, scalars, self.optimizer.tensors)
        return self._recorded[len(rows)](rows, *scalars)

    def rewards(self, batch: Batch | Fragment) -> Array:
        """Rewards as they are learned from."""
        scaled = batch.rewards * np.float32(self.config.reward_scale)
        limit = self.config.clip_rewards
        return scaled if limit is None else scaled.clip(-limit, limit)

    def over(self, batch: Batch | Fragment) -> Array:
        """Where nothing that comes later counts: at a termination, and at rewards if returns are cut there."""
        if not self.config.cut_returns_at_rewards:
            return batch.terminated
        over: Array = batch.terminated | (batch.rewards != 0)
        return over

    def ended(self, batch: Batch) -> Array:
        """Where returns end: there, and where an episode was truncated."""
        ends: Array = self.over(batch) | batch.truncated
        return ends

    def tensors(self, observations: Leaves) -> tuple[Tensor, ...]:
        """Observations as the network takes them."""
        return self.network.arranged(tuple(self.tensor(leaf) for leaf in observations))

    def tensor(self, array: Array) -> Tensor:
        # Arrays from another process are read-only, and torch would warn; nothing here writes into them.
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    @torch.no_grad()
    def values_of(self, observations: Leaves) -> Array:
        if not len(observations[0]):
            return np.zeros(0, np.float32)
        return self.model.value(self.tensors(observations)).cpu().numpy()

    def estimates(self, batch: Batch, lambda_: float, use_gae: bool = True) -> Estimates:
        """Values, advantages and the targets of the values, with the value after each episode's end as it should be."""
        shape = batch.rewards.shape
        if "value" in batch.extras:
            values = batch.extras["value"]
        else:
            flat = tuple(leaf.reshape(-1, *leaf.shape[2:]) for leaf in batch.observations)
            values = self.values_of(flat).reshape(shape)
        over = self.over(batch)
        following = returns.next_values(
            values,
            self.values_of(batch.last_observations),
            over,
            self.values_of(batch.final_observations),
            batch.final_steps,
            batch.final_lanes,
        )
        rewards, ended = self.rewards(batch), self.ended(batch)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told by the optimizer, in words
            advantages = returns.gae(rewards, values, following, ended, self.config.gamma, lambda_ if use_gae else 1.0)
        return Estimates(values, advantages, advantages + values)

    def rows(self, batch: Batch, estimates: Estimates, standardize: bool) -> Rows:
        advantages = batch.rows(estimates.advantages)
        if standardize:
            advantages = returns.standardized(advantages)
        actions = self.tensor(batch.rows(batch.actions))
        old_params = self.tensor(batch.rows(batch.extras["dist"]))
        return Rows(
            self.observation_rows(batch),
            actions,
            old_params,
            self.distribution.log_prob(old_params, actions),
            self.tensor(advantages),
            self.model.normalised(self.tensor(batch.rows(estimates.targets))),
        )

    def observation_rows(self, batch: Batch) -> tuple[Tensor, ...]:
        """Those of the whole Batch, as the network takes them."""
        if self.device.type == "cpu" or not batch.all_valid:
            return self.tensors(batch.observation_rows())
        # On a GPU they are put together there, which is faster.
        leaves = range(len(self.policy.leaves))
        joined = [torch.cat([self.tensor(f.observations[i]) for f in batch.fragments], 1) for i in leaves]
        return self.network.arranged(tuple(leaf.flatten(0, 1) for leaf in joined))

    def lr(self, timesteps: int) -> float:
        return at(self.config.lr_schedule, self.config.lr, timesteps)

    def minibatches(self, rows: Rows, size: int, iteration: int, epoch: int, shuffle: bool) -> Iterator[Rows]:
        """All rows once, in pieces of about `size`, shuffled by the run's own stream."""
        if shuffle:
            order = stream(self.config.seed, "minibatches", iteration, epoch).permutation(len(rows))
            rows = rows.shuffled(torch.from_numpy(order).to(self.device))
        pieces = -(-len(rows) // size)
        edges = [len(rows) * i // pieces for i in range(pieces + 1)]
        for begin, end in itertools.pairwise(edges):
            yield rows.piece(begin, end)

    # The normalisers: they change once per iteration, here, from the whole Batch in EnvGroup order.

    @torch.no_grad()
    def normalise_values(self, targets: Array) -> None:
        """Follow the scale of the values. The network's outputs, in units of reward, stay what they were.

        Van Hasselt et al., "Learning values across many orders of magnitude", 2016.
        """
        keep = 0.9
        weight, mean, square = self.value_moments
        weight = keep * weight + (1 - keep)
        mean = keep * mean + (1 - keep) * float(targets.mean(dtype=np.float64))
        square = keep * square + (1 - keep) * float(np.square(targets, dtype=np.float64).mean())
        self.value_moments = (weight, mean, square)
        new_mean = mean / weight
        new_scale = max(square / weight - new_mean**2, 1e-4) ** 0.5
        head, old_mean, old_scale = self.model.value_head, self.model.value_mean, self.model.value_scale
        head.weight.mul_(old_scale / new_scale)
        head.bias.mul_(old_scale).add_(old_mean - new_mean).div_(new_scale)
        old_mean.fill_(new_mean)
        old_scale.fill_(new_scale)

    @property
    def is_normaliser_fitted(self) -> bool:
        return all(moments.count > 0 for moments in self.moments.values())

    @torch.no_grad()
    def normalise_observations(self, batch: Batch) -> None:
        for i, moments in self.moments.items():
            is_image = self.policy.leaves[i].is_image
            if is_image:  # large and much alike: some of them will do, and single precision
                images = self.tensor(batch.some(i, _MOST_IMAGES)).float()
                mean = images.mean(0)
                square = images.sub_(mean).square_().mean(0)
                moments.merge(len(images), mean.double().cpu().numpy(), square.double().cpu().numpy())
            else:
                moments.update(batch.rows(batch.observations[i]))
            variance = moments.variance.mean() if is_image else moments.variance
            getattr(self.network, f"observation_mean_{i}").copy_(torch.from_numpy(moments.mean))
            getattr(self.network, f"observation_scale_{i}").copy_(torch.as_tensor(1.0 / np.sqrt(variance + 1e-8)))

    # Saving.

    def remember(self) -> Callable[[], None]:
        """A function that brings weights and learner back to what they are now, from memory."""
        state, tensors = self.state()
        return self._way_back(state, tensors, lambda state, tensors: self.load(state, tensors, {}))

    def _way_back(
        self,
        state: dict[str, Any],
        tensors: dict[str, Tensor],
        load: Callable[[dict[str, Any], dict[str, Tensor]], Any],
    ) -> Callable[[], None]:
        weights = self.policy.flat.detach().clone()
        copies = {name: tensor.clone() for name, tensor in tensors.items()}

        @torch.no_grad()
        def go_back() -> None:
            self.policy.flat.copy_(weights)
            load(state, copies)

        return go_back

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(what is written as JSON, what is written as tensors) beside the weights."""
        counts = {str(i): m.count for i, m in self.moments.items()}
        return {"value_moments": list(self.value_moments), "counts": counts}, self._saved_tensors()

    def _saved_tensors(self) -> dict[str, Tensor]:
        """Those whose shapes do not change."""
        moments = {
            f"moments.{i}.{name}": torch.from_numpy(np.array(value))
            for i, m in self.moments.items()
            for name, value in (("mean", m.mean), ("variance", m.variance))
        }
        return {**self.optimizer.state(), **moments}

    def check(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> None:  # noqa: ARG002
        """Raise ValueError unless a learner like this one saved it. Nothing is changed."""
        validated_part(self.State, state)
        self.check_moments(state, tensors)
        for name, own in self._saved_tensors().items():
            check_array(tensors, name, tuple(own.shape), own.dtype)

    def check_moments(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Raise ValueError unless the normalisers of the learner that saved it are like those of this one."""
        counts = validated_part(LearnerState, state).counts
        for i, moments in self.moments.items():
            if str(i) not in counts:
                raise ValueError(f"counts.{i} is missing")
            for name in ("mean", "variance"):
                check_array(tensors, f"moments.{i}.{name}", moments.mean.shape, torch.float64)

    def segments(self, known: Collection[str]) -> Segments:  # noqa: ARG002
        """What is written in pieces of which most never change, by name; `known` are those that are on disk already."""
        return {}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:  # noqa: ARG002
        """Take back what was saved. Whether its segments are what `segments` will give from now on."""
        self._load_moments(state, tensors)
        self.optimizer.load(tensors)
        return True

    def _load_moments(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """What the normalisers, which are part of the weights, follow from."""
        weight, mean, square = map(float, state["value_moments"])
        self.value_moments = (weight, mean, square)
        for i, moments in self.moments.items():
            mean_of, variance = (tensors[f"moments.{i}.{name}"].numpy() for name in ("mean", "variance"))
            moments.load(float(state["counts"][str(i)]), mean_of, variance)


def mean_metrics(pieces: list[dict[str, Tensor]]) -> dict[str, float]:
    """The mean of each metric over minibatches."""
    return {name: float(torch.stack([piece[name] for piece in pieces]).mean()) for name in pieces[0]}


def explained_variance(predicted: Array, actual: Array) -> float:
    """1 if the values say all about the returns, 0 if no more than their mean does."""
    variance = float(actual.var())
    return 0.0 if variance == 0 else 1.0 - float((actual - predicted).var()) / variance
