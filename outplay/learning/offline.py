"""Learning from recorded data: what BC, MARWIL, CQL and IQL share. Minibatches are read instead of collected."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from outplay import data
from outplay.config import AlgorithmConfig
from outplay.data import transitions
from outplay.data.checking import ActionCheck, check_columns, check_finite
from outplay.data.columns import Rows, count, take
from outplay.errors import ConfigError, DataError
from outplay.learning.learner import JsonAndTensors, Learner, LearnerState, Segments, mean_metrics
from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.optimizers import check_norm
from outplay.learning.targets import TargetNetwork
from outplay.policies import Policy
from outplay.schema import Counter, validated_part
from outplay.settings import Positive, with_default
from outplay.spaces import Leaf

Array = np.ndarray
N = TypeVar("N", bound=nn.Module)
log = logging.getLogger("outplay")

LEAST_LOG_STD = -3.0  # of normal distributions that are fitted to data: repeated actions would make it −∞
_IN_MEMORY = 256 * 2**20  # a data set of at most this size is read once
_NORMALISER_ROWS = 100_000  # that the normalisers are fitted to


def _absolute(path: str) -> str:
    """A run may be resumed from another working directory."""
    return path if path.startswith(data.MINARI) else str(Path(path).expanduser().absolute())


_Input = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]


class OfflineConfig(AlgorithmConfig):
    """Settings that algorithms share that learn from recorded data. The environment is that of evaluations."""

    input: _Input | list[_Input] | None = Field(
        None,
        description="The data to learn from: a folder of Parquet files, a file, a list of these, or minari:NAME for a "
        "local Minari data set. A data set larger than memory is streamed from disk.",
    )
    train_batch_size: Positive = Field(25_600, description="Rows of the data set per iteration.")
    sgd_minibatch_size: Positive = Field(256, description="Minibatch size: rows per update.")
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = with_default(AlgorithmConfig, "lr", 1e-3)

    @property
    def updates_per_iteration(self) -> int:
        return max(1, self.train_batch_size // self.sgd_minibatch_size)


C = TypeVar("C", bound=OfflineConfig)


def open_input(config: OfflineConfig, leaves: tuple[Leaf, ...]) -> data.Dataset:
    """The data set of the setting `input`. Raises ConfigError or DataError."""
    name = type(config).__name__.removesuffix("Config")
    if config.input is None:
        raise ConfigError(f"{name} learns from recorded data: set input to a folder of Parquet files, or minari:NAME")
    if isinstance(config.input, str) and config.input.startswith(data.MINARI):
        return data.read_minari(config.input.removeprefix(data.MINARI), leaves)
    return data.read_parquet(config.input)


class DataStream:
    """Shuffled minibatches of a data set, by number: their position follows from the number of updates.

    >>> rows = stream.batch(7)
    """

    def __init__(self, dataset: data.Dataset, batch_size: int, seed: int) -> None:
        is_small = len(dataset) * dataset.row_bytes <= _IN_MEMORY
        self.dataset, self._seed = dataset.in_memory() if is_small else dataset, seed
        self.batch_size = min(batch_size, len(dataset))
        self.per_epoch = len(dataset) // self.batch_size
        self._next = -1  # number of the batch that the iterator returns next
        self._iterator: Iterator[Rows] = iter(())

    def batch(self, number: int) -> Rows:
        epoch, index = divmod(number, self.per_epoch)
        if number != self._next or index == 0:
            self._iterator = self.dataset.iter_batches(self.batch_size, True, self._seed, epoch, True, index)
        self._next = -1  # if reading is interrupted, the iterator is void
        rows = next(self._iterator)
        self._next = number + 1
        return rows


class OfflineState(LearnerState):
    updates: Counter
    rows: Counter


class OfflineLearner(Learner[C], ABC):
    """Learns from the data set `input`. A subclass implements `step`; its result depends on the seed and the data.

    The position in the data is the number of updates, so a restored learner continues with the same minibatches.
    """

    State: ClassVar[type[LearnerState]] = OfflineState
    supports_recurrence = False
    collects = False
    needs: ClassVar[tuple[str, ...]] = (transitions.ACTION,)  # columns, beside the observations
    tau: ClassVar[float] = 0.0  # of target networks, unless the config has one

    def __init__(self, policy: Policy, config: C, frame_stack: int = 1) -> None:
        self.targets: dict[str, TargetNetwork[Any]] = {}  # by the name of their tensor in checkpoints
        super().__init__(policy, config, frame_stack)
        self._stream: DataStream | None = None
        self._rows = 0  # of the data set, when it was last read
        self.where = f"input {config.input}"  # for error messages
        spec = policy.spec
        self._check_actions = ActionCheck(spec.action_space, spec.normalize_actions or spec.clip_actions, self.where)
        self._finite = self._finite_columns()

    @classmethod
    def check_input(cls, config: OfflineConfig, leaves: tuple[Leaf, ...], action_space: Any, has_masks: bool) -> None:
        """Raise ConfigError or DataError unless the data set fits the environment."""
        if config.output is not None:
            name = type(config).__name__.removesuffix("Config")
            raise ConfigError(
                f"output: {name} learns from recorded data and does not step the environment, so there is nothing to "
                "record; remove output, or record the trained policy by outplay evaluate --output"
            )
        cls.check_settings(config)
        dataset, where = open_input(config, leaves), f"input {config.input}"
        masks = (transitions.MASK, transitions.NEXT_MASK) if has_masks else ()
        check_columns(dataset.columns, leaves, action_space, [*cls.needs, *masks], where)
        if not len(dataset):
            raise DataError(f"{where} has no rows")

    @classmethod
    def check_settings(cls, config: Any) -> None:
        """Raise ConfigError for settings that the algorithm does not support."""

    def prepared(self, dataset: data.Dataset) -> data.Dataset:
        """The data set with what the algorithm adds to it, before the first minibatch."""
        return dataset

    @property
    def stream(self) -> DataStream:
        """The minibatches. The data set is opened on first use."""
        if self._stream is None:
            dataset = self.prepared(open_input(self.config, self.policy.leaves))
            dataset = dataset.select([name for name in dataset.columns if self._is_used(name)])
            if self._rows not in (0, len(dataset)):
                log.warning(
                    "the data set has %d rows, and had %d when the run was saved: the result is not that of one run",
                    len(dataset), self._rows,
                )  # fmt: skip
            self._stream = DataStream(dataset, self.config.sgd_minibatch_size, self.config.seed)
        return self._stream

    def _is_used(self, column: str) -> bool:
        observations = transitions.leaf_columns(self.policy.leaves)
        if transitions.NEXT_OBSERVATION in self.needs:
            observations += transitions.leaf_columns(self.policy.leaves, transitions.NEXT_OBSERVATION)
        masks = (transitions.MASK, transitions.NEXT_MASK) if self.policy.spec.with_masks else ()
        return column in (*observations, *self.needs, *masks) or column.startswith("return")

    def _finite_columns(self) -> list[str]:
        """The columns that are checked for NaN. A preprocessor may fill missing values of observations."""
        names = [] if self.policy.spec.preprocessor is not None else transitions.leaf_columns(self.policy.leaves)
        if transitions.REWARD in self.needs:
            names = [*names, transitions.REWARD]
            if self.policy.spec.preprocessor is None:
                names += transitions.leaf_columns(self.policy.leaves, transitions.NEXT_OBSERVATION)
        return names

    def _batch(self, number: int) -> Rows:
        """A minibatch whose values are checked. All learners check all of its rows, so all raise the same error."""
        rows = self.stream.batch(number)
        check_finite(rows, self._finite, self.where)
        self._check_actions(rows[transitions.ACTION])
        return rows

    def add_target(self, name: str, source: N, flat: Tensor) -> TargetNetwork[N]:
        """A target network, updated after every update and saved as tensor `name`."""
        target = self.targets[name] = TargetNetwork(source, flat)
        return target

    # Learning.

    @abstractmethod
    def step(self, batch: Any, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        """One update on a minibatch: (gradient norm, metrics)."""

    def start_updates(self) -> None:
        """Called before the updates of an iteration."""

    def update_from_data(self, timesteps: int) -> tuple[int, dict[str, float]]:
        """The updates of one iteration: (rows, metrics). `timesteps` are the rows learned from before."""
        config, lr = self.config, self.lr(timesteps)
        self.stream  # noqa: B018 - opened here, where a different number of rows is noticed
        if config.normalize_observations and not self.is_normaliser_fitted:
            self._fit_normalisers()
        self._rows = len(self.stream.dataset)
        self.start_updates()
        found: list[dict[str, Tensor]] = []
        for _ in range(config.updates_per_iteration):
            rows = self._batch(self.updates)
            with self.share(count(rows)) as part:
                norm, metrics = self.step(self.to_device(take(rows, part)), lr)
                found.append(self.weighted({**metrics, "grad_norm": norm}))
            self.updates += 1
            for target in self.targets.values():
                target.update(getattr(config, "tau", self.tau))
        found = self.summed(found)
        check_norm(float(found[-1]["grad_norm"]), lr)  # on a GPU, norms have not been checked so far
        seen = self.stream.batch_size * config.updates_per_iteration
        epochs = self.updates / self.stream.per_epoch
        return seen, {**mean_metrics(found), "updates": float(self.updates), "epochs": epochs, "lr": lr}

    def to_device(self, rows: Rows) -> TransitionBatch:
        """Rows of the data set as a minibatch. Columns that the algorithm does not need are not read."""
        observations = self.observations(rows, transitions.OBSERVATION)
        actions = self.actions(rows[transitions.ACTION])
        masks = [self.tensor(rows[n]) for n in (transitions.MASK, transitions.NEXT_MASK) if self.policy.spec.with_masks]
        if transitions.REWARD not in rows or transitions.NEXT_OBSERVATION not in self.needs:
            none = observations[0].new_zeros(len(actions))
            return TransitionBatch(observations, actions, none, observations, none, none, *masks)
        rewards = rows[transitions.REWARD].astype(np.float32) * np.float32(self.config.reward_scale)
        if (limit := self.config.clip_rewards) is not None:
            rewards = rewards.clip(-limit, limit)
        is_end = rows[transitions.TERMINATED].astype(bool, copy=False)
        if self.config.cut_returns_at_rewards:
            is_end = is_end | (rewards != 0)
        discounts = np.where(is_end, np.float32(0), np.float32(self.config.gamma))
        after = self.observations(rows, transitions.NEXT_OBSERVATION)
        weights = torch.ones(len(actions), device=self.device)
        return TransitionBatch(
            observations, actions, self.tensor(rewards), after, self.tensor(discounts), weights, *masks
        )

    def observations(self, rows: Rows, prefix: str) -> tuple[Tensor, ...]:
        """The observations of rows, on the device."""
        leaves = self.policy.leaves
        names = zip(leaves, transitions.leaf_columns(leaves, prefix), strict=True)
        return self.tensors(tuple(rows[name].astype(leaf.dtype, copy=False) for leaf, name in names))

    def actions(self, in_env: Array) -> Tensor:
        """The policy's actions from the environment's, on the device."""
        if isinstance(self.policy.action_space, spaces.Discrete | spaces.MultiDiscrete):
            in_env = in_env.astype(np.int64, copy=False)
        return self.tensor(self.policy.from_env(in_env))

    def floored(self, params: Tensor) -> Tensor:
        """Parameters of the action distribution with standard deviations that are not too small to be fitted."""
        if not (constant := self.distribution.num_constant):
            return params
        return torch.cat([params[:, :-constant], params[:, -constant:].clamp(min=LEAST_LOG_STD)], -1)

    @torch.no_grad()
    def _fit_normalisers(self) -> None:
        """Fit the normalisers to the first minibatches. They do not change afterwards."""
        batch_size = self.stream.batch_size
        for number in range(min(self.stream.per_epoch, -(-_NORMALISER_ROWS // batch_size))):
            rows = self._batch(number)
            for i, moments in self.moments.items():
                moments.update(rows[transitions.leaf_columns(self.policy.leaves)[i]])
        for i in self.moments:
            self._write_normaliser(i, self._normalised)
        for target in self.targets.values():
            target.copy_buffers()

    # State.

    def state(self) -> JsonAndTensors:
        state, tensors = super().state()
        return {**state, "updates": self.updates, "rows": self._rows}, tensors

    def fixed_tensors(self) -> dict[str, Tensor]:
        return {**super().fixed_tensors(), **{name: target.flat for name, target in self.targets.items()}}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        checked = validated_part(OfflineState, state)
        super().load(state, tensors, segments)
        self.updates, self._rows = checked.updates, checked.rows
        for name, target in self.targets.items():
            target.flat.copy_(tensors[name])
        return True

    def start_from_weights(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().start_from_weights(state, tensors)
        self.start_networks(tensors)
        for target in self.targets.values():
            target.reset()
