"""Stoppers: when a trial, or the whole study, has gone on long enough."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from outplay.errors import ConfigError
from outplay.tune.objective import number
from outplay.tune.trial import Metrics


class Stopper(ABC):
    """Decides after each result whether its trial ends. Its state must follow from the calls."""

    @abstractmethod
    def __call__(self, trial_id: str, result: Metrics) -> bool:
        """Whether this trial ends."""

    def stop_all(self) -> bool:
        """Whether the study ends."""
        return False


class NoopStopper(Stopper):
    """Never."""

    def __call__(self, trial_id: str, result: Metrics) -> bool:  # noqa: ARG002
        return False


class ConditionStopper(Stopper):
    """When a metric has reached a value: {"training_iteration": 10, "score": 0.9}."""

    def __init__(self, conditions: Mapping[str, float]) -> None:
        for metric, value in conditions.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"stop: {metric} must be a number, not {value!r}")
        self._conditions = dict(conditions)

    def __call__(self, trial_id: str, result: Metrics) -> bool:  # noqa: ARG002
        return any(number(result, metric) >= value for metric, value in self._conditions.items())


class MaximumIterationStopper(Stopper):
    """After this many results of a trial."""

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter

    def __call__(self, trial_id: str, result: Metrics) -> bool:  # noqa: ARG002
        return int(result["training_iteration"]) >= self._max_iter


class FunctionStopper(Stopper):
    """When a function of (trial_id, result) returns True."""

    def __init__(self, function: Callable[[str, Metrics], bool]) -> None:
        try:
            inspect.signature(function).bind("trial", {})
        except TypeError:
            raise ConfigError("stop: the function must take two arguments: trial_id and result") from None
        self._function = function

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        try:
            return bool(self._function(trial_id, result))
        except Exception as error:
            raise ConfigError(f"stop: the function raised {type(error).__name__}: {error}") from error


class TrialPlateauStopper(Stopper):
    """When a trial's metric no longer changes: the standard deviation of its last results is at most `std`."""

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        """`metric_threshold`: stop only if the metric is above it (mode "max") or below it (mode "min")."""
        if metric_threshold is not None and mode not in ("min", "max"):
            raise ConfigError(f"TrialPlateauStopper: metric_threshold needs mode='min' or mode='max', not {mode!r}")
        self._metric, self._std, self._grace = metric, std, grace_period
        self._threshold, self._mode = metric_threshold, mode
        self._seen: dict[str, int] = defaultdict(int)
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        value = number(result, self._metric)
        recent = self._recent[trial_id]
        recent.append(value)
        self._seen[trial_id] += 1
        if self._seen[trial_id] < self._grace or len(recent) < (recent.maxlen or 0):
            return False
        if self._threshold is not None:
            good = value >= self._threshold if self._mode == "max" else value <= self._threshold
            if not good:
                return False
        return bool(np.std(recent) <= self._std)


class ExperimentPlateauStopper(Stopper):
    """The whole study, when its best results no longer improve: the `top` best are within `std`, `patience` times."""

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        if mode not in ("min", "max"):
            raise ConfigError(f"ExperimentPlateauStopper: mode must be 'min' or 'max', not {mode!r}")
        self._metric, self._std, self._top, self._mode, self._patience = metric, std, top, mode, patience
        self._best: list[float] = []
        self._stale = 0
        self._done = False

    def __call__(self, trial_id: str, result: Metrics) -> bool:  # noqa: ARG002
        value = number(result, self._metric)
        if not math.isnan(value):
            self._best = sorted([*self._best, value], reverse=self._mode == "max")[: self._top]
        is_stale = len(self._best) == self._top and bool(np.std(self._best) <= self._std)
        self._stale = self._stale + 1 if is_stale else 0
        self._done = self._stale > self._patience
        return self._done

    def stop_all(self) -> bool:
        return self._done


class CombinedStopper(Stopper):
    """When any of several stoppers says so."""

    def __init__(self, *stoppers: Stopper) -> None:
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        answers = [stopper(trial_id, result) for stopper in self._stoppers]  # all of them see the result
        return any(answers)

    def stop_all(self) -> bool:
        return any(stopper.stop_all() for stopper in self._stoppers)


def stopper_of(stop: Any) -> Stopper:
    """The Stopper of what a user gives as `stop`."""
    if stop is None:
        return NoopStopper()
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return ConditionStopper(stop)
    if isinstance(stop, list | tuple):
        return CombinedStopper(*map(stopper_of, stop))
    if callable(stop):
        return FunctionStopper(stop)
    raise ConfigError(
        f"stop must be a dict {{metric: value}}, a function of (trial_id, result) or a Stopper, not {stop!r}"
    )
