"""The inter-quartile mean of several runs, with a bootstrap band (Agarwal et al. 2021, arXiv:2108.13264)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from outplay.curves.downsampling import downsampled
from outplay.errors import ConfigError
from outplay.streams import stream

Array = np.ndarray

_BLOCK = 2_000_000  # numbers that are resampled at once: 16 MB


class Band(NamedTuple):
    """The inter-quartile mean of runs and its confidence band at P values of x; all arrays (P,)."""

    x: Array
    iqm: Array
    low: Array
    high: Array


def iqm(values: Array, axis: int | None = None) -> Array:
    """The inter-quartile mean: the mean of the middle half of the values along an axis, or of all values.

    With x_(0) ≤ … ≤ x_(n-1), IQM = Σ_i w_i x_(i) / Σ_i w_i, and w_i is the length of [i, i+1] ∩ [n/4, 3n/4]. A value of
    which only a part is in the middle half has a fractional weight, so the IQM is defined for every n. If n is a
    multiple of 4, it is the 25 % trimmed mean. NaN is left out; the IQM of no value is NaN.

    Returns an array without the axis.

    >>> float(iqm(np.array([1.0, 2.0, 4.0, 100.0])))
    3.0
    """
    values = np.asarray(values, np.float64)
    values = values.reshape(-1) if axis is None else np.moveaxis(values, axis, -1)
    ordered = np.sort(values, axis=-1)  # NaN last
    is_known = ~np.isnan(ordered)
    number = is_known.sum(axis=-1, keepdims=True)
    rank = np.arange(ordered.shape[-1])
    weights = np.clip(np.minimum(rank + 1, 0.75 * number) - np.maximum(rank, 0.25 * number), 0.0, None)
    total = np.where(weights > 0, weights * np.where(is_known, ordered, 0.0), 0.0).sum(axis=-1)
    middle: Array = np.divide(total, weights.sum(axis=-1), out=np.full(total.shape, np.nan), where=number[..., 0] > 0)
    return middle


def bootstrap_band(
    values: Array,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
    strata: Sequence[Hashable] | None = None,
) -> tuple[Array, Array]:
    """The stratified percentile bootstrap interval (low, high) of the IQM over runs.

    The R runs are drawn again with replacement, `samples` times, and the band is between the (1 - level)/2 and
    (1 + level)/2 quantiles of the IQMs of the draws. A run is drawn as a whole: with the same draw for all its values.

    `values`: (R, …), with the runs along the first axis. `strata`: a label for each run, such as its environment: runs
    are drawn within their stratum, as the paper does within tasks. Default: one stratum. Returns two arrays (…).

    >>> bootstrap_band(np.array([[3.0, 1.0], [3.0, 2.0]]))
    (array([3., 1.]), array([3., 2.]))
    """
    values = np.asarray(values, np.float64)
    if values.ndim < 1 or not len(values):
        raise ConfigError("a bootstrap band needs at least one run")
    if not 0.0 < level < 1.0:
        raise ConfigError(f"the level of a band must be between 0 and 1, not {level:g}")
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, not {samples}")
    labels: Sequence[Hashable] = [0] * len(values) if strata is None else strata
    if len(labels) != len(values):
        raise ConfigError(f"strata must have a label for each of the {len(values)} runs, not {len(labels)} labels")
    draws, repeats = _draws(labels, samples, seed)
    flat = values.reshape(len(values), -1)
    width = max(1, _BLOCK // max(draws.size, samples))
    bands = [_band(flat[:, at : at + width], draws, repeats, level) for at in range(0, flat.shape[1], width)]
    band = np.concatenate(bands, axis=1) if bands else np.empty((2, 0))
    return band[0].reshape(values.shape[1:]), band[1].reshape(values.shape[1:])


def aggregated(
    curves: Sequence[tuple[Array, Array]],
    points: int = 400,
    level: float = 0.95,
    seed: int = 0,
    strata: Sequence[Hashable] | None = None,
) -> Band:
    """The IQM and its band over runs, each a pair (x, y) of arrays (N_i,): at most `points` values of x.

    The x are those where every run has data: from the largest first x to the smallest last one. If all runs have the
    same x, these are kept; otherwise they are equidistant, and the runs are interpolated linearly. A run of more than
    `points` values is averaged in buckets first, so that no value is lost between two x. Values that are not finite are
    left out. The band is empty if no x is common to all runs.

    >>> x = np.array([0.0, 1.0])
    >>> aggregated([(x, np.array([1.0, 2.0])), (x, np.array([3.0, 2.0]))]).iqm
    array([2., 2.])
    """
    known = [_distinct(*downsampled(x, y, points)[:2]) for x, y in curves]
    empty = np.empty(0)
    if not known or not all(len(x) for x, _ in known):
        return Band(empty, empty, empty, empty)
    first, last = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if first > last:
        return Band(empty, empty, empty, empty)
    inside = [x[(x >= first) & (x <= last)] for x, _ in known]
    if all(np.array_equal(x, inside[0]) for x in inside[1:]):
        common = inside[0]
    else:
        common = np.unique(np.linspace(first, last, min(points, max(map(len, inside)))))
    values = np.stack([np.interp(common, x, y) for x, y in known])
    low, high = bootstrap_band(values, level, seed=seed, strata=strata)
    return Band(common, iqm(values, axis=0), low, high)


def _distinct(x: Array, y: Array) -> tuple[Array, Array]:
    """Sorted x without duplicates; y is the mean where there were some."""
    distinct, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return distinct, np.bincount(place, weights=y, minlength=len(distinct)) / count


def _draws(strata: Sequence[Hashable], samples: int, seed: int) -> tuple[Array, Array]:
    """Distinct draws of R runs (D, R), and how many of the `samples` each stands for (D,).

    The order within a draw does not matter to the IQM, so few runs have few distinct draws: three runs have 10.
    """
    random = stream(seed, "bootstrap")
    labels = list(dict.fromkeys(strata))
    members = [np.array([i for i, label in enumerate(strata) if label == each]) for each in labels]
    drawn = np.concatenate([runs[random.integers(len(runs), size=(samples, len(runs)))] for runs in members], axis=1)
    return np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)


def _band(values: Array, draws: Array, repeats: Array, level: float) -> Array:
    """(low, high) as (2, P) of values (R, P)."""
    means = np.repeat(iqm(values[draws], axis=1), repeats, axis=0)  # (samples, P)
    quantiles = ((1.0 - level) / 2, (1.0 + level) / 2)
    if not np.isnan(means).any():
        whole: Array = np.quantile(means, quantiles, axis=0)
        return whole
    band = np.full((2, means.shape[1]), np.nan)
    is_known = ~np.isnan(means).all(axis=0)
    band[:, is_known] = np.nanquantile(means[:, is_known], quantiles, axis=0)
    return band
