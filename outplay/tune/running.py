"""`tune.run`: a Tuner as one function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outplay.errors import TuneError
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.callbacks import Callback
from outplay.tune.configs import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from outplay.tune.schedulers import Scheduler
from outplay.tune.search import Searcher
from outplay.tune.spaces import Values
from outplay.tune.tuner import Tuner


def run(
    trainable: Any,
    config: Mapping[str, Any] | None = None,
    *,
    metric: str | Sequence[str] | None = None,
    mode: str | Sequence[str] | None = None,
    num_samples: int = 1,
    search_alg: Searcher | None = None,
    scheduler: Scheduler | None = None,
    max_concurrent_trials: int | None = None,
    resources_per_trial: Any = None,
    stop: Any = None,
    time_budget_s: float | None = None,
    name: str | None = None,
    storage_path: str | Path | None = None,
    resume: bool | str = False,
    callbacks: Sequence[Callback] = (),
    max_failures: int = 0,
    fail_fast: bool = False,
    raise_on_failed_trial: bool = True,
    verbose: int = 1,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    points_to_evaluate: Sequence[Values] | None = None,
    seeds: int = 1,
    report_seeds: int = 0,
    aggregate: str = "mean",
    seed: int = 0,
) -> ExperimentAnalysis:
    """Run trials of `trainable` with different configs, and return their results.

    trainable              a function of the config, a class with step(), or the name of an algorithm: "PPO"
    config                 settings; some of them are variables: tune.uniform(0, 1), tune.grid_search([1, 2])
    metric, mode           what is optimised, and "min" or "max"; several are given as lists
    num_samples            number of samples; each grid is repeated this many times; -1: no limit
    search_alg             chooses the values: a Searcher; default: grids and random values
    scheduler              ends, pauses or copies trials: a Scheduler; default: all trials run to their end
    max_concurrent_trials  default: as many as the resources allow
    resources_per_trial    {"cpu": 1, "gpu": 0.5}, or a list of these for a trial with workers; default: one CPU
    stop                   {"training_iteration": 10}, a function of (trial_id, result), or a Stopper
    time_budget_s          seconds after which the study ends
    name, storage_path     the study's folder is storage_path/name; default: ~/outplay_results
    resume                 True: continue the study of this name; "AUTO": if there is one; "AUTO+ERRORED": failed trials
                           continue, too; "AUTO+RESTART_ERRORED": they start anew
    callbacks              objects of tune.Callback
    max_failures           how often a trial that raised an exception is started again from its checkpoint; -1: always
    fail_fast              whether the first failed trial ends the study
    raise_on_failed_trial  whether to raise TuneError at the end if trials have failed
    verbose                0: print nothing; 1: show the progress
    checkpoint_freq        for classes: iterations between checkpoints; an algorithm has a setting of its own
    points_to_evaluate     values to try first
    seeds                  number of seeds per configuration, which is judged by the aggregate of their results
    report_seeds           number of other seeds with which the best configuration runs at the end
    aggregate              "mean", or "iqm" for the interquartile mean
    seed                   of the search

    >>> def train(config):
    ...     tune.report(score=(config["x"] - 1) ** 2)
    >>> tune.run(train, config={"x": tune.uniform(-3, 3)}, num_samples=20).get_best_config(metric="score", mode="min")
    """
    tuner = Tuner(
        trainable,
        param_space=config,
        tune_config=TuneConfig(
            metric, mode, num_samples, search_alg, scheduler, max_concurrent_trials, time_budget_s, points_to_evaluate,
            seeds, report_seeds, aggregate, seed,
        ),
        run_config=RunConfig(
            name, storage_path, stop, callbacks, FailureConfig(max_failures, fail_fast),
            CheckpointConfig(checkpoint_freq, checkpoint_at_end), verbose,
        ),
        resources_per_trial=resources_per_trial,
        resume=resume,
    )  # fmt: skip
    analysis = tuner.fit().analysis
    if raise_on_failed_trial and (errors := analysis.errors):
        raise TuneError(_failures(errors, analysis), analysis)
    return analysis


def _failures(errors: Mapping[str, str], analysis: ExperimentAnalysis) -> str:
    first, text = next(iter(errors.items()))
    failed = "1 trial has failed" if len(errors) == 1 else f"{len(errors)} trials have failed"
    last_line = text.strip().splitlines()[-1] if text.strip() else "unknown error"
    return (
        f"{failed} of {len(analysis)}; trial {first}: {last_line} (all tracebacks: error.analysis.errors; the others' "
        f"results are in {analysis.path}; raise_on_failed_trial=False returns them)"
    )
