"""When a run ends by itself: its stop conditions."""

from __future__ import annotations

import logging

from outplay.errors import ConfigError, nearest
from outplay.runs.experiments import Experiment
from outplay.runs.history import Result, flattened

log = logging.getLogger("outplay")

_CONFIRMED = "episode_return_mean"
_CONFIRM_EVERY = 5  # iterations
_TIME = "time_total_s"
_LONG_ITERATION, _LONG_S = 0.1, 1.0  # of the limit of time_total_s; in seconds


class StopConditions:
    """Metrics with a threshold each. Reaching any of them ends the run."""

    def __init__(self, experiment: Experiment) -> None:
        self._thresholds = experiment.stop
        self._confirm = experiment.confirm
        self._told_long = False

    def reason(self, last: Result) -> str:
        """Why the run ends after this result; empty if it goes on."""
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
                self._tell_if_long(metrics.get("time_this_iter_s", 0.0), threshold)
            if value is not None and value >= threshold:
                return f"{name} reached {threshold:g}"
        return ""

    def _tell_if_long(self, seconds: float, limit: float) -> None:
        if not self._told_long and seconds > max(_LONG_S, _LONG_ITERATION * limit):
            self._told_long = True
            log.warning(
                "an iteration takes %.3g s, and a run ends after a whole one, so %s may exceed its limit of %g; "
                "a smaller train_batch_size makes iterations shorter", seconds, _TIME, limit,
            )  # fmt: skip

    def needs_confirmation(self, last: Result) -> bool:
        """Whether an evaluation is to show that the return is real. By iterations, so that a resumed run ends alike."""
        threshold = self._thresholds.get(_CONFIRMED)
        if not self._confirm or threshold is None or last["training_iteration"] % _CONFIRM_EVERY:
            return False
        return bool(last[_CONFIRMED] >= threshold and "evaluation" not in last)

    def progress(self, last: Result) -> float:
        """How near the nearest stop condition is, from 0 to 1."""
        metrics = flattened(last)
        shares = [(metrics.get(name) or 0.0) / limit for name, limit in self._thresholds.items() if limit > 0]
        return max(0.0, min(1.0, max(shares, default=0.0)))
