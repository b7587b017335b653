"""Charts as SVG: scales with sensible ticks, axes, and marks. Colours are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

LEFT, RIGHT, TOP, BOTTOM = 68, 16, 12, 46


def esc(value: Any) -> str:
    """Text for HTML. Names, values and errors are data of users."""
    return escape(str(value), quote=True)


@dataclass
class Scale:
    """Maps values to 0 … 1."""

    low: float
    high: float
    is_log: bool = False
    categories: tuple[str, ...] = ()
    is_whole: bool = False  # ticks at integers only
    is_cut: bool = False  # there are values beyond its ends
    text: Callable[[Any], str] = str  # the category of a value

    def __call__(self, value: Any) -> float:
        if self.categories:
            return (self.categories.index(self.text(value)) + 0.5) / len(self.categories)
        low, high, at = (self._warped(each) for each in (self.low, self.high, float(value)))
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5

    def _warped(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Positions and labels."""
        if self.categories:
            every = max(1, math.ceil(len(self.categories) / 12))
            return [((i + 0.5) / len(self.categories), c) for i, c in enumerate(self.categories) if i % every == 0]
        if self.low >= self.high:
            return [(0.5, tick_text(self.low))]
        values = _log_ticks(self.low, self.high, most) if self.is_log else _linear_ticks(self.low, self.high, most)
        values = [value for value in values if value == round(value)] if self.is_whole else values
        return [(self(value), tick_text(value)) for value in values]


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * 10.0**p for p in range(first, last + 1) for f in factors]
        inside = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(inside) <= most:
            break
    inside = inside[:: max(1, math.ceil(len(inside) / most))]
    return inside if len(inside) >= 2 else [low, high]


def tick_text(value: float) -> str:
    """A number on an axis: short.

    >>> tick_text(0.0001), tick_text(25_000), tick_text(-0.5), tick_text(3_000_000)
    ('1e-4', '25k', '-0.5', '3M')
    """
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= size < 1e12:
            return f"{value / (limit if unit != 'k' else 1e3):.4g}{unit}"
    text = f"{value:.4g}"
    if 0 < size < 0.001 or "e" in text:
        text = f"{value:.3g}" if "e" in f"{value:.3g}" else f"{value:.2e}"
        mantissa, _, exponent = text.partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return text


def scale_of(values: Sequence[float], best: str = "") -> Scale:
    """A linear scale with some room. Far outliers are cut, but never the best values: `best` is "min" or "max"."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return Scale(0.0, 1.0)
    low, high = finite[0], finite[-1]
    if best and len(finite) >= 8:
        first, third = finite[len(finite) // 4], finite[3 * len(finite) // 4]
        reach = 4 * (third - first)
        if reach > 0:
            low = max(low, first - reach) if best == "max" else low
            high = min(high, third + reach) if best == "min" else high
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, is_cut=low > finite[0] or high < finite[-1])


@dataclass
class Plot:
    """The area inside the axes."""

    x: Scale
    y: Scale
    width: int
    height: int
    top: int = TOP  # room above

    def at(self, x: Any, y: Any) -> tuple[float, float]:
        return self.px(self.x(x)), self.py(self.y(y))

    def px(self, share: float) -> float:
        return round(LEFT + share * (self.width - LEFT - RIGHT), 1)

    def py(self, share: float) -> float:
        return round(self.height - BOTTOM - share * (self.height - self.top - BOTTOM), 1)

    def svg(self, body: Iterable[str], x_label: str, y_label: str, title: str) -> str:
        """The whole chart. `title` describes it for screen readers."""
        right, bottom = self.width - RIGHT, self.height - BOTTOM
        parts = []
        for share, text in self.y.ticks(max(3, self.height // 55)):
            y = self.py(share)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{esc(cut(text, 9))}</text>')
        most = max(3, (self.width - LEFT) // 80)
        longest = max(4, 74 // max(1, min(len(self.x.categories), 6)) * (self.width - LEFT) // 560)
        for share, text in self.x.ticks(most):
            x = self.px(share)
            parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
            label = esc(cut(text, longest if self.x.categories else 12))
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        parts += body
        middle = (LEFT + right) / 2
        parts.append(
            f'<text class="label" x="{middle}" y="{self.height - 8}" text-anchor="middle">{esc(x_label)}</text>'
        )
        if y_label:
            y = (self.top + bottom) / 2
            label = esc(cut(y_label, max(12, self.height // 8)))
            place = f'x="14" y="{y}" transform="rotate(-90 14 {y})"'
            parts.append(f'<text class="label" {place} text-anchor="middle">{label}</text>')
        return svg(self.width, self.height, parts, title)


def svg(width: int, height: int, parts: Iterable[str], title: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{esc(title)}">{"".join(parts)}</svg>'


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: max(1, longest - 1)] + "…"


def dot(x: float, y: float, kind: str, tip: str, trial: str, radius: float = 4) -> str:
    return f'<circle class="dot {kind}" cx="{x}" cy="{y}" r="{radius}" data-trial="{esc(trial)}">{_tip(tip)}</circle>'


def line(points: Sequence[tuple[float, float]], kind: str, tip: str = "", trial: str = "") -> str:
    """A line through points; a single one is a dot."""
    if len(points) == 1:
        return dot(*points[0], kind.replace("line", "dot"), tip, trial, 2.5) if tip else ""
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="line {kind}" d="{path}" data-trial="{esc(trial)}">{_tip(tip)}</path>'


def _tip(tip: str) -> str:
    return f"<title>{esc(tip)}</title>" if tip else ""


def thinned(points: Sequence[tuple[float, float]], most: int = 160) -> list[tuple[float, float]]:
    """At most about `most` of the points, always with the last one."""
    every = max(1, math.ceil(len(points) / most))
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def curve_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    title: str,
    width: int = 760,
    height: int = 340,
    band: Sequence[tuple[float, float, float]] = (),
) -> str:
    """Lines through points (x, y) by their names, which are classes as well: a legend names several. Empty without any.

    `band`: (x, low, high), an area behind the lines. The x-axis begins at 0.
    """
    shown = {name: points for name, points in curves.items() if points}
    every = [point for points in shown.values() for point in points]
    if not every:
        return ""
    every += [(x, y) for x, *ends in band for y in ends]
    has_legend = len(shown) > 1
    top = TOP + 22 if has_legend else TOP
    plot = Plot(Scale(0.0, max(x for x, _ in every) or 1.0), scale_of([y for _, y in every]), width, height, top)
    body, right = [], LEFT
    if len(band) > 1:
        around = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        body.append(f'<path class="band" d="M{"L".join(f"{x:g} {y:g}" for x, y in (plot.at(*p) for p in around))}Z"/>')
    for name, points in shown.items():
        body.append(line([plot.at(*point) for point in thinned(points, width)], name, tip=name))
        if has_legend:
            body.append(f'<path class="line {esc(name)}" d="M{right} {TOP}h22"/>')
            body.append(f'<text class="legend" x="{right + 28}" y="{TOP + 4}">{esc(name)}</text>')
            right += 110
    return plot.svg(body, x_label, y_label, title)
