"""Stop conditions of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from outplay.errors import ConfigError, nearest
from outplay.runs.experiments import Experiment
from outplay.runs.history import flattened

log = logging.getLogger("outplay")

_CONFIRMED = "episode_return_mean"
_CONFIRM_EVERY = 5  # iterations
_TIME = "time_total_s"
_LONG_FRACTION, _LONG_S = 0.1, 1.0  # an iteration is long above this fraction of time_total_s, and these seconds


class StopConditions:
    """Thresholds of metrics. A run stops when any metric reaches its threshold."""

    def __init__(self, experiment: Experiment) -> None:
        self._thresholds = experiment.stop
        self._confirm = experiment.confirm
        self._has_warned = False

    def reason(self, last: Mapping[str, Any]) -> str:
        """The condition that is reached with this result; empty if the run continues."""
        metrics = flattened(last)
        for name, threshold in self._thresholds.items():
            if name not in metrics:
                if "learner" in last and name.startswith("learner/"):
                    raise ConfigError(f"stop: there is no metric {name!r}{nearest(name, metrics)}")
                continue
            value = metrics[name]
            if name == _CONFIRMED and self._confirm:
                confirmation = metrics.get(f"evaluation/{name}")
                value = None if value is None or confirmation is None else min(value, confirmation)
            if name == _TIME:
                self._warn_if_long(metrics.get("time_this_iter_s", 0.0), threshold)
            if value is not None and value >= threshold:
                return f"{name} reached {threshold:g}"
        return ""

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
        return bool(last[_CONFIRMED] >= threshold and "evaluation" not in last)

    def progress(self, last: Mapping[str, Any]) -> float:
        """Progress towards the nearest stop condition, from 0 to 1."""
        metrics = flattened(last)
        fractions = [(metrics.get(name) or 0.0) / limit for name, limit in self._thresholds.items() if limit > 0]
        return max(0.0, min(1.0, max(fractions, default=0.0)))
