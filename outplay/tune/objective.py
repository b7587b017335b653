"""Objective: the metrics that a study optimises, and their directions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outplay.errors import ConfigError, nearest

_MODES = ("min", "max")


class _HasResult(Protocol):
    @property
    def last_result(self) -> Mapping[str, Any]: ...


_T = TypeVar("_T", bound=_HasResult)


@dataclass(frozen=True)
class Objective:
    """One or several metrics, each with "min" or "max".

    >>> Objective.of("loss", "min").score({"loss": 0.5})  # higher is better
    -0.5
    """

    metrics: tuple[str, ...]
    modes: tuple[str, ...]

    @classmethod
    def of(cls, metric: str | Sequence[str] | None, mode: str | Sequence[str] | None) -> Objective:
        metrics = () if metric is None else (metric,) if isinstance(metric, str) else tuple(metric)
        modes = (
            ("max",) * len(metrics)
            if mode is None
            else (mode,) * len(metrics)
            if isinstance(mode, str)
            else tuple(mode)
        )
        if wrong := [each for each in ([mode] if isinstance(mode, str) else modes) if each not in _MODES]:
            raise ConfigError(f"mode must be 'min' or 'max', not {wrong[0]!r}{nearest(str(wrong[0]), _MODES)}")
        if len(metrics) != len(modes):
            raise ConfigError(f"{len(metrics)} metrics need {len(metrics)} modes, not {len(modes)}")
        return cls(metrics, modes)

    @property
    def metric(self) -> str:
        """The first metric. Raises ConfigError if there is none."""
        if not self.metrics:
            raise ConfigError("this needs a metric: metric='score', mode='max'")
        return self.metrics[0]

    @property
    def mode(self) -> str:
        return self.modes[0] if self.modes else "max"

    def agreed(self, given: Objective, owner: str) -> Objective:
        """This objective of a searcher or scheduler, or the study's if it has none. They must not differ."""
        if self.metrics and given.metrics and self != given:
            raise ConfigError(
                f"{owner} has metric={_shown(self.metrics)}, mode={_shown(self.modes)}, but the study has "
                f"metric={_shown(given.metrics)}, mode={_shown(given.modes)}; give them once"
            )
        return self if self.metrics else given

    def value(self, result: Mapping[str, Any]) -> float:
        """The first metric's value, or NaN."""
        return number(result, self.metric)

    def score(self, result: Mapping[str, Any]) -> float:
        """The first metric's value, with the sign that makes higher better. NaN if the result does not have it."""
        return self.value(result) if self.mode == "max" else -self.value(result)


def pareto_front(trials: Iterable[_T], objective: Objective) -> list[_T]:
    """The trials that no other trial dominates: none is at least as good in all metrics and better in one.

    Trials without a number for each metric are left out. Trials with equal results are all kept.
    """
    rated = [(trial, scores) for trial in trials if not any(map(math.isnan, scores := _scores(trial, objective)))]
    return [trial for trial, scores in rated if not any(_dominates(other, scores) for _, other in rated)]


def _scores(trial: _HasResult, objective: Objective) -> tuple[float, ...]:
    values = (number(trial.last_result, metric) for metric in objective.metrics)
    return tuple(value if mode == "max" else -value for value, mode in zip(values, objective.modes, strict=True))


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def _shown(names: tuple[str, ...]) -> str:
    return repr(names[0] if len(names) == 1 else list(names))


def number(result: Mapping[str, Any], metric: str) -> float:
    """A metric of a result, as a float; NaN if it is missing. `evaluation/return` is a metric within another."""
    value: Any = result
    if metric in result:
        value = result[metric]
    else:
        for part in metric.split("/"):
            if not isinstance(value, Mapping) or part not in value:
                return math.nan
            value = value[part]
    if isinstance(value, bool) or not isinstance(value, int | float):
        try:
            return float(value)
        except (TypeError, ValueError):
            return math.nan
    return float(value)


def known(score: float) -> float:
    """A score to sort by: NaN is the worst."""
    return -math.inf if math.isnan(score) else score
