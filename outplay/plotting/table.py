"""The numbers of a figure as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from outplay.plotting.panels import Panel


def as_csv(panels: Sequence[Panel]) -> str:
    """One row per point: metric, curve, number of runs, x, value (the inter-quartile mean of several runs), band."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["metric", "curve", "runs", panels[0].x, "value", "low", "high"])
    for panel in panels:
        for line in panel.lines:
            for i in range(len(line.x)):
                band = ["" if array is None else _number(array[i]) for array in (line.low, line.high)]
                row = [panel.metric, line.label, line.number, _number(line.x[i]), _number(line.y[i]), *band]
                table.writerow(row)
    return text.getvalue()


def _number(value: float) -> str:
    """Exact, and an integer without a decimal point."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
