"""The learning curve of a run as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outplay.plotting.svg import curve_chart

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


def learning_curve(results: Sequence[Mapping[str, Any]]) -> str | None:
    """Mean return by environment steps, in training and in evaluations. None if there is no episode yet."""
    curves = {
        "training": _points(results, lambda result: result),
        "evaluation": _points(results, lambda result: result.get("evaluation") or {}),
    }
    title = "Learning curve: mean return by environment steps"
    chart = curve_chart(curves, "environment steps", "mean return", title, _WIDTH, _HEIGHT)
    if not chart:
        return None
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
