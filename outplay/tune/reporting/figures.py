"""The figures of a report. Each function returns SVG, or an empty string if there is nothing to show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from outplay.errors import RunError
from outplay.plotting.svg import Plot, Scale, cut, dot, esc, line, scale_of, svg, thinned
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.domains import Categorical, Domain, Float, Grid, Integer
from outplay.tune.objective import known, number
from outplay.tune.reporting.ranking import ranked, status_text
from outplay.tune.reporting.story import Segment, Story
from outplay.tune.text import metric_text, value_text, values_text, variable_text, variables_of
from outplay.tune.trial import Metrics, Trial

WIDTH = 1080
_MOST_AXES = 10
_GROUPS = 5  # colours from the worst to the best


@dataclass
class Data:
    """What all figures need."""

    analysis: ExperimentAnalysis
    story: Story
    domains: dict[str, Domain]
    groups: dict[str, int] = field(default_factory=dict)  # by trial id: 0 is the worst

    def __post_init__(self) -> None:
        valued = [trial for trial in ranked(self.analysis) if math.isfinite(self.value(trial))]
        for rank, trial in enumerate(valued):
            self.groups[trial.id] = _GROUPS - 1 - rank * _GROUPS // len(valued)
        self.valued = valued

    @property
    def metric(self) -> str:
        return self.analysis.objective.metric

    @property
    def mode(self) -> str:
        return self.analysis.objective.mode

    @property
    def best(self) -> Trial | None:
        return self.valued[0] if self.valued else None

    def value(self, trial: Trial) -> float:
        return self.analysis.objective.value(trial.last_result)

    def color(self, trial: Trial) -> str:
        return "best" if trial is self.best else f"g{self.groups.get(trial.id, 0)}"

    @cached_property
    def reported(self) -> Trial | None:
        """The best configuration on other seeds, if it has run."""
        try:
            return self.analysis.reported
        except RunError:
            return None

    @cached_property
    def is_cut(self) -> bool:
        """Whether axes of the metric leave out some values."""
        return scale_of([self.value(trial) for trial in self.valued], self.mode).is_cut

    def tip(self, trial: Trial) -> str:
        value = f"{self.metric} {metric_text(self.value(trial))}"
        return f"trial {trial.id}: {value}\n{status_text(trial)} after {trial.iteration:,} iterations\n" + "\n".join(
            values_text({name: each}) for name, each in trial.values.items()
        )

    @cached_property
    def variables(self) -> list[str]:
        """Those that differ between trials."""
        names = variables_of(self.analysis.trials)
        trials = self.analysis.trials
        return [n for n in names if len({value_text(t.values[n]) for t in trials if n in t.values}) > 1]

    def scale(self, name: str) -> Scale:
        """The axis of a variable: as its domain has it."""
        values = [trial.values[name] for trial in self.valued if name in trial.values]
        values += [s.values[name] for parts in self.story.segments.values() for s in parts if name in s.values]
        domain = self.domains.get(name)
        are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if not values or not are_numbers or isinstance(domain, Categorical | Grid):
            return Scale(0, 1, categories=_categories(values, domain, are_numbers), text=value_text)
        low, high = float(min(values)), float(max(values))
        if isinstance(domain, Float | Integer) and domain.log and low > 0:
            return Scale(low / 1.15, high * 1.15, is_log=True)
        room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        return Scale(low - room, high + room)


def _categories(values: list[Any], domain: Domain | None, are_numbers: bool) -> tuple[str, ...]:
    ordered = list(domain.values) if isinstance(domain, Categorical | Grid) else []
    if are_numbers:
        ordered = sorted([*(v for v in ordered if isinstance(v, int | float)), *values])
    texts = {value_text(value) for value in values}
    return tuple(dict.fromkeys(text for text in map(value_text, [*ordered, *values]) if text in texts)) or ("–",)


def history(data: Data) -> str:
    """The value of each trial, and the best so far."""
    trials = sorted(data.valued, key=lambda trial: trial.index)
    if not trials:
        return ""
    last = max(trial.index for trial in data.analysis.trials)
    plot = Plot(
        Scale(-0.5, last + 0.5, is_whole=True), scale_of([data.value(t) for t in trials], data.mode), WIDTH, 340
    )
    radius = 4 if len(trials) <= 100 else 3
    marks: list[str] = []
    steps: list[tuple[float, float]] = []
    best = -math.inf
    for trial in trials:
        x, y = plot.at(trial.index, data.value(trial))
        score = known(data.analysis.objective.score(trial.last_result))
        if score > best:
            steps += [(x, steps[-1][1])] if steps else []
            steps.append((x, y))
            best = score
        kind = "best" if trial is data.best else "faint" if status_text(trial) == "stopped" else "plain"
        marks.append(dot(x, y, kind, data.tip(trial), trial.id, 6 if trial is data.best else radius))
    steps.append((plot.px(1.0), steps[-1][1]))
    return plot.svg([line(steps, "record"), *marks], "trial", data.metric, "Value of each trial, and the best so far")


def parallel(data: Data) -> str:
    """One line per trial through the values of its variables to its metric."""
    names = data.variables[:_MOST_AXES]
    if len(names) < 2 or len(data.valued) < 2:
        return ""
    height, top, bottom, left, right = 400, 48, 24, 70, 90
    scales = [data.scale(name) for name in names] + [scale_of([data.value(t) for t in data.valued], data.mode)]
    at = [left + i * (WIDTH - left - right) / len(names) for i in range(len(names) + 1)]

    def y(share: float) -> float:
        return round(height - bottom - share * (height - top - bottom), 1)

    parts = []
    for trial in reversed(data.valued):  # the best on top
        points = [(round(at[i], 1), y(scales[i](trial.values[n]))) for i, n in enumerate(names) if n in trial.values]
        points.append((round(at[-1], 1), y(scales[-1](data.value(trial)))))
        parts.append(line(points, f"{data.color(trial)} through", data.tip(trial), trial.id))
    room = (at[1] - at[0]) / 7.2  # characters
    for x, scale, name in zip(at, scales, [*map(variable_text, names), data.metric], strict=True):
        parts.append(f'<line class="axis strong" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}"/>')
        label = cut(name, int(room))
        parts.append(f'<text class="label" x="{x:.1f}" y="{top - 22}" text-anchor="middle">{esc(label)}</text>')
        for share, text in scale.ticks(5):
            label = esc(cut(text, max(6, int(room * 0.6))))
            parts.append(f'<text class="tick halo" x="{x + 6:.1f}" y="{y(share) + 4}">{label}</text>')
    return svg(WIDTH, height, parts, "Parallel coordinates: variables and metric of each trial")


def importance_bars(shares: dict[str, float]) -> str:
    """One bar per variable."""
    if not shares:
        return ""
    names = list(shares)[:15]
    longest = max(shares.values()) or 1.0
    parts, height = [], 30 * len(names) + 8
    for i, name in enumerate(names):
        y, length = 6 + 30 * i, max(1.0, 620 * shares[name] / longest)
        label = esc(cut(variable_text(name), 34))
        parts.append(f'<text class="label" x="250" y="{y + 15}" text-anchor="end">{label}</text>')
        parts.append(f'<rect class="bar" x="262" y="{y}" width="{length:.1f}" height="20" rx="3"/>')
        parts.append(f'<text class="tick" x="{270 + length:.1f}" y="{y + 15}">{shares[name]:.0%}</text>')
    return svg(WIDTH, height, parts, "Importance of each variable")


def slices(data: Data) -> list[str]:
    """One scatter plot per variable."""
    y = scale_of([data.value(trial) for trial in data.valued], data.mode)
    found = []
    for name in data.variables if len(data.valued) > 1 else ():
        plot = Plot(data.scale(name), y, 520, 300)
        marks = []
        for trial in reversed(data.valued):
            if name not in trial.values:
                continue
            x, at = plot.at(trial.values[name], data.value(trial))
            if plot.x.categories:  # points of one category side by side
                room = (520 - 90) / len(plot.x.categories)
                x = round(x + ((trial.index * 0.618) % 1 - 0.5) * min(room * 0.6, 80), 1)
            marks.append(dot(x, at, data.color(trial), data.tip(trial), trial.id, 3.5))
        found.append(plot.svg(marks, variable_text(name), data.metric, f"{data.metric} by {variable_text(name)}"))
    return found


def curves(data: Data) -> str:
    """The metric of all trials over their iterations."""
    if data.story.longest < 2:
        return ""
    trials = {trial.id: trial for trial in data.analysis.trials}
    values = [value for parts in data.story.segments.values() for part in parts for _, value in part.points]
    last = max(part.end for parts in data.story.segments.values() for part in parts)
    plot = Plot(Scale(0, last, is_whole=True), scale_of(values, data.mode), WIDTH, 400)
    order = [*(t for t in data.analysis.trials if t.id not in data.groups), *reversed(data.valued)]
    marks = []
    for trial in order:
        for part in data.story.segments.get(trial.id, []):
            points = [plot.at(x, value) for x, value in thinned(part.points) if math.isfinite(value)]
            if points:
                marks.append(line(points, data.color(trials[trial.id]), data.tip(trial), trial.id))
    return plot.svg(marks, "iteration", data.metric, "Learning curves of all trials")


# Population-based training.


def lineage(data: Data) -> str:
    """Rows are trials; a vertical line shows which trial was copied, and at which iteration."""
    if not data.story.has_copies:
        return ""
    rows = {trial_id: row for row, trial_id in enumerate(data.story.segments)}
    last = max(part.end for parts in data.story.segments.values() for part in parts)
    height = max(160, min(900, 60 + 26 * len(rows)))
    plot = Plot(Scale(0, last * 1.01, is_whole=True), Scale(0, 1, categories=tuple(reversed(rows))), WIDTH, height)
    trials = {trial.id: trial for trial in data.analysis.trials}
    marks, copies = [], []
    for trial_id, parts in data.story.segments.items():
        for part in parts:
            x, y = plot.at(part.start, trial_id)
            tip = f"trial {trial_id}\n{values_text(part.values)}"
            marks.append(
                line([(x, y), (plot.px(plot.x(part.end)), y)], f"{data.color(trials[trial_id])} life", tip, trial_id)
            )
            if part.source in rows:
                _, from_y = plot.at(part.start, part.source)
                tip = (
                    f"iteration {part.start:,}: trial {trial_id} copied trial {part.source}\n{values_text(part.values)}"
                )
                copies.append(line([(x, from_y), (x, y)], "copy", tip, trial_id))
                copies.append(dot(x, y, "copied", tip, trial_id, 4))
    return plot.svg([*marks, *copies], "iteration", "trial", "Which trial copied which, and when")


def values_over_time(data: Data) -> list[str]:
    """For each variable that copies have changed: its value in each trial over the iterations."""
    if not data.story.has_copies:
        return []
    found = []
    last = max(part.end for parts in data.story.segments.values() for part in parts)
    trials = {trial.id: trial for trial in data.analysis.trials}
    for name in _changed(data):
        plot = Plot(Scale(0, last, is_whole=True), data.scale(name), 520, 300)
        marks = []
        for trial in reversed(data.valued):
            for points in _steps(plot, data.story.segments[trial.id], name):
                marks.append(line(points, data.color(trials[trial.id]), data.tip(trial), trial.id))
        found.append(plot.svg(marks, "iteration", variable_text(name), f"{variable_text(name)} over the iterations"))
    return found


def _steps(plot: Plot, parts: list[Segment], name: str) -> list[list[tuple[float, float]]]:
    """Lines of a variable's value. A copy whose iteration differs from the trial's own begins a new line."""
    lines: list[list[tuple[float, float]]] = []
    end = None
    for part in parts:
        if name not in part.values:
            continue
        y = plot.py(plot.y(part.values[name]))
        if part.start != end:
            lines.append([])
        end = part.end
        lines[-1] += [(plot.px(plot.x(part.start)), y), (plot.px(plot.x(end)), y)]
    return lines


def _changed(data: Data) -> list[str]:
    def differs(parts: list[Segment], name: str) -> bool:
        return len({value_text(part.values[name]) for part in parts if name in part.values}) > 1

    return [name for name in data.variables if any(differs(parts, name) for parts in data.story.segments.values())]


# Seeds and several objectives.


def seeds(data: Data) -> str:
    """The value of each seed: of the best trials, and on the seeds that the search has not used."""
    rows: list[tuple[str, Metrics, str]] = [(t.id, t.last_result, data.color(t)) for t in data.valued[:5]]
    if (reported := data.reported) is not None:
        rows.append(("report", reported.last_result, "copied"))
    spread = [(name, _per_seed(result, data.metric), result, kind) for name, result, kind in rows]
    spread = [row for row in spread if len(row[1]) > 1]
    if not spread:
        return ""
    x = scale_of([value for _, values, _, _ in spread for value in values])
    names = tuple(name for name, *_ in reversed(spread))
    plot = Plot(x, Scale(0, 1, categories=names), WIDTH, 70 + 36 * len(spread))
    marks = []
    for name, values, result, kind in spread:
        _, y = plot.at(x.low, name)
        ends = [(plot.px(x(value)), y) for value in (min(values), max(values))]
        marks.append(line(ends, f"{kind} life"))
        for i, value in enumerate(values):
            marks.append(dot(plot.px(x(value)), y, kind, f"{name}, seed {i}: {metric_text(value)}", name, 4))
        middle, mean = plot.px(x(number(result, data.metric))), metric_text(number(result, data.metric))
        marks.append(
            f'<line class="mean" x1="{middle}" x2="{middle}" y1="{y - 11}" y2="{y + 11}">'
            f"<title>{esc(name)}: {esc(mean)}</title></line>"
        )
    return plot.svg(marks, data.metric, "trial", "Values of single seeds")


def _per_seed(result: Metrics, metric: str) -> list[float]:
    found = result.get(f"{metric}_per_seed")
    return (
        [float(v) for v in found if isinstance(v, int | float) and math.isfinite(v)] if isinstance(found, list) else []
    )


def objectives(data: Data) -> str:
    """With several metrics: the first two of each trial."""
    metrics = data.analysis.objective.metrics
    if len(metrics) < 2:
        return ""
    points = [(t, data.value(t), number(t.last_result, metrics[1])) for t in data.valued]
    points = [point for point in points if math.isfinite(point[2])]
    if not points:
        return ""
    plot = Plot(scale_of([x for _, x, _ in points]), scale_of([y for *_, y in points]), WIDTH, 400)
    marks = [dot(*plot.at(x, y), "plain", data.tip(t), t.id) for t, x, y in points]
    return plot.svg(marks, metrics[0], metrics[1], f"{metrics[1]} by {metrics[0]}")
