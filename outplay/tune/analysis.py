"""ExperimentAnalysis: the results of a study, while it is in memory or from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.conditions import flattened
from outplay.errors import ConfigError, RunError
from outplay.tune.checkpoint import Checkpoint
from outplay.tune.folder import StudyFolder
from outplay.tune.ledger import REPORT, Ledger
from outplay.tune.objective import Objective, known
from outplay.tune.schedulers import Scheduler
from outplay.tune.search import FINISHED, Finished, Searcher
from outplay.tune.spaces import Space, parsed
from outplay.tune.stoppers import NoopStopper
from outplay.tune.trial import Ancestor, Metrics, Status, Trial

if TYPE_CHECKING:
    import pandas

_SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")


class ExperimentAnalysis:
    """The trials of a study.

    >>> analysis = tune.run(train, config={"lr": tune.loguniform(1e-4, 1e-1)}, num_samples=20)
    >>> analysis.get_best_config(metric="loss", mode="min")
    {'lr': 0.0123}
    >>> ExperimentAnalysis("~/outplay_results/train_2026-11-16_12-00-00").dataframe()
    """

    def __init__(
        self,
        path: str | Path,
        default_metric: str | None = None,
        default_mode: str | None = None,
        trials: list[Trial] | None = None,
    ) -> None:
        """`path` is the study's folder. `trials` are those of a study that was run here."""
        self.folder = StudyFolder(path)
        settings = self.folder.settings()
        self.settings = settings
        self.objective = (
            Objective(tuple(settings["metric"]), tuple(settings["mode"]))
            if default_metric is None
            else Objective.of(default_metric, default_mode)
        )
        self._all = _read(self.folder) if trials is None else trials

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def trials(self) -> list[Trial]:
        """All trials of the search."""
        return [trial for trial in self._all if trial.id != REPORT]

    @property
    def reported(self) -> Trial:
        """The best configuration on seeds that the search has not used. Raises RunError without `report_seeds`."""
        for trial in self._all:
            if trial.id == REPORT:
                return trial
        raise RunError("the best configuration was not run on other seeds; set report_seeds")

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def errors(self) -> dict[str, str]:
        """The tracebacks of failed trials, by trial id."""
        return {trial.id: trial.error for trial in self.trials if trial.status == Status.ERROR}

    @property
    def results(self) -> dict[str, Metrics]:
        """The last result of each trial, by trial id."""
        return {trial.id: trial.last_result for trial in self.trials}

    # Curves. They are read from the journal when they are asked for: a study may have millions of results.

    def curves(self) -> dict[str, list[Metrics]]:
        """All results of each trial, by trial id. After a copy, a trial's curve continues with those of the copy."""
        found: dict[str, list[Metrics]] = {trial.id: [] for trial in self.trials}
        for entry in self.folder.entries():
            if entry["event"] == "result" and entry["trial"] in found:
                found[entry["trial"]].append(entry["metrics"])
        return found

    def lineage(self) -> dict[str, list[Ancestor]]:
        """For population-based training, by trial id: which trials it continued, from when on, with which values."""
        return {trial.id: trial.lineage for trial in self.trials if trial.lineage}

    # The best one.

    def _objective(self, metric: str | None, mode: str | None) -> Objective:
        if metric is None:
            objective = self.objective
            if len(objective.metrics) > 1:
                names = ", ".join(objective.metrics)
                raise ConfigError(f"the study has several metrics: name one ({names}), or use tune.pareto_front")
        else:
            objective = Objective.of(metric, mode or (self.objective.mode if self.objective.metrics else None))
            if mode is None and not self.objective.metrics:
                raise ConfigError("mode is missing: mode='min' or mode='max'")
        if objective.metrics:
            known_metrics = {name for trial in self.trials for name in flattened(trial.last_result)}
            if known_metrics and objective.metric not in known_metrics:
                raise ConfigError(
                    f"no trial has reported {objective.metric!r}; there is {', '.join(sorted(known_metrics)[:12])}"
                )
            return objective
        raise ConfigError("metric is missing: get_best_config(metric='score', mode='max')")

    def get_best_trial(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last", filter_nan_and_inf: bool = True
    ) -> Trial:
        """The best trial by its last result. Raises RunError if no trial has one.

        `scope`: "all" takes the best result of each trial, "avg", "last-5-avg" and "last-10-avg" take means.
        """
        if scope not in _SCOPES:
            raise ConfigError(f"scope must be one of {', '.join(_SCOPES)}, not {scope!r}")
        objective = self._objective(metric, mode)
        curves = {} if scope == "last" else self.curves()
        scored = []
        for trial in self.trials:
            values = [objective.score(result) for result in curves.get(trial.id, [trial.last_result])]
            values = [value for value in values if value == value] if filter_nan_and_inf else values
            if values and trial.last_result:
                scored.append((known(_in_scope(values, scope)), trial))
        if not scored:
            if any(trial.last_result for trial in self.trials):
                raise RunError(
                    f"no trial has a value of {objective.metric!r}: it is nan in every result (a return is, until an "
                    "episode has ended); train longer"
                )
            raise RunError("no trial has reported a result")
        return max(scored, key=lambda pair: pair[0])[1]

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        """The config of the best trial."""
        return self.get_best_trial(metric, mode, scope).config

    def get_best_checkpoint(
        self, trial: Trial, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """The checkpoint of a trial with the best result."""
        objective = self._objective(metric, mode)
        scores = {int(r["training_iteration"]): known(objective.score(r)) for r in self.curves().get(trial.id, [])}
        saved = [(scores.get(iteration, float("-inf")), iteration, path) for iteration, path in trial.checkpoints]
        existing = [each for each in saved if Path(self.folder.absolute(each[2])).exists()]
        return Checkpoint(self.folder.absolute(max(existing)[2])) if existing else None

    def get_last_checkpoint(self, trial: Trial | None = None) -> Checkpoint | None:
        """The newest checkpoint of a trial; default: of the best one."""
        trial = trial or self.best_trial
        return None if trial.checkpoint is None else Checkpoint(self.folder.absolute(trial.checkpoint))

    @property
    def best_trial(self) -> Trial:
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        return self.get_best_config()

    @property
    def best_result(self) -> Metrics:
        return self.best_trial.last_result

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        return self.get_best_checkpoint(self.best_trial)

    # Data frames.

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pandas.DataFrame:
        """One row per trial: its last result, or with `metric` and `mode` its best one; its id and its config."""
        rows = []
        curves = self.curves() if metric is not None else {}
        for trial in self.trials:
            result = trial.last_result
            if metric is not None and curves.get(trial.id):
                objective = Objective.of(metric, mode)
                result = max(curves[trial.id], key=lambda r: known(objective.score(r)))
            config = {f"config/{name}": value for name, value in trial.values.items()}
            rows.append({**flattened(result), "trial_id": trial.id, "status": str(trial.status), **config})
        return _pandas().DataFrame(rows)

    @property
    def trial_dataframes(self) -> dict[str, pandas.DataFrame]:
        """All results of each trial, by trial id."""
        pandas = _pandas()
        return {trial_id: pandas.DataFrame([flattened(r) for r in curve]) for trial_id, curve in self.curves().items()}


def _in_scope(values: list[float], scope: str) -> float:
    if scope == "all":
        return max(values)
    if scope == "last":
        return values[-1]
    last = {"avg": len(values), "last-5-avg": 5, "last-10-avg": 10}[scope]
    recent = values[-last:]
    return sum(recent) / len(recent)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise RunError("data frames need pandas; install it: pip install 'outplay[tune]'") from error
    return pandas


def _read(folder: StudyFolder) -> list[Trial]:
    """The trials of a study, from its journal. Nothing is imported, and nothing of the study's code is run."""
    ledger = Ledger(Space(parsed(folder.settings()["config"])), _NoSearch(), Scheduler(), NoopStopper())
    for entry in folder.entries():
        ledger.read(entry)
    return list(ledger.trials.values())


class _NoSearch(Searcher):
    """For reading a study: nothing is suggested."""

    def suggest(self, trial_id: str) -> Finished:  # noqa: ARG002
        return FINISHED


def best_first(analysis: ExperimentAnalysis) -> Iterator[Trial]:
    """The trials that have results, the best one first."""
    objective = analysis.objective
    yield from sorted(
        (trial for trial in analysis.trials if trial.last_result),
        key=lambda trial: known(objective.score(trial.last_result)) if objective.metrics else -trial.index,
        reverse=True,
    )


__all__ = ["ExperimentAnalysis", "best_first"]
