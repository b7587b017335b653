"""Panels of curves as a figure for a paper: SVG, PDF or PNG, by matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from outplay.errors import ConfigError
from outplay.formatting import counted
from outplay.plotting.panels import Line, Panel
from outplay.plotting.words import metric_words, prefix_of, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
# Okabe & Ito's palette, which the colour-blind can tell apart (Wong 2011), without yellow: too faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#B4B8BD"
_INK, _SOFT, _GRID = "#22272E", "#4A525C", "#E6E8EB"
_FONT_SIZE = 9.0
_DPI = 300  # of PNG
_CHARACTER, _HANDLE = 0.061, 0.45  # inches: width of a character of the legend, and of all beside its text
_ROW = 0.19  # inches: height of a row of the legend
_MOST_COLUMNS = 3  # panels side by side

_STYLE: Any = {  # matplotlib's type lists all names
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # it ships with matplotlib: the same figure on every machine
    "font.size": _FONT_SIZE,
    "axes.labelsize": _FONT_SIZE,
    "axes.titlesize": _FONT_SIZE + 1,
    "figure.titlesize": _FONT_SIZE + 2,
    "xtick.labelsize": _FONT_SIZE - 1,
    "ytick.labelsize": _FONT_SIZE - 1,
    "legend.fontsize": _FONT_SIZE,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _SOFT,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "text.parse_math": False,  # a $ in a name is a $
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "outplay",  # the same ids each time
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "path.simplify": True,
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """The look of a figure. Sizes in inches."""

    title: str = ""
    width: float | None = None
    height: float | None = None
    log_x: bool = False
    log_y: bool = False


def check_matplotlib() -> None:
    """Raise ConfigError if matplotlib is not installed."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("figures need matplotlib: pip install 'outplay[plot]'")


def rendered(panels: Sequence[Panel], look: Look, kind: str) -> bytes:
    """The figure as a file of this kind (see FORMATS). The same panels give the same bytes."""
    check_matplotlib()
    from matplotlib import rc_context

    look = replace(look, title=_printable(look.title))

    with rc_context(_STYLE), warnings.catch_warnings():
        # In SVG the viewer's fonts have the characters; elsewhere they are boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure = _figure(panels, look)
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=_DPI, metadata=_metadata(kind, look.title))
    return data.getvalue()


def _metadata(kind: str, title: str) -> dict[str, Any]:
    """Without the date, which would differ each time."""
    if kind == "svg":
        return {"Date": None, "Creator": "Outplay", **({"Title": title} if title else {})}
    if kind == "pdf":
        return {"CreationDate": None, "Creator": "Outplay", **({"Title": title} if title else {})}
    return {"Software": "Outplay", **({"Title": title} if title else {})}


def _figure(panels: Sequence[Panel], look: Look) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    columns = min(len(panels), _MOST_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    width = look.width or (5.2 if columns == 1 else 3.2 * columns)
    entries = _legend(panels)
    legend_columns, legend_rows = _columns(entries, width)
    room = _ROW * max(0, legend_rows - 1)
    height = look.height or (3.3 if len(panels) == 1 else 2.6 * rows + 0.3) + room
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06))
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel, look)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    if entries:
        figure.legend(
            [Line2D([], [], color=entry.color, linewidth=entry.width) for entry in entries],
            [entry.text for entry in entries],
            loc="outside upper center",
            ncols=legend_columns,
            handlelength=1.4,
            columnspacing=1.4,
            title=look.title or None,  # else they would be drawn over each other
            title_fontsize=_FONT_SIZE + 2,
        )
    elif look.title:
        figure.suptitle(look.title)
    figure.align_labels()
    return figure


