"""The trials of a study by rank, as text and as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from outplay.conditions import flattened
from outplay.files import replace_file
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.objective import known, number
from outplay.tune.text import metric_text, table, value_text, variable_text, variables_of
from outplay.tune.trial import Status, Trial

STATUS_WORDS = {
    Status.TERMINATED: "done",
    Status.ERROR: "failed",
    Status.RUNNING: "unfinished",
    Status.PENDING: "unfinished",
    Status.PAUSED: "paused",
}


def status_text(trial: Trial) -> str:
    """The state of a trial in one word."""
    return "stopped" if trial.reason == "stopped by the scheduler" else STATUS_WORDS[trial.status]


def ranked(analysis: ExperimentAnalysis) -> list[Trial]:
    """All trials, the best one first; those without a value come last, in the order of their numbers."""
    score = analysis.objective.score
    return sorted(analysis.trials, key=lambda trial: (-known(score(trial.last_result)), trial.index))


def table_lines(analysis: ExperimentAnalysis, width: int, top: int | None = None) -> list[str]:
    """A table of the best trials, in lines of at most `width` characters."""
    trials = ranked(analysis)
    shown = trials if top is None else trials[:top]
    metrics, variables = analysis.objective.metrics, variables_of(trials)
    header = ["rank", "trial", "status", "iter", *metrics, *map(variable_text, variables)]
    rows = []
    for rank, trial in enumerate(shown, 1):
        values = [metric_text(number(trial.last_result, metric)) for metric in metrics]
        cells = [value_text(trial.values[name], 24) if name in trial.values else "–" for name in variables]
        rows.append([str(rank), trial.id, status_text(trial), f"{trial.iteration:,}", *values, *cells])
    lines = table(header, rows, width, left=(1, 2)) if rows else ["no trials yet"]
    return lines + ([f"… {len(trials) - len(shown)} more"] if len(shown) < len(trials) else [])


def write_csv(analysis: ExperimentAnalysis, path: Path) -> None:
    """All trials with their variables and all metrics of their last results."""
    trials = ranked(analysis)
    variables = variables_of(trials)
    results = [flattened(trial.last_result) for trial in trials]
    metrics = list(dict.fromkeys(name for result in results for name in result))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["rank", "trial", "status", *(f"config/{variable_text(name)}" for name in variables), *metrics])
    for rank, (trial, result) in enumerate(zip(trials, results, strict=True), 1):
        values = [trial.values.get(name, "") for name in variables]
        writer.writerow([rank, trial.id, status_text(trial), *values, *(result.get(name, "") for name in metrics)])
    replace_file(path, text.getvalue())
