"""Exponential moving average of a series."""

from __future__ import annotations

import numpy as np

from outplay.errors import ConfigError

Array = np.ndarray


def smoothed(y: Array, weight: float) -> Array:
    """The debiased exponential moving average of a series (N,), as TensorBoard shows it.

    s_t = w s_{t-1} + (1 - w) y_t with s_0 = 0, and the result is s_t / (1 - w^t). The division removes the bias towards
    the initial 0 (Kingma & Ba 2015, section 3). Values that are not finite are skipped: the result is NaN there, and
    the average continues after them.

    `weight`: w, 0 (no smoothing) or more and less than 1.

    >>> smoothed(np.array([1.0, 2.0, np.nan, 4.0]), 0.5).round(3)
    array([1.   , 1.667,   nan, 3.   ])
    """
    if not 0.0 <= weight < 1.0:
        raise ConfigError(f"the smoothing weight must be at least 0 and less than 1, not {weight:g}")
    values = np.asarray(y, np.float64)
    if values.ndim != 1:
        raise ConfigError(f"a series must have one dimension, not the shape {values.shape}")
    found = np.full(len(values), np.nan)
    is_finite = np.isfinite(values)
    average, remaining = 0.0, 1.0  # s_t and w^t
    averages = []
    for value in values[is_finite].tolist():
        average = weight * average + (1.0 - weight) * value
        remaining *= weight
        averages.append(average / (1.0 - remaining))
    found[is_finite] = averages
    return found
