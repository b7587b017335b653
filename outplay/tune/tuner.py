"""Tuner: from a trainable and settings to a finished study."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from outplay.errors import ConfigError, RunError, nearest, shortened
from outplay.runs.results import folder_name, results_folder
from outplay.streams import stream
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.callbacks import Callback
from outplay.tune.configs import RunConfig, TuneConfig
from outplay.tune.display import StudyDisplay
from outplay.tune.folder import StudyFolder, plain
from outplay.tune.ledger import Ledger
from outplay.tune.objective import Objective
from outplay.tune.plan import Plan
from outplay.tune.resources import Slots, bundles_of, run_resources
from outplay.tune.resultgrid import ResultGrid
from outplay.tune.schedulers import Scheduler
from outplay.tune.search import Finished, Searcher, Variants
from outplay.tune.seeds import check_aggregate, report_seeds, search_seeds
from outplay.tune.spaces import Space, Values, described
from outplay.tune.stoppers import stopper_of
from outplay.tune.study import Study
from outplay.tune.trainables import checked_trainable, experiment_of, name_of
from outplay.tune.trial import Status

_RESUMES = ("AUTO", "LOCAL", "ERRORED", "RESTART_ERRORED")
_FIXED = ("trainable", "metric", "mode", "searcher", "scheduler", "seed", "seeds", "aggregate", "config")


class Tuner:
    """A study: `Tuner(train, param_space={…}, tune_config=TuneConfig(…), run_config=RunConfig(…)).fit()`."""

    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        resources_per_trial: Any = None,
        resume: bool | str = False,
    ) -> None:
        """All settings are checked here; nothing is written before `fit`."""
        run_config = run_config or getattr(trainable, "run_config", None)  # of a trainer of outplay.train
        self._tune, self._run = tune_config or TuneConfig(), run_config or RunConfig()
        self._given = trainable
        self._trainable = checked_trainable(trainable)
        if callable(check := getattr(self._trainable, "check_space", None)):
            check(param_space or {})
        self._resume = _resume_modes(resume)
        if resources_per_trial is None:
            resources_per_trial = getattr(trainable, "resources_per_trial", None)
        if resources_per_trial is None and self._is_run:
            resources_per_trial = run_resources(param_space or {})
        self._bundles = bundles_of(resources_per_trial)
        self._check_settings()
        self._name = self._run.name or f"{name_of(trainable)}_{datetime.now():%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(2)}"
        if folder_name(self._name) != self._name:
            raise ConfigError(f"name: {self._name!r} cannot be used for a folder; use letters, digits, - and _")
        self._space = Space(self._scheduler.prepare(param_space or {}))
        if self._tune.seeds > 1 and "seed" in (param_space or {}):
            raise ConfigError("config has a seed, but seeds sets it for each run; leave it out")
        if self._is_run:
            self._check_experiment()
        self._ledger = self._new_ledger()
        self._plan = self._new_plan()
        self._analysis: ExperimentAnalysis | None = None

    def _check_settings(self) -> None:
        tune, run = self._tune, self._run
        budget = tune.time_budget_s
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0):
            raise ConfigError(f"time_budget_s must be a number of seconds above 0, not {budget!r}")
        _number("seed", tune.seed, 0)
        _number("checkpoint_freq", run.checkpoint_config.checkpoint_frequency, 0)
        if not isinstance(run.failure_config.fail_fast, bool):
            raise ConfigError(f"fail_fast must be True or False, not {run.failure_config.fail_fast!r}")
        if run.storage_path is not None and not isinstance(run.storage_path, str | Path):
            raise ConfigError(f"storage_path must be a folder, not {run.storage_path!r}")
        for callback in run.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks must be objects of tune.Callback, not {callback!r}")

    def _check_experiment(self) -> None:
        """Check the settings of one trial's experiment, so that a wrong name is found before anything is written."""
        from outplay.runs.loading import check_settings  # it needs torch

        stop = self._run.stop if isinstance(self._run.stop, Mapping) else {}
        config = self._space.config(self._space.sample(stream(self._tune.seed, "tune check")))
        experiment = experiment_of(self._trainable, config, stop)
        check_settings(experiment, "config")
        has_end = experiment["stop"] or self._run.stop or self._tune.scheduler or self._tune.time_budget_s
        if not has_end:
            raise ConfigError("without a stop condition the trials never end; add stop={'timesteps_total': 50_000}")

    @property
    def _scheduler(self) -> Scheduler:
        scheduler = self._tune.scheduler or Scheduler()
        if not isinstance(scheduler, Scheduler):
            raise ConfigError(f"scheduler must be a Scheduler, as tune.schedulers.ASHAScheduler(), not {scheduler!r}")
        return scheduler

    @property
    def _is_run(self) -> bool:
        return isinstance(self._trainable, str)

    def _new_ledger(self) -> Ledger:
        tune = self._tune
        searcher = tune.search_alg or Variants(tune.num_samples, tune.points_to_evaluate)
        if not isinstance(searcher, Searcher):
            raise ConfigError(f"search_alg must be a Searcher, as tune.search.OptunaSearch(), not {searcher!r}")
        if tune.search_alg is not None and tune.points_to_evaluate:
            raise ConfigError(f"points_to_evaluate is an argument of {type(searcher).__name__}; give it there")
        scheduler = self._scheduler
        objective = Objective.of(tune.metric, tune.mode)
        searcher.setup(self._space, objective, tune.seed)
        scheduler.setup(objective, self._space, tune.seed)
        stop = None if self._is_run and isinstance(self._run.stop, Mapping) else self._run.stop
        return Ledger(self._space, searcher, scheduler, stopper_of(stop))

    def _new_plan(self) -> Plan:
        tune, failure, checkpoint = self._tune, self._run.failure_config, self._run.checkpoint_config
        check_aggregate(tune.aggregate)
        objective = self._objective
        if tune.report_seeds and not objective.metrics:
            raise ConfigError("report_seeds needs a metric and a mode: which configuration is the best?")
        is_own = isinstance(self._ledger.searcher, Variants)  # it ends by itself
        return Plan(
            name=self._name,
            objective=objective,
            total=self._total,
            num_samples=-1 if is_own else _number("num_samples", tune.num_samples, -1),
            seeds=search_seeds(tune.seed, _number("seeds", tune.seeds, 1)),
            report_seeds=report_seeds(tune.seed, _number("report_seeds", tune.report_seeds, 0)),
            aggregate=tune.aggregate,
            max_failures=_number("max_failures", failure.max_failures, -1),
            max_concurrent=_number("max_concurrent_trials", tune.max_concurrent_trials, 1),
            time_budget_s=tune.time_budget_s,
            checkpoint_freq=checkpoint.checkpoint_frequency,
            checkpoint_at_end=checkpoint.checkpoint_at_end,
            fail_fast=failure.fail_fast,
            is_run=self._is_run,
            stop=dict(self._run.stop) if self._is_run and isinstance(self._run.stop, Mapping) else {},
            resources={name[4:-1]: value for name, value in self._bundles[0].items()},  # num_cpus → cpu
            callbacks=[*self._run.callbacks, *([StudyDisplay()] if self._run.verbose else [])],
        )

    @property
    def _total(self) -> int | None:
        """The number of trials; None if it is not known."""
        if isinstance(self._ledger.searcher, Variants):
            return self._ledger.searcher.total
        return None if self._tune.num_samples < 0 else self._tune.num_samples

    @property
    def _objective(self) -> Objective:
        """The study's metric, or that of the searcher or scheduler, which may have been given there."""
        for part in (self._ledger.searcher, self._ledger.scheduler):
            if part.objective.metrics:
                return part.objective
        return Objective.of(self._tune.metric, self._tune.mode)

    # Running.

    def fit(self) -> ResultGrid:
        """Run the study. Failed trials are in the results' `errors`."""
        with self._opened() as folder:
            slots = Slots(self._trainable, self._bundles, self._slot_limit, self._registrations())
            study = Study(self._plan, self._ledger, folder, slots)
            study.run()
            self._analysis = ExperimentAnalysis(folder.path, trials=study.trials)
        return ResultGrid(self._analysis)

    def _registrations(self) -> Any:
        """Environments that were registered here, which the trials' processes do not know."""
        if not self._is_run:
            return None
        from outplay.runs.loading import registrations  # it needs torch

        return registrations(self._space.every_value)

    def preview(self, number: int) -> list[Values]:
        """The values of the first trials, as far as they are chosen without results. To be called instead of `fit`."""
        found: list[Values] = []
        while len(found) < number:
            values = self._ledger.searcher.suggest(f"{len(found):05d}")
            if values is None or isinstance(values, Finished):
                break
            found.append(self._ledger.scheduler.suggested(values))
        return found

    @property
    def total(self) -> int | None:
        """The number of trials; None if it is not known."""
        return self._plan.total

    @property
    def space(self) -> Space:
        return self._space

    def get_results(self) -> ResultGrid:
        """The results of `fit`, or those so far of a study that is on disk."""
        if self._analysis is not None:
            return ResultGrid(self._analysis)
        return ResultGrid(ExperimentAnalysis(self._folder_path))

    @property
    def _folder_path(self) -> Path:
        return results_folder(self._run.storage_path) / self._name

    @property
    def _slot_limit(self) -> int | None:
        plan = self._plan
        per_trial = max(len(plan.seeds), len(plan.report_seeds))
        return None if plan.max_concurrent is None else plan.max_concurrent * per_trial

    @contextmanager
    def _opened(self) -> Iterator[StudyFolder]:
        folder = StudyFolder(self._folder_path)
        if self._resume and not folder.exists and "AUTO" not in self._resume:
            raise RunError(f"there is no study to resume in {folder.path}; resume='AUTO' starts a new one then")
        is_new = not (self._resume and folder.exists)
        if is_new:
            folder.create(self._settings())
        else:
            folder.open()
        try:
            if not is_new:
                self._check_unchanged(folder)
            for entry in folder.entries():
                self._ledger.read(entry)
            self._continue(folder)
            yield folder
        except Exception:
            if is_new and not any(entry["event"] == "result" for entry in folder.entries()):
                folder.remove()  # it could not begin: the name is free again
            raise
        finally:
            folder.close()

    def _check_unchanged(self, folder: StudyFolder) -> None:
        """A resumed study has the settings that it was started with. It may get more trials, and seeds to report."""
        before, now = folder.settings(), json.loads(json.dumps(self._settings(), default=plain))
        for key in _FIXED:
            name, old, new = _difference(key, before.get(key), now[key])
            if old != new:
                raise ConfigError(
                    f"the study in {folder.path} was started with {name} {shortened(repr(old))}, not "
                    f"{shortened(repr(new))}; resume it with the same settings, or use another name"
                )
        folder.write_settings({**now, "created": before["created"]})

    def _continue(self, folder: StudyFolder) -> None:
        """After a restart: trials that were running wait to continue; failed ones, if they are to be tried again."""
        ledger = self._ledger
        for trial in ledger.with_status(Status.RUNNING):
            ledger.set_status(trial, Status.PENDING)
        again = self._resume & {"ERRORED", "RESTART_ERRORED"}
        for trial in ledger.with_status(Status.ERROR) if again else ():
            from_start = "RESTART_ERRORED" in self._resume
            folder.append({"event": "retry", "trial": trial.id, "from_start": from_start, "time": ledger.seconds})
            ledger.retry(trial, from_start)

    def _settings(self) -> dict[str, Any]:
        """What study.json has."""
        plan, ledger = self._plan, self._ledger
        return {
            "name": plan.name,
            "created": datetime.now().astimezone().isoformat(timespec="seconds"),
            "trainable": name_of(self._given),
            "metric": list(plan.objective.metrics),
            "mode": list(plan.objective.modes),
            "searcher": type(ledger.searcher).__name__,
            "scheduler": type(ledger.scheduler).__name__,
            "num_samples": self._tune.num_samples,
            "total": plan.total,
            "seed": self._tune.seed,
            "seeds": plan.seeds,
            "report_seeds": plan.report_seeds,
            "aggregate": plan.aggregate,
            "config": described(self._space.template),
        }

    @classmethod
    def restore(
        cls,
        path: str | Path,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        resume_errored: bool = False,
        restart_errored: bool = False,
        **more: Any,
    ) -> Self:
        """The study in this folder; `fit` continues it. Give the same trainable, space and settings as before."""
        folder = results_folder(path)
        StudyFolder(folder).check_is_study()
        resume = "LOCAL" + "+ERRORED" * resume_errored + "+RESTART_ERRORED" * restart_errored
        if tune_config is None:
            tune_config = _recorded(StudyFolder(folder).settings())
        where = replace(run_config or RunConfig(), name=folder.name, storage_path=folder.parent)
        return cls(trainable, param_space=param_space, tune_config=tune_config, run_config=where, resume=resume, **more)

    @classmethod
    def can_restore(cls, path: str | Path) -> bool:
        """Whether there is a study in this folder."""
        return StudyFolder(path).exists


