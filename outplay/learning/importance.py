"""Importance sampling: the value of one policy from episodes of another. Pure functions over arrays.

Shapes: E episodes, padded to T steps. After its end, an episode has rewards of 0 and ratios of 1. An action that the
policy never takes has the log-ratio −∞: from there on, the episode has the weight 0.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def cumulative_ratios(log_ratios: Array) -> Array:
    """ρ_{0:t} = Π_{i≤t} π(a_i)/μ(a_i), (E, T), from log π(a) − log μ(a).

    >>> cumulative_ratios(np.log([[2.0, 0.5]]))
    array([[2., 1.]])
    """
    ratios: Array = np.exp(np.cumsum(log_ratios, 1).clip(max=700.0))  # more would overflow
    return ratios


def importance_sampling(rewards: Array, log_ratios: Array, gamma: float) -> Array:
    """Ordinary importance sampling, by step (Precup et al. 2000): Σ_t γ^t ρ_{0:t} r_t of each episode, (E,).

    Its mean is an unbiased estimate of the policy's value; its variance grows with the length of the episodes.

    >>> importance_sampling(np.array([[1.0], [0.0]]), np.log([[1.8], [0.2]]), 1.0)
    array([1.8, 0. ])
    """
    discounts = gamma ** np.arange(rewards.shape[1])
    estimates: Array = (discounts * cumulative_ratios(log_ratios) * rewards).sum(1)
    return estimates


def weighted_importance_sampling(rewards: Array, log_ratios: Array, gamma: float) -> Array:
    """Weighted importance sampling: ρ_{0:t} is divided by its mean over the episodes, (E,).

    Its mean is biased, but consistent, and varies much less than that of ordinary importance sampling. Steps that no
    episode reaches with a weight above 0 add nothing: see `first_unsupported_step`.

    >>> weighted_importance_sampling(np.array([[1.0], [0.0]]), np.log([[3.0], [1.0]]), 1.0)
    array([1.5, 0. ])
    """
    ratios = _relative_ratios(log_ratios)
    discounts = gamma ** np.arange(rewards.shape[1])
    means = ratios.mean(0, keepdims=True)
    estimates: Array = (discounts * ratios / np.where(means > 0, means, 1.0) * rewards).sum(1)
    return estimates


def first_unsupported_step(log_ratios: Array) -> int | None:
    """The first step where all episodes have the weight 0: the policy would have taken the actions of none of them.

    >>> first_unsupported_step(np.array([[0.0, -np.inf], [-np.inf, 0.0]]))
    1
    """
    steps = np.flatnonzero(np.isneginf(np.cumsum(log_ratios, 1)).all(0))
    return int(steps[0]) if len(steps) else None


def effective_sample_size(log_ratios: Array) -> float:
    """(Σ ρ)² / Σ ρ² of the weights of whole episodes: of E episodes, this many count.

    >>> effective_sample_size(np.log([[1.0], [1.0]])), effective_sample_size(np.full((2, 1), -np.inf))
    (2.0, 0.0)
    """
    weights = _relative_ratios(log_ratios)[:, -1]
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def _relative_ratios(log_ratios: Array) -> Array:
    """ρ_{0:t}, (E, T), divided by the largest one of each step: a common factor does not matter."""
    sums = np.cumsum(log_ratios, 1)
    largest = sums.max(0, keepdims=True)
    ratios: Array = np.exp(sums - np.where(np.isneginf(largest), 0.0, largest))
    return ratios


def padded(values: Array, episodes: Array, steps: Array) -> Array:
    """Values of rows (B,) as (E, T), by the numbers of their episodes and their steps; 0 where an episode has ended.

    >>> padded(np.array([1.0, 2.0, 3.0]), np.array([5, 5, 8]), np.array([0, 1, 0]))
    array([[1., 2.],
           [3., 0.]])
    """
    _, index = np.unique(episodes, return_inverse=True)
    table = np.zeros((int(index.max(initial=-1)) + 1, int(steps.max(initial=-1)) + 1))
    table[index, steps] = values
    return table
