"""Learning from Fragments of older policies, batched as they arrive: what IMPALA and APPO share."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from outplay.config import USUAL_GROUPS, AlgorithmConfig, AsyncConfig
from outplay.fragments import Batch, Fragment, join
from outplay.learning import returns
from outplay.learning.learner import JsonAndTensors, LearnerState, Segments
from outplay.learning.onpolicy import CriticConfig, Estimates, OnPolicyLearner, OnPolicyState
from outplay.learning.rows import Rows
from outplay.machine import count_cpus
from outplay.policies import Policy, masked
from outplay.schema import Counter
from outplay.settings import LARGEST, AboveZero, Fraction, Lanes, Positive, with_default

Array = np.ndarray
_FRAGMENTS_JUDGED = 50

log = logging.getLogger("outplay")


class VTraceConfig(CriticConfig, AsyncConfig):
    """Settings that algorithms with V-trace share."""

    only_async = (*AsyncConfig.only_async, "max_policy_lag")

    async_: bool = Field(
        True,
        alias="async",
        description="Collect and learn concurrently: faster, but not exactly reproducible. Without workers "
        "(num_workers: 0), false unless given.",
    )
    num_envs: Lanes = with_default(AlgorithmConfig, "num_envs", 16)
    train_batch_size: Positive = Field(
        500, description="Environment steps per batch and per iteration (a minimum). There is one update per batch."
    )
    rollout_fragment_length: Positive | Literal["auto"] = with_default(AlgorithmConfig, "rollout_fragment_length", 50)
    use_gae: bool = Field(True, description="Use lambda; otherwise it is 1.")
    lambda_: Fraction = Field(1.0, alias="lambda", description="λ of V-trace; 1 is V-trace as published.")
    vtrace_clip_rho_threshold: AboveZero = Field(
        1.0, description="V-trace: ρ̄, the largest importance-sampling ratio of a TD error."
    )
    vtrace_clip_c_threshold: AboveZero = Field(
        1.0, description="V-trace: c̄, the largest importance-sampling ratio in the product over later steps."
    )
    max_policy_lag: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        50,
        description="Maximum age of a Fragment's Weights, in updates, when it is learned from. Older Fragments are "
        "discarded; their steps are counted.",
    )
    weights_interval: Positive = with_default(AsyncConfig, "weights_interval", 1)
    most_updates_behind: Positive = with_default(AsyncConfig, "most_updates_behind", 4)

    @model_validator(mode="before")
    @classmethod
    def _synchronous_without_workers(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("num_workers") == 0 and "async_" not in data:
            return {"async": False, **data}
        return data

    @property
    def auto_groups(self) -> int:
        """One EnvGroup per worker, and at least the usual ones: each costs an inference per step."""
        is_unknown = self.async_ and self.num_workers == "auto"
        return max(USUAL_GROUPS, count_cpus() if is_unknown else self._known_workers)


C = TypeVar("C", bound=VTraceConfig)


class VTraceState(OnPolicyState):
    updates: Counter


class VTraceLearner(OnPolicyLearner[C]):
    """Queues Fragments as they arrive, and makes an update of every full batch. A subclass implements `learn_from`.

    An update is what one batch is learned from: one version of the policy.
    """

    State: ClassVar[type[LearnerState]] = VTraceState
    measures_lag = True

    def __init__(self, policy: Policy, config: C, frame_stack: int = 1) -> None:
        super().__init__(policy, config, frame_stack)
        self.timesteps = 0
        self._queue: tuple[Fragment, ...] = ()  # not yet learned from, the oldest first
        self._lags: list[int] = []  # since the last call of metrics(), of each Fragment that was learned from
        self._discarded: list[int] = []  # since the last call of metrics(): steps of each discarded Fragment
        self._metrics: list[dict[str, float]] = []  # of the updates since the last call of metrics()
        self._judged = (0, 0)  # Fragments that were learned from and that were discarded, for a warning

    @abstractmethod
    def learn_from(self, batch: Batch, lr: float, entropy_coeff: float) -> dict[str, float]:
        """One update. Returns its metrics."""

    # Learning, synchronous or asynchronous.

    def update(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:  # noqa: ARG002
        self.timesteps = timesteps
        self._update(batch)
        return self.metrics()

    def take(self, fragments: Sequence[Fragment], timesteps: int) -> None:
        self.timesteps = timesteps
        self._queue = (*self._queue, *fragments)

    @property
    def due(self) -> int:
        return sum(fragment.steps for fragment in self._queue) // self.config.train_batch_size

    def learn(self, updates: int) -> None:
        """At most this many updates: there are fewer if Fragments are discarded, or do not divide into batches."""
        for _ in range(updates):
            if not (fragments := self._next_batch()):
                return
            self._update(join(fragments))

    def finish(self) -> None:
        """Learn from all Fragments: the last batch has more steps, or it is the only one and has fewer."""
        self.learn(self.due - 1)
        self._discard()
        if rest := list(self._queue):
            self._queue = ()
            self._update(join(rest))

    def _next_batch(self) -> list[Fragment]:
        """The oldest Fragments that make a full batch. None if there are too few."""
        self._discard()
        steps = 0
        for number, fragment in enumerate(self._queue, 1):
            steps += fragment.steps
            if steps >= self.config.train_batch_size:
                chosen, self._queue = self._queue[:number], self._queue[number:]
                return list(chosen)
        return []

    def _discard(self) -> None:
        """Discard the Fragments of Weights that are too old."""
        oldest = self.updates - self.config.max_policy_lag
        discarded = [fragment.steps for fragment in self._queue if fragment.updates < oldest]
        if discarded:
            self._discarded += discarded
            self._queue = tuple(fragment for fragment in self._queue if fragment.updates >= oldest)

    def _update(self, batch: Batch) -> None:
        lr, entropy_coeff = self.lr(self.timesteps), self.config.entropy_coeff_at(self.timesteps)
        lags = [self.updates - fragment.updates for fragment in batch.fragments]
        metrics = self.on_all("count_update", batch, lr, entropy_coeff)
        self._metrics.append({**metrics, "lr": lr, "entropy_coeff": entropy_coeff})
        self._lags += lags

    def count_update(self, batch: Batch, lr: float, entropy_coeff: float) -> dict[str, float]:
        """`learn_from`, on one of the learners."""
        metrics = self.learn_from(batch, lr, entropy_coeff)
        self.updates += 1
        return metrics

    def update_on_all(self, batch: Batch, timesteps: int, iteration: int) -> dict[str, float]:
        return self.update(batch, timesteps, iteration)

    def metrics(self) -> dict[str, float]:
        updates, lags, discarded = self._metrics, self._lags, self._discarded
        self._metrics, self._lags, self._discarded = [], [], []
        self._warn_if_most_are_discarded(len(lags), len(discarded))
        means = {name: float(np.mean([metrics[name] for metrics in updates])) for name in (updates or [{}])[0]}
        lag = {"policy_lag": float(np.mean(lags)), "policy_lag_max": float(max(lags))} if lags else {}
        return {**means, **lag, "discarded_steps": float(sum(discarded)), "updates": float(self.updates)}

    def _warn_if_most_are_discarded(self, learned: int, discarded: int) -> None:
        """Judged over many Fragments: a worker that stood still for a moment is no reason."""
        self._judged = (self._judged[0] + learned, self._judged[1] + discarded)
        learned, discarded = self._judged
        if learned + discarded < _FRAGMENTS_JUDGED:
            return
        self._judged = (0, 0)
        if discarded > learned:
            log.warning(
                "%d of the last %d Fragments were discarded: their Weights were more than %d updates old "
                "(max_policy_lag); set a higher max_policy_lag, a larger train_batch_size, or a smaller "
                "rollout_fragment_length",
                discarded, learned + discarded, self.config.max_policy_lag,
            )  # fmt: skip

    # What updates are built from.

    def outputs(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """(parameters of the present policy, its values as the network predicts them: normalised)."""
        params, values = self.actor_critic.both(rows.observations, rows.memory)
        return masked(params, rows.mask), values

    def vtrace(self, batch: Batch, take: Callable[[Array], Array], values: Tensor, ratios: Tensor) -> Estimates:
        """V-trace, from the outputs of the present network and the ratios π/μ of the rows that `take` takes."""
        config = self.config
        places = take(np.arange(batch.valid.size).reshape(batch.valid.shape))

        def spread(rows: Tensor) -> Array:  # to (T, N)
            array = np.zeros(batch.valid.size, np.float32)
            array[places] = rows.detach().cpu().numpy()
            return array.reshape(batch.valid.shape)

        found = spread(self.actor_critic.denormalised(values))
        following, ends = self.bootstrap_values(batch, found), self.returns_end(batch)
        with np.errstate(over="ignore", invalid="ignore"):  # the optimizer reports values that are not finite
            targets, advantages = returns.vtrace(
                self.rewards(batch),
                found,
                following,
                ends,
                spread(ratios),
                config.gamma,
                config.lambda_ if config.use_gae else 1.0,
                config.vtrace_clip_rho_threshold,
                config.vtrace_clip_c_threshold,
            )
        return Estimates(found, advantages, targets)

    def scaled_advantages(self, advantages: Array) -> Tensor:
        """Advantages of rows: standardized, or divided by the standard deviation of the returns."""
        if self.config.normalize_advantages:
            return self.tensor(returns.standardized(advantages))
        return self.tensor(advantages) / self.actor_critic.value_scale

    # State.

    def state(self) -> JsonAndTensors:
        state, tensors = super().state()
        return {**state, "updates": self.updates}, tensors

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self.updates = int(state["updates"])
        self._queue, self._lags, self._discarded, self._metrics = (), [], [], []
        return super().load(state, tensors, segments)

    def rollback_point(self) -> Callable[[], None]:
        restore_rest, queue = super().rollback_point(), self._queue
        lags, discarded, metrics = list(self._lags), list(self._discarded), list(self._metrics)

        def restore() -> None:
            restore_rest()
            self._queue = queue
            self._lags, self._discarded, self._metrics = list(lags), list(discarded), list(metrics)

        return restore
