"""Learning curves of the benchmarks, in one style."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def panels(path: Path, number: int, width: float, height: float, sharey: bool = False) -> Iterator[list[Any]]:
    """This many axes, side by side. The figure is written to `path` at the end of the block."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, number, figsize=(width, height), squeeze=False, sharey=sharey)
    yield list(axes[0])
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def label(axis: Any, goal: float, x: str = "thousand steps", y: str = "", legend: bool = False) -> None:
    """Label axes that have their curves, and draw the goal as a dashed line."""
    axis.axhline(goal, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    if legend:
        axis.legend(fontsize=7, frameon=False)
