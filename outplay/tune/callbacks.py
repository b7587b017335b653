"""Callbacks of a study, with the names and arguments of Ray Tune's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outplay.tune.trial import Metrics, Trial


class Callback:
    """Subclass it and pass an instance: `tune.run(…, callbacks=[MyCallback()])`.

    `iteration` is the number of results of all trials so far.
    """

    def setup(self, **info: Any) -> None:
        """Before the first trial.

        `info`: study (its name), folder, objective, total (trials, or None), time_budget_s, seconds (before a resume).
        """

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial starts, or continues."""

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Metrics, **info: Any
    ) -> None:
        """A trial has reported a result."""

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has ended: it finished, or was stopped."""

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has failed."""

    def on_checkpoint(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, checkpoint: str, **info: Any
    ) -> None:
        """A checkpoint of a trial was written."""

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        """The study has ended, by itself or by an error."""
