"""Which checkpoints a run writes, and which it keeps."""

from __future__ import annotations

import math
import time

from outplay.runs.checkpoint import iteration_of
from outplay.runs.experiments import Experiment
from outplay.runs.folder import RunFolder
from outplay.runs.history import Result

_SAVING_SHARE = 0.05  # of a run's time that checkpoint_every_s may take


class CheckpointPolicy:
    """By iterations and by the clock. The last few are kept, and the one with the best return."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._frequency = experiment.checkpoint_freq
        self._every_s = experiment.checkpoint_every_s
        self._keep = experiment.keep_checkpoints
        self._folder = folder
        self._due = math.inf  # by the clock: time.monotonic()
        self._best: tuple[float, int] | None = None  # (return, iteration)

    def start(self, results: list[Result]) -> None:
        """From now on the clock counts. `results` are those of the iterations so far."""
        saved = set(map(iteration_of, self._folder.checkpoints()))
        scored = [(r["episode_return_mean"], r["training_iteration"]) for r in results]
        self._best = max((pair for pair in scored if pair[0] is not None and pair[1] in saved), default=None)
        self._restart_clock()

    def _restart_clock(self, took: float = 0.0) -> None:
        """The next checkpoint is due after a while; later, if the last one took long."""
        if self._every_s:
            self._due = time.monotonic() + max(self._every_s, took / _SAVING_SHARE)

    def is_due(self, iteration: int) -> bool:
        by_clock = time.monotonic() >= self._due
        return by_clock or bool(self._frequency and iteration % self._frequency == 0)

    def score(self, result: Result) -> None:
        """The checkpoint of this result is about to be written."""
        value = result["episode_return_mean"]
        if not math.isnan(value) and (self._best is None or value >= self._best[0]):
            self._best = (value, result["training_iteration"])

    def after_saving(self, iteration: int, took: float) -> None:
        """Remove the checkpoints that are not kept."""
        if self._keep is not None:
            # Later ones are damaged, or the run would have gone on from them: they do not count.
            found = [path for path in self._folder.checkpoints() if iteration_of(path) <= iteration]
            for path in found[: -self._keep]:
                if self._best is None or iteration_of(path) != self._best[1]:
                    self._folder.remove_checkpoint(path)
        self._restart_clock(took)
