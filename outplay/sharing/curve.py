"""The learning curve of a run as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outplay.tune.reporting.charts import Plot, Scale, line, scale_of, thinned

_WIDTH, _HEIGHT = 760, 340
# As attributes, not as a style sheet: hubs and converters may ignore that.
_ATTRIBUTES = {
    'class="grid"': 'stroke="#e4e4e4"',
    'class="axis"': 'stroke="#888"',
    'class="line training"': 'fill="none" stroke="#3b6fb6" stroke-width="2"',
    'class="line evaluation"': 'fill="none" stroke="#d2691e" stroke-width="2"',
    'class="dot training"': 'fill="#3b6fb6"',
    'class="dot evaluation"': 'fill="#d2691e"',
}
_MOST_POINTS = 1000


def learning_curve(results: Sequence[Mapping[str, Any]]) -> str | None:
    """Mean return by environment steps, in training and in evaluations. None if there is no episode yet."""
    lines = {
        "training": _points(results, lambda result: result),
        "evaluation": _points(results, lambda result: result.get("evaluation") or {}),
    }
    points = [point for found in lines.values() for point in found]
    if not points:
        return None
    x = Scale(0.0, max(at for at, _ in points) or 1.0)
    plot = Plot(x, scale_of([value for _, value in points]), _WIDTH, _HEIGHT)
    body, right = [], 0
    for kind, found in lines.items():
        if found:
            body.append(line([plot.at(*point) for point in thinned(found, _MOST_POINTS)], kind, tip=kind))
            body.append(f'<path class="line {kind}" d="M{90 + right} 22h22"/>')
            body.append(f'<text x="{118 + right}" y="26">{kind}</text>')
            right += 110
    chart = plot.svg(body, "environment steps", "mean return", "Learning curve: mean return by environment steps")
    for name, attributes in _ATTRIBUTES.items():
        chart = chart.replace(name, f"{name} {attributes}")
    font = 'font-family="sans-serif" font-size="12"'
    size = f'xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" {font}'
    head = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
    start, end = chart.split(">", 1)
    return f"{start.replace('<svg', f'<svg {size}', 1)}>{head}{end}\n"


def _points(results: Sequence[Mapping[str, Any]], part: Any) -> list[tuple[float, float]]:
    found = []
    for result in results:
        steps, value = result.get("timesteps_total"), part(result).get("episode_return_mean")
        if isinstance(steps, int) and isinstance(value, (int, float)):
            found.append((float(steps), float(value)))
    return found
