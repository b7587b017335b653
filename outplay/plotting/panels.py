"""From results to the curves of a figure: groups of runs, smoothing, downsampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outplay.curves import aggregated, downsampled, smoothed
from outplay.errors import ConfigError
from outplay.formatting import counted
from outplay.plotting.sources import X_METRICS, Array, Source, check_metrics
from outplay.plotting.words import labels_of, seed_labels

MOST_COLORED = 7  # curves; more are grey, without a label


@dataclass(frozen=True)
class Line:
    """One curve; arrays (P,). `low` and `high` are None for a single run."""

    label: str
    number: int  # of runs
    x: Array
    y: Array
    low: Array | None
    high: Array | None
    color: int | None  # None: grey, one of many
    in_legend: bool = True
    is_alone: bool = True  # no other curve has this color


@dataclass(frozen=True)
class Panel:
    """The curves of one metric."""

    metric: str
    x: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How results become curves."""

    metrics: tuple[str, ...]
    x: str = "timesteps_total"
    bands: bool = True
    smooth: float = 0.0  # weight of the moving average
    points: int = 400  # per curve
    labels: tuple[str, ...] = ()  # instead of those that are found


def panels_of(sources: Sequence[Source], drawing: Drawing) -> tuple[list[Panel], list[str]]:
    """A panel for each metric, and remarks about what is left out."""
    columns = [source.read([drawing.x, *drawing.metrics]) for source in sources]
    if not any(np.isfinite(column[drawing.x]).any() for column in columns):
        raise ConfigError(_without_x(sources, drawing.x))
    check_metrics(sources, columns, drawing.metrics)
    groups = _grouped(sources, drawing.bands)
    labels = _labels(sources, groups, drawing)
    panels, remarks = [], []
    for metric in drawing.metrics:
        lines = []
        for color, (group, label) in enumerate(zip(groups, labels, strict=True)):
            curves = [(columns[i][drawing.x], smoothed(columns[i][metric], drawing.smooth)) for i in group]
            known = [(x, y) for x, y in curves if (np.isfinite(x) & np.isfinite(y)).any()]
            if len(known) < len(curves):
                left_out = counted(len(curves) - len(known), "run")
                remarks.append(f"{left_out} of {label!r} left out: no {metric}")
            if known:
                lines.append(_line(known, label, color, metric, drawing))
        panels.append(Panel(metric, drawing.x, tuple(lines)))
    return _highlighted(_with_shared_colors(panels, sources, groups, drawing)), remarks


def _without_x(sources: Sequence[Source], x: str) -> str:
    known = set().union(*(source.metrics() for source in sources))
    whose = sources[0].name if len(sources) == 1 else "these runs"
    if not known:
        return f"there are no results yet in {whose}"
    others = [name for name in X_METRICS if name in known]
    return f"{whose} have no {x}; choose another x-axis: --x {' or '.join(others)}"


def _grouped(sources: Sequence[Source], bands: bool) -> list[list[int]]:
    """Indices of the runs of each curve."""
    if not bands:
        return [[i] for i in range(len(sources))]
    groups: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        groups.setdefault(source.group, []).append(i)
    return list(groups.values())


def _labels(sources: Sequence[Source], groups: Sequence[Sequence[int]], drawing: Drawing) -> list[str]:
    if drawing.labels:
        by_group = _grouped(sources, bands=True)
        if not drawing.bands and len(by_group) > 1 and len(drawing.labels) == len(by_group):
            return [drawing.labels[_place(by_group, group[0])] for group in groups]
        if len(drawing.labels) != len(groups):
            numbers = f"{counted(len(groups), 'curve')}, but {counted(len(drawing.labels), 'label')}"
            raise ConfigError(f"--label: {numbers}; give one for each curve")
        return list(drawing.labels)
    if drawing.bands:
        return labels_of([[sources[i] for i in group] for group in groups])
    by_group = _grouped(sources, bands=True)
    if len(by_group) == 1:
        return seed_labels(sources)
    of_groups = labels_of([[sources[i] for i in group] for group in by_group])
    return [of_groups[_place(by_group, group[0])] for group in groups]


def _place(groups: Sequence[Sequence[int]], run: int) -> int:
    return next(place for place, group in enumerate(groups) if run in group)


def _line(curves: Sequence[tuple[Array, Array]], label: str, color: int, metric: str, drawing: Drawing) -> Line:
    if len(curves) == 1:
        curve = downsampled(*curves[0], drawing.points)
        return Line(label, 1, curve.x, curve.mean, None, None, color)
    band = aggregated(curves, drawing.points)
    if not len(band.x):
        raise ConfigError(
            f"the runs of {label!r} have no {drawing.x} in common with a value of {metric}; --no-bands draws each run"
        )
    return Line(label, len(curves), band.x, band.iqm, band.low, band.high, color)


def _with_shared_colors(
    panels: list[Panel], sources: Sequence[Source], groups: Sequence[Sequence[int]], drawing: Drawing
) -> list[Panel]:
    """Without bands, the runs of a group have one color and one entry in the legend, if there are several groups."""
    by_group = _grouped(sources, bands=True)
    if drawing.bands or len(by_group) == 1:
        return panels
    places = [_place(by_group, group[0]) for group in groups]
    found = []
    for panel in panels:
        seen: set[int] = set()
        lines = []
        for line in panel.lines:
            assert line.color is not None
            place = places[line.color]
            lines.append(replace(line, color=place, in_legend=place not in seen, is_alone=False))
            seen.add(place)
        found.append(replace(panel, lines=tuple(lines)))
    return found


def _highlighted(panels: list[Panel]) -> list[Panel]:
    """With too many curves for colors: those with the highest last values of the first metric have one."""
    last = {line.color: -np.inf for panel in panels for line in panel.lines}
    if len(last) <= MOST_COLORED:
        return panels
    for line in panels[0].lines:
        last[line.color] = max(last[line.color], line.y[-1])
    best = sorted(last, key=lambda color: last[color], reverse=True)[:MOST_COLORED]
    colors = {color: place for place, color in enumerate(best)}
    return [
        replace(panel, lines=tuple(replace(line, color=colors.get(line.color)) for line in panel.lines))
        for panel in panels
    ]
