"""Stop conditions of a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from outplay.errors import ConfigError, nearest
from outplay.runs.experiments import Experiment
from outplay.runs.history import flattened

log = logging.getLogger("outplay")

_CONFIRMED = "episode_return_mean"
_CONFIRM_EVERY = 5  # iterations
_TIME = "time_total_s"
_COUNTERS = frozenset({"training_iteration", "timesteps_total", "episodes_total", _TIME})
_LONG_FRACTION, _LONG_S = 0.1, 1.0  # an iteration is long above this fraction of time_total_s, and these seconds


class StopConditions:
    """Thresholds of metrics. A run stops when any metric reaches its threshold."""

    def __init__(self, experiment: Experiment, last_level: int = 0) -> None:
        """`last_level` of the curriculum: on the levels before it, metrics of episodes stop no run."""
        self._last_level = last_level
        self._thresholds = experiment.stop
        self._confirm = experiment.confirm
        self._has_warned = False
        self._first: dict[str, float] = {}  # the first values of metrics that do not count from 0

    def start(self, kept: Iterable[Mapping[str, Any]]) -> None:
        """Take the results of earlier processes into account."""
        for result in kept:
            self.fractions(result)
            if self._thresholds.keys() <= self._first.keys() | _COUNTERS:
                break

    def reason(self, last: Mapping[str, Any]) -> str:
        """The condition that is reached with this result; empty if the run continues."""
        metrics = flattened(last)
        for name, threshold in self._thresholds.items():
            if self._is_too_early(name, last):
                continue
            if name not in metrics:
                if "learner" in last and name.startswith("learner/"):
                    raise ConfigError(f"stop: there is no metric {name!r}{nearest(name, metrics)}")
                continue
            value = metrics[name]
            if name == _CONFIRMED and self._confirm:
                confirmation = metrics.get(f"evaluation/{name}") if _is_of_this_iteration(last) else None
                value = None if value is None or confirmation is None else min(value, confirmation)
            if name == _TIME:
                self._warn_if_long(metrics.get("time_this_iter_s", 0.0), threshold)
            if value is not None and value >= threshold:
                return f"{name} reached {threshold:g}"
        return ""

    def _is_too_early(self, name: str, last: Mapping[str, Any]) -> bool:
        """Whether this is a metric of episodes, and they belong to an easier level than the last one."""
        source, _, metric = name.rpartition("/")
        level = last.get("curriculum_level", self._last_level)
        if source:
            level = last.get(source, {}).get("curriculum_level", level)
        is_of_episodes = metric.startswith(("episode_return_", "episode_len_"))
        return bool(is_of_episodes and level < self._last_level)

    def _warn_if_long(self, seconds: float, limit: float) -> None:
        if not self._has_warned and seconds > max(_LONG_S, _LONG_FRACTION * limit):
            self._has_warned = True
            log.warning(
                "an iteration takes %.3g s, and runs stop only between iterations: %s may exceed its limit of %g; "
                "reduce train_batch_size for shorter iterations", seconds, _TIME, limit,
            )  # fmt: skip

    def needs_confirmation(self, last: Mapping[str, Any]) -> bool:
        """Whether an evaluation must confirm the return.

        Depends on the iteration, not on time, so that a resumed run stops at the same iteration.
        """
        threshold = self._thresholds.get(_CONFIRMED)
        if not self._confirm or threshold is None or last["training_iteration"] % _CONFIRM_EVERY:
            return False
        if self._is_too_early(_CONFIRMED, last):
            return False
        return bool(last[_CONFIRMED] >= threshold and not _is_of_this_iteration(last))

    def fractions(self, last: Mapping[str, Any]) -> dict[str, float]:
        """Progress towards each stop condition, from 0 to 1. The progress of a return starts at its first value."""
        metrics = flattened(last)
        found = {}
        for name, limit in self._thresholds.items():
            value = metrics.get(name)
            if value is None or math.isnan(value):
                found[name] = 0.0
                continue
            first = 0.0 if name in _COUNTERS else self._first.setdefault(name, value)
            done = 1.0 if value >= limit else (value - first) / (limit - first) if limit > first else 0.0
            if self._is_too_early(name, last):
                done = (last["curriculum_level"] + done) / (self._last_level + 1)
            is_unconfirmed = self._confirm and name == _CONFIRMED and not _is_of_this_iteration(last)
            found[name] = max(0.0, min(0.99 if is_unconfirmed else 1.0, done))
        return found

    def progress(self, last: Mapping[str, Any]) -> float:
        """Progress towards the nearest stop condition, from 0 to 1."""
        return max(self.fractions(last).values(), default=0.0)


def _is_of_this_iteration(last: Mapping[str, Any]) -> bool:
    """Whether a result has an evaluation of its own weights. One beside training has those of an earlier iteration."""
    return "evaluation" in last and "iteration" not in last["evaluation"]
