"""Several seeds per configuration: their seeds, and one result from those of all seeds.

Eimer et al. (2023, "Hyperparameters in Reinforcement Learning and How To Tune Them") show why: settings that were
chosen on one seed often do worse on others. So a trial is judged by several seeds, and the best configuration is
reported on seeds that the search has not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outplay.errors import ConfigError, nearest
from outplay.streams import seed_for
from outplay.tune.trial import Metrics


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half; of the values at its edges, the fraction that lies within it counts.

    >>> interquartile_mean([0, 1, 2, 9])
    1.5
    """
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    weights = np.clip(np.minimum(np.arange(1, n + 1) - n / 4, 3 * n / 4 - np.arange(n)), 0, 1)
    return float((weights * ordered).sum() / weights.sum())


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {"mean": _mean, "iqm": interquartile_mean}


def check_aggregate(name: str) -> None:
    if name not in AGGREGATES:
        raise ConfigError(f"aggregate must be 'mean' or 'iqm', not {name!r}{nearest(str(name), AGGREGATES)}")


def search_seeds(study_seed: int, number: int) -> list[int]:
    """The seeds of every configuration in the search: the same ones for all, so that they are compared fairly."""
    return [seed_for(study_seed, "tune search", i) for i in range(number)]


def report_seeds(study_seed: int, number: int) -> list[int]:
    """The seeds on which the best configuration is reported: none of those of the search."""
    return [seed_for(study_seed, "tune report", i) for i in range(number)]


def aggregated(results: Sequence[Metrics], aggregate: str, metrics: Sequence[str]) -> Metrics:
    """One result from those of several seeds. The metrics that are optimised are also given for each seed."""
    if len(results) == 1:
        return results[0]
    combine = AGGREGATES[aggregate]
    merged: Metrics = {}
    for name, value in results[0].items():
        values = [result.get(name) for result in results]
        if _are_numbers(values):
            merged[name] = combine(values)  # type: ignore[arg-type]
        elif isinstance(value, dict) and all(isinstance(each, dict) for each in values):
            merged[name] = aggregated(values, aggregate, ())  # type: ignore[arg-type]
        else:
            merged[name] = value
    for name in ("training_iteration", "time_total_s"):
        if name in merged:
            merged[name] = max(result[name] for result in results)
    for name in metrics:
        if name in results[0]:
            merged[f"{name}_per_seed"] = [result.get(name) for result in results]
    return merged


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and not math.isnan(v) for v in values)