def _draw(axes: Axes, panel: Panel, look: Look) -> None:
    unit, seconds = "", 1.0
    if panel.x == "time_total_s":
        unit, seconds = time_unit(max(line.x[-1] for line in panel.lines))
    drawn = [shown for line in panel.lines if len((shown := _visible(line, look, seconds)).x)]
    if not drawn:
        which = "--log-y" if look.log_y else "--log-x"
        raise ConfigError(f"{which}: {panel.metric} by {panel.x} has no positive values")
    for line in sorted(drawn, key=lambda each: each.color is not None):  # colored ones on top
        _draw_line(axes, line)
    if look.log_x:
        axes.set_xscale("log")
    if look.log_y:
        axes.set_yscale("log")
    axes.margins(x=0.0 if look.log_x else 0.01)
    if not look.log_x and min(line.x[0] for line in drawn) >= 0:
        axes.set_xlim(left=0)
    _set_ticks(axes.xaxis, look.log_x, max(line.x[-1] for line in drawn), is_whole=panel.x == "training_iteration")
    _set_ticks(axes.yaxis, look.log_y, max(abs(value) for value in axes.get_ylim()))
    axes.set_xlabel(metric_words(panel.x) + (f" ({unit})" if unit else ""))
    axes.set_ylabel(_printable(metric_words(panel.metric)))


def _visible(line: Line, look: Look, seconds: float) -> Line:
    """The part of a curve that the axes can show. A logarithmic axis has no place for 0."""
    is_shown = np.ones(len(line.x), bool)
    if look.log_x:
        is_shown &= line.x > 0
    if look.log_y:
        is_shown &= line.y > 0
    low, high = (None if array is None else array[is_shown] for array in (line.low, line.high))
    if look.log_y and low is not None and high is not None:
        positive = line.y[is_shown]
        low = np.where(low > 0, low, positive)
        high = np.maximum(high, low)
    return replace(line, x=line.x[is_shown] / seconds, y=line.y[is_shown], low=low, high=high)


def _draw_line(axes: Axes, line: Line) -> None:
    if line.color is None:
        axes.plot(line.x, line.y, color=_GREY, linewidth=0.8, zorder=2)
        return
    color = COLORS[line.color % len(COLORS)]
    is_point = len(line.x) == 1
    width = 1.6 if line.is_alone else 0.9
    axes.plot(line.x, line.y, color=color, linewidth=width, zorder=4, marker="o" if is_point else "", markersize=4)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0, zorder=3)


def _set_ticks(axis: Any, is_log: bool, largest: float, is_whole: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if is_log:
        low, high = axis.get_view_interval()
        decades = math.log10(high / low) if 0 < low < high else 1.0
        axis.set_major_locator(LogLocator(subs=(1.0,) if decades >= 2 else (1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value, *prefix_of(abs(value), 1e3))))
        return
    prefix, factor = prefix_of(largest)
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=is_whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value, prefix, factor)))


def _printable(text: str) -> str:
    """Text without control characters, which XML does not allow."""
    return "".join(character if character.isprintable() else " " for character in text)


def _number(value: float, prefix: str, factor: float) -> str:
    """A tick: "20k", "0.5M", with a true minus sign."""
    if value == 0:
        return "0"
    return f"{value / factor:.4g}{prefix}".replace("-", "−")


class _Entry(NamedTuple):
    """A line of the legend."""

    text: str
    color: str
    width: float


def _legend(panels: Sequence[Panel]) -> list[_Entry]:
    """The entries of the legend of all panels. A single curve needs none."""
    lines = {line.color: line for panel in panels for line in panel.lines if line.in_legend and line.color is not None}
    found = []
    for color in sorted(lines):
        number = f" (n = {lines[color].number})" if lines[color].number > 1 else ""
        found.append(_Entry(_printable(lines[color].label) + number, COLORS[color % len(COLORS)], 2))
    if grey := {line.label for panel in panels for line in panel.lines if line.color is None}:
        found.append(_Entry(counted(len(grey), "other"), _GREY, 1))
    return found if len(found) > 1 else []


def _columns(entries: Sequence[_Entry], width: float) -> tuple[int, int]:
    """Columns and rows of a legend of this width in inches."""
    widest = max((len(entry.text) for entry in entries), default=1) * _CHARACTER + _HANDLE
    columns = max(1, min(len(entries), int(width / widest)))
    rows = math.ceil(len(entries) / columns)
    return math.ceil(len(entries) / max(1, rows)), rows
