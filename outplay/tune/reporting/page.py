"""The report of a study as one HTML page. It needs no network, and no JavaScript except for highlights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from outplay.files import replace_file
from outplay.plotting.svg import esc
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.display import argument_of
from outplay.tune.domains import Domain
from outplay.tune.objective import number
from outplay.tune.reporting import figures
from outplay.tune.reporting.figures import Data
from outplay.tune.reporting.importance import importances
from outplay.tune.reporting.ranking import ranked, status_text
from outplay.tune.reporting.story import story_of
from outplay.tune.spaces import Space, parsed
from outplay.tune.text import error_text, metric_text, time_text, value_text, values_text, variable_text, variables_of
from outplay.tune.trial import Status, Trial

_MOST_ROWS = 500  # of the table; --csv has all
_CROWDED = 60  # trials; the lines of more are drawn thinner
_MOST_FAILED = 50
_IMPORTANCES = "Importances"
_MOST_TRACE = 4000  # characters of a traceback


def write_page(analysis: ExperimentAnalysis, path: Path) -> None:
    """Write the page to a file."""
    replace_file(path, page(analysis))


def page(analysis: ExperimentAnalysis) -> str:
    data = Data(analysis, story_of(analysis), _domains(analysis))
    name = esc(analysis.settings["name"])
    style = resources.files("outplay.plotting").joinpath("page.css").read_text()
    script = resources.files("outplay.tune.reporting").joinpath("page.js").read_text()
    body = "\n".join(part for part in [_head(data), *_sections(data)] if part)
    crowded = " class=many" if len(analysis) > _CROWDED else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}: trials</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main{crowded}>\n{body}\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _domains(analysis: ExperimentAnalysis) -> dict[str, Domain]:
    space = Space(parsed(analysis.settings["config"]))
    found = dict(space.domains)
    for trial in analysis.trials[:200]:  # variables within choices
        found |= {name: domain for name, domain in space.domains_of(trial.values).items() if name not in found}
    return found


# The head: what was searched, what was found.


def _head(data: Data) -> str:
    analysis = data.analysis
    settings = analysis.settings
    counts = Counter(map(status_text, analysis.trials))
    searched = f"{settings['trainable']}, {_kind(settings['searcher'])}, {_kind(settings['scheduler'])}"
    about = f"{searched}; {data.metric} ({data.mode}); created {str(settings['created']).replace('T', ' ')}"
    tiles = [
        ("best " + data.metric, "–" if data.best is None else metric_text(data.value(data.best))),
        ("trials", str(len(analysis))),
        *((word, str(counts[word])) for word in ("stopped", "unfinished", "paused", "failed") if counts[word]),
        ("time", time_text(data.story.seconds)),
        ("time of all trials", time_text(sum(trial.seconds for trial in analysis.trials))),
    ]
    shown = "".join(f"<div><dt>{esc(label)}</dt><dd>{esc(text)}</dd></div>" for label, text in tiles)
    title = f"<header><h1>{esc(settings['name'])}</h1><p>{esc(about)}</p></header>"
    return f"{title}\n<dl class=tiles>{shown}</dl>\n{_best(data)}"


def _kind(name: str) -> str:
    return {"Variants": "grid and random search", "Scheduler": "no early stopping"}.get(str(name), str(name))


def _best(data: Data) -> str:
    best = data.best
    if best is None:
        return _section("Best trial", "<p class=note>No trial has a value yet.</p>")
    rows = "".join(
        f"<tr><th>{esc(variable_text(name))}</th><td>{esc(value_text(value, 200))}</td></tr>"
        for name, value in best.values.items()
    )
    text = f"<table class=best>{rows}</table>" if rows else "<p class=note>The study has no variables.</p>"
    folder = data.analysis.folder.trial_folder(best.id)
    if (folder / "config.yaml").exists():
        study = argument_of(data.analysis.path)
        text += f"<p class=note>To evaluate it: <code>outplay evaluate {esc(study)}/{esc(folder.name)}</code></p>"
    reported = data.reported
    if reported is not None and reported.last_result:
        value = metric_text(number(reported.last_result, data.metric))
        seeds = len(data.analysis.settings["report_seeds"])
        text += f"<p>On {seeds} seeds that the search has not used: <strong>{esc(value)}</strong></p>"
    return _section(f"Best trial: {best.id}", text)


# The figures.


@dataclass(frozen=True)
class Figure:
    """A part of the report: one chart, or several small ones."""

    title: str
    svgs: list[str]
    note: str  # HTML

    @property
    def is_shown(self) -> bool:
        """That importances are missing is said, and why."""
        return bool(self.svgs) or self.title == _IMPORTANCES


def figures_of(analysis: ExperimentAnalysis) -> list[Figure]:
    """The figures of a study that have something to show. Styled by the classes of page.css."""
    found = [figure for figure in _figures(Data(analysis, story_of(analysis), _domains(analysis))) if figure.is_shown]
    return found if any(figure.svgs for figure in found) else []


def _figures(data: Data) -> list[Figure]:
    shares, method = importances(data.analysis, data.domains)
    unimportant = f"Not shown: {esc(method)}."
    by = f"Share of the variance of {data.metric} that each variable explains, by {method}."
    colours = "".join(f"<i class=g{i}></i>" for i in range(5))
    scale = f"<span class=scale>worst {colours} best</span>"
    cut = " Values far from the others are drawn at the edge." if data.is_cut else ""
    several = len(data.story.segments) > 1

    def one(title: str, svg: str, note: str) -> Figure:
        return Figure(title, [svg] if svg else [], note)

    return [
        one("History", figures.history(data), "Each dot is a trial. The line is the best value so far." + cut),
        one("Objectives", figures.objectives(data), "The first two metrics of each trial."),
        one("Learning curves", figures.curves(data), "The metric of all trials. " + scale * several),
        one("Parallel coordinates", figures.parallel(data), "Each line is a trial. " + scale),
        one(_IMPORTANCES, figures.importance_bars(shares), esc(by) if shares else unimportant),
        Figure("Slices", figures.slices(data), f"{esc(data.metric)} by each variable. " + scale),
        one("Lineage", figures.lineage(data), "Rows are trials. A line leads from a trial to its copy, a dot."),
        Figure("Values over time", figures.values_over_time(data), "Variables that copies have changed."),
        one("Seeds", figures.seeds(data), "Each dot is a seed; the bar is the value of the trial."),
    ]


def _sections(data: Data) -> list[str]:
    return [*map(_shown, _figures(data)), _failed(data.analysis), _table(data)]


def _shown(figure: Figure) -> str:
    """A figure as a section; empty if it has nothing to show."""
    if not figure.is_shown:
        return ""
    charts = "".join(f"<figure>{svg}</figure>" for svg in figure.svgs)
    shown = f"<div class=grid>{charts}</div>" if len(figure.svgs) > 1 else charts
    return _section(figure.title, f"<p class=note>{figure.note}</p>\n{shown}")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{esc(title)}</h2>\n{content}\n</section>"


# Tables.


def _failed(analysis: ExperimentAnalysis) -> str:
    failed = [trial for trial in analysis.trials if trial.status == Status.ERROR]
    if not failed:
        return ""
    rows = [
        f"<details><summary><b>{esc(trial.id)}</b> {esc(error_text(trial.error, 300))}"
        f"<small>{esc(values_text(trial.values))}</small></summary><pre>{esc(trial.error[-_MOST_TRACE:])}</pre></details>"
        for trial in failed[:_MOST_FAILED]
    ]
    more = f"<p class=note>… {len(failed) - _MOST_FAILED} more</p>" if len(failed) > _MOST_FAILED else ""
    return _section(f"Failed trials: {len(failed)}", "\n".join(rows) + more)


def _table(data: Data) -> str:
    trials = ranked(data.analysis)
    metrics, variables = data.analysis.objective.metrics, variables_of(trials)
    numeric = {name for name in variables if all(_is_number(t.values.get(name, 0)) for t in trials)}
    header = ["rank", "trial", "status", "iterations", "time", *metrics, *map(variable_text, variables)]
    head = "".join(f"<th>{esc(cell)}</th>" for cell in header)
    rows = "".join(_row(rank, trial, metrics, variables, numeric) for rank, trial in enumerate(trials[:_MOST_ROWS], 1))
    more = len(trials) - _MOST_ROWS
    note = f"<p class=note>… {more} more; <code>--csv FILE</code> writes all</p>" if more > 0 else ""
    table = f"<div class=scroll><table class=trials><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    return _section("Trials", table + note)


def _row(rank: int, trial: Trial, metrics: tuple[str, ...], variables: list[str], numeric: set[str]) -> str:
    cells: list[tuple[str, bool]] = [(str(rank), True), (trial.id, False), (status_text(trial), False)]
    cells += [(f"{trial.iteration:,}", True), (time_text(trial.seconds), True)]
    cells += [(metric_text(number(trial.last_result, metric)), True) for metric in metrics]
    cells += [(value_text(trial.values[name]) if name in trial.values else "–", name in numeric) for name in variables]
    shown = "".join(
        f"<td class=n>{esc(text)}</td>" if is_number else f"<td>{esc(text)}</td>" for text, is_number in cells
    )
    return f'<tr data-trial="{esc(trial.id)}">{shown}</tr>\n'


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
