"""Statistics of columns that can be merged: of the rows of a block, and of all blocks together. Pure functions.

`merged(statistics(a), statistics(b))` are the statistics of the rows of a and b. Missing values (NaN) are not counted.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray
Statistics = dict[str, Array]


def moments(column: Array) -> Statistics:
    """Count, mean and sum of squared deviations of each element over the rows (axis 0)."""
    values = column.astype(np.float64)
    known = ~np.isnan(values)
    count = known.sum(0).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values: mean and squares are not finite, either
        mean = np.where(known, values, 0.0).sum(0) / np.maximum(count, 1.0)
        deviations = np.where(known, values - mean, 0.0)
        return {"count": count, "mean": mean, "squares": (deviations * deviations).sum(0)}


def merged_moments(a: Statistics, b: Statistics) -> Statistics:
    """Chan et al. 1983: n = nₐ + n_b, δ = mean_b − meanₐ, M = Mₐ + M_b + δ² nₐ n_b / n."""
    count = a["count"] + b["count"]
    share = b["count"] / np.maximum(count, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        delta = np.where(b["count"] > 0, b["mean"] - a["mean"], 0.0)
        mean = np.where(a["count"] > 0, a["mean"] + delta * share, b["mean"])
        squares = a["squares"] + b["squares"] + np.where(a["count"] > 0, delta * delta * a["count"] * share, 0.0)
    return {"count": count, "mean": mean, "squares": squares}


def extremes(column: Array) -> Statistics:
    """The smallest and the largest value of each element; +∞ and −∞ if all are missing."""
    values = column.astype(np.float64)
    missing = np.isnan(values)
    return {
        "low": np.where(missing, np.inf, values).min(0, initial=np.inf),
        "high": np.where(missing, -np.inf, values).max(0, initial=-np.inf),
    }


def merged_extremes(a: Statistics, b: Statistics) -> Statistics:
    return {"low": np.minimum(a["low"], b["low"]), "high": np.maximum(a["high"], b["high"])}


def counts(column: Array) -> Statistics:
    """The different values of a column, sorted, and how often each occurs."""
    values, number = np.unique(column.ravel(), return_counts=True)
    return {"values": values, "counts": number.astype(np.int64)}


def merged_counts(a: Statistics, b: Statistics) -> Statistics:
    values, place = np.unique(np.concatenate([a["values"], b["values"]]), return_inverse=True)
    number = np.zeros(len(values), np.int64)
    np.add.at(number, place, np.concatenate([a["counts"], b["counts"]]))
    return {"values": values, "counts": number}