def _difference(name: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """The first setting that differs, as (its name, the old value, the new one). `import_from` may differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if key != "import_from" and old.get(key) != new.get(key):
                return _difference(f"{name}/{key}", old.get(key), new.get(key))
        return name, None, None
    return name, old, new


def _recorded(settings: Mapping[str, Any]) -> TuneConfig:
    """The settings of a study that are plain numbers and names, from study.json."""
    return TuneConfig(
        metric=settings["metric"] or None,
        mode=settings["mode"] or None,
        num_samples=settings["num_samples"],
        seeds=len(settings["seeds"]),
        report_seeds=len(settings["report_seeds"]),
        aggregate=settings["aggregate"],
        seed=settings["seed"],
    )


def _resume_modes(resume: Any) -> set[str]:
    """True, "AUTO", "AUTO+ERRORED", …, as a set of words; empty: a new study."""
    if isinstance(resume, bool) or resume is None:
        return {"LOCAL"} if resume else set()
    words = set(str(resume).upper().split("+")) - {""}
    if unknown := sorted(words - set(_RESUMES)):
        raise ConfigError(f"resume: unknown mode {unknown[0]!r}{nearest(unknown[0], _RESUMES)}")
    return words


def _number(name: str, value: Any, least: int) -> Any:
    """A setting that is an integer, or None. `least` -1: any number, and -1 for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        wanted = f"an integer of at least {least}" if least >= 0 else "an integer, or -1 for no limit"
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")
    return value
