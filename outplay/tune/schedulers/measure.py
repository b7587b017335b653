"""Measure: the time and the score that a scheduler reads in a result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from outplay.errors import ConfigError
from outplay.tune.objective import Objective, number
from outplay.tune.trial import Metrics, Trial


class Measure:
    """Reads results for a scheduler, whose name `who` is used in messages.

    >>> measure = Measure("ASHAScheduler", "training_iteration", "loss", "min")
    >>> measure.objective = measure.agree(Objective.of(None, None))
    >>> measure.score(trial, {"loss": 0.5})  # higher is better
    -0.5
    """

    objective: Objective

    def __init__(self, who: str, time_attr: str, metric: str | None, mode: str | None) -> None:
        if metric is None and mode is not None:
            raise ConfigError(f"{who}: mode={mode!r} needs a metric, too: metric='score', mode={mode!r}")
        self.who, self.time_attr = who, time_attr
        self.own, self.has_mode = Objective.of(metric, mode), mode is not None

    def agree(self, study: Objective) -> Objective:
        """The objective: the scheduler's own, or else that of the study. Raises ConfigError if they differ."""
        if not self.own.metrics:
            if not study.metrics:
                raise ConfigError(f"{self.who} needs a metric: metric='score', mode='max'")
            return study
        if not study.metrics:
            return self.own
        modes = dict(zip(study.metrics, study.modes, strict=True))
        metric = self.own.metric
        if metric not in modes or (self.has_mode and modes[metric] != self.own.mode):
            theirs = ", ".join(f"{name} ({mode})" for name, mode in modes.items())
            raise ConfigError(
                f"{self.who} optimises {metric} ({self.own.mode}), the study {theirs}: give metric and mode only once"
            )
        return Objective.of(metric, modes[metric])

    def time(self, trial: Trial, result: Metrics) -> float:
        """The time of a result. Raises ConfigError if it has none."""
        time = number(result, self.time_attr)
        if not math.isfinite(time):
            raise ConfigError(self._missing("time_attr", self.time_attr, trial, result))
        return time

    def score(self, trial: Trial, result: Metrics) -> float:
        """The score of a result; -inf if it is not a number. Raises ConfigError if the result has no such metric."""
        if not _has(result, self.objective.metric):
            raise ConfigError(self._missing("metric", self.objective.metric, trial, result))
        score = self.objective.score(result)
        return -math.inf if math.isnan(score) else score

    def is_in(self, result: Metrics) -> bool:
        """Whether a result has both the time and the metric."""
        return math.isfinite(number(result, self.time_attr)) and _has(result, self.objective.metric)

    def unreached(self, name: str, limit: float, longest: float) -> str:
        """The remark of a scheduler whose first comparison would have been at `limit`, a setting called `name`."""
        count = "time_attr='training_iteration' counts iterations; or " if self.time_attr == "time_total_s" else ""
        return (
            f"{self.who} has compared no trials: they ended at {self.time_attr} {longest:.4g} or before, "
            f"with {name}={limit:g}; {count}set a smaller {name}"
        )

    def _missing(self, kind: str, name: str, trial: Trial, result: Metrics) -> str:
        names = ", ".join(sorted(_names(result))) or "none"
        return f"{self.who}: {kind} {name!r} is not in the result of trial {trial.id}. Its metrics: {names}"


def _has(result: Mapping[str, Any], metric: str) -> bool:
    if metric in result:
        return True
    value: Any = result
    for part in metric.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _names(result: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{path}{name}/")
        else:
            yield f"{path}{name}"


def check(who: str, name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> None:
    """Raises ConfigError unless `value` is a number above `above` and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > above and value >= least):
        bound = f"above {above:g}" if above > -math.inf else f"of at least {least:g}"
        raise ConfigError(f"{who}: {name} must be a number {bound}, not {value!r}")
