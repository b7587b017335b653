"""CheckpointPolicy: when a run writes checkpoints, and which of them it keeps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from outplay.runs.checkpoint import iteration_of
from outplay.runs.experiments import Experiment
from outplay.runs.folder import RunFolder
from outplay.runs.history import Record

_MAX_SAVING_FRACTION = 0.05  # of a run's time, for checkpoint_every_s


class CheckpointPolicy:
    """Checkpoints every n iterations and every n seconds. Keeps the newest, and the one with the best return."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._frequency = experiment.checkpoint_freq
        self._every_s = experiment.checkpoint_every_s
        self._keep = experiment.keep_checkpoints
        self._folder = folder
        self._due = math.inf  # time.monotonic() of the next checkpoint by time
        self._best: tuple[int, float, int] | None = None  # (level of the curriculum, return, iteration)

    def start(self, results: list[Record]) -> None:
        """Start the timer. `results` are those of all iterations so far."""
        saved = set(map(iteration_of, self._folder.checkpoints()))
        scored = [r for r in results if r["episode_return_mean"] is not None and r["training_iteration"] in saved]
        self._best = max(map(_scored, scored), default=None)
        self._restart_timer()

    def _restart_timer(self, saving_s: float = 0.0) -> None:
        """Set the time of the next checkpoint: after `checkpoint_every_s`, or later if the last save was slow."""
        if self._every_s:
            self._due = time.monotonic() + max(self._every_s, saving_s / _MAX_SAVING_FRACTION)

    def is_due(self, iteration: int) -> bool:
        is_time = time.monotonic() >= self._due
        return is_time or bool(self._frequency and iteration % self._frequency == 0)

    def score(self, result: Mapping[str, Any]) -> None:
        """Record the return of an iteration whose checkpoint is written next."""
        if not math.isnan(result["episode_return_mean"]):
            self._best = max(_scored(result), self._best or _scored(result))

    def after_saving(self, iteration: int, saving_s: float) -> None:
        """Remove old checkpoints and restart the timer."""
        if self._keep is not None:
            # Checkpoints of later iterations are damaged: otherwise the run would have resumed from them.
            found = [path for path in self._folder.checkpoints() if iteration_of(path) <= iteration]
            for path in found[: -self._keep]:
                if self._best is None or iteration_of(path) != self._best[-1]:
                    self._folder.remove_checkpoint(path)
        self._restart_timer(saving_s)


def _scored(result: Mapping[str, Any]) -> tuple[int, float, int]:
    """What checkpoints are compared by: a return on a harder level is better than any on an easier one."""
    return result.get("curriculum_level", 0), result["episode_return_mean"], result["training_iteration"]
