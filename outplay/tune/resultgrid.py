"""ResultGrid: the results of a Tuner, with the names of Ray Tune's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outplay.errors import TuneError
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.checkpoint import Checkpoint
from outplay.tune.trial import Metrics, Trial

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """The outcome of one trial."""

    metrics: Metrics  # the last result
    config: dict[str, Any]
    checkpoint: Checkpoint | None
    error: TuneError | None
    path: str  # of the trial's files
    trial: Trial
    analysis: ExperimentAnalysis = field(repr=False, compare=False)  # of the whole study

    @property
    def log_dir(self) -> str:
        return self.path

    @property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """All results of the trial, one row each. It is read from disk when it is asked for."""
        return self.analysis.trial_dataframes[self.trial.id]

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, Metrics]]:
        """The checkpoints that were kept, with the results that belong to them, in the order of their iterations."""
        results = {int(result["training_iteration"]): result for result in self.analysis.curves()[self.trial.id]}
        folder = self.analysis.folder
        found = {iteration: folder.absolute(path) for iteration, path in self.trial.checkpoints}
        return [(Checkpoint(path), results[i]) for i, path in sorted(found.items()) if os.path.isdir(path)]


class ResultGrid:
    """The results of all trials. `analysis` is the same study as an ExperimentAnalysis."""

    def __init__(self, analysis: ExperimentAnalysis) -> None:
        self.analysis = analysis

    def __len__(self) -> int:
        return len(self.analysis)

    def __getitem__(self, index: int) -> Result:
        return self._result(self.analysis.trials[index])

    def __iter__(self) -> Iterator[Result]:
        return map(self._result, self.analysis.trials)

    def _result(self, trial: Trial) -> Result:
        error = TuneError(trial.error) if trial.error and trial.status == "ERROR" else None
        path = self.analysis.folder.trial_folder(trial.id)
        checkpoint = self.analysis.get_last_checkpoint(trial)
        return Result(trial.last_result, trial.config, checkpoint, error, str(path), trial, self.analysis)

    def get_best_result(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Result:
        """The result of the best trial. Raises RunError if no trial has one."""
        return self._result(self.analysis.get_best_trial(metric, mode, scope))

    def get_dataframe(self) -> pandas.DataFrame:
        """One row per trial."""
        return self.analysis.dataframe()

    @property
    def errors(self) -> list[TuneError]:
        return [TuneError(text) for text in self.analysis.errors.values()]

    @property
    def num_errors(self) -> int:
        return len(self.analysis.errors)

    @property
    def num_terminated(self) -> int:
        return sum(trial.status == "TERMINATED" for trial in self.analysis.trials)
