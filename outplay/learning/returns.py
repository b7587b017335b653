"""Returns and advantages: pure functions over arrays of T steps × N lanes.

Notation: r_t is the reward of step t, V_t the value of the observation at step t, and V'_t the bootstrap value after
step t:
- within an episode: V_{t+1};
- where the episode was truncated: the value of its final observation;
- at the last step of the arrays: the value of the observation after it;
- where the episode terminated: 0.

An episode ends where it terminated or was truncated. Returns and advantages never cross the end of an episode.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def next_values(
    values: Array,
    last_values: Array,
    terminated: Array,
    final_values: Array,
    final_steps: Array,
    final_lanes: Array,
) -> Array:
    """V'_t (T, N) from V_t (T, N), the values after the last step (N,) and of K final observations (K,).

    >>> next_values(np.array([[1.], [2.]]), np.array([3.]), np.zeros((2, 1), bool), *3 * [np.zeros(0, int)])
    array([[2.],
           [3.]])
    """
    following = np.concatenate([values[1:], last_values[None]])
    following[final_steps, final_lanes] = final_values
    return np.where(terminated, np.zeros((), values.dtype), following)


def discounted_returns(rewards: Array, ended: Array, gamma: float, last_values: Array | None = None) -> Array:
    """G_t = r_t + γ G_{t+1}, with G = 0 after the end of an episode and `last_values` (default 0) after the last step.

    >>> discounted_returns(np.array([[1.], [2.], [4.]]), np.array([[False], [True], [False]]), 0.5)
    array([[2.],
           [2.],
           [4.]])
    """
    returns = np.empty_like(rewards)
    following = np.zeros_like(rewards[0]) if last_values is None else last_values
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * np.where(ended[t], np.zeros((), rewards.dtype), following)
        returns[t] = following
    return returns


def gae(rewards: Array, values: Array, following: Array, ended: Array, gamma: float, lambda_: float) -> Array:
    """Generalised advantage estimation (Schulman et al. 2016): A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V'_t − V_t.

    λ = 1 gives the discounted return (with bootstrap) minus V_t; λ = 0 gives the one-step TD error δ_t.

    >>> gae(np.array([[1.], [1.]]), np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1), bool), 1.0, 0.5)
    array([[1.5],
           [1. ]])
    """
    errors: Array = rewards + gamma * following - values
    advantages = np.empty_like(errors)
    carry = np.where(ended, np.zeros((), errors.dtype), np.asarray(gamma * lambda_, errors.dtype))
    running = np.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        running = errors[t] + carry[t] * running
        advantages[t] = running
    return advantages


def standardized_by_episode(values: Array, episode_start: Array, valid: Array) -> Array:
    """Standardize values (T, N) to mean 0 and standard deviation 1 within each episode; 0 where not valid.

    >>> starts = np.array([[True], [False], [True], [False]])
    >>> standardized_by_episode(np.array([[1.], [3.], [5.], [9.]]), starts, np.ones((4, 1), bool)).ravel().round(3)
    array([-1.,  1., -1.,  1.])
    """
    steps, lanes = values.shape
    # Episodes are numbered per lane. An episode that started before the first step is number 0.
    episode = (np.cumsum(episode_start, 0) + np.arange(lanes) * (steps + 1))[valid]
    chosen = values[valid].astype(np.float64)
    count = np.bincount(episode).clip(1)
    centred = chosen - (np.bincount(episode, chosen) / count)[episode]
    deviation = np.sqrt(np.bincount(episode, centred**2) / count)[episode]
    scaled = np.zeros_like(values)
    scaled[valid] = centred / (deviation + 1e-8)
    return scaled


def standardized(values: Array, valid: Array | None = None) -> Array:
    """Standardize values to mean 0 and standard deviation 1, computed over the valid ones."""
    chosen = values if valid is None else values[valid]
    scaled: Array = (values - chosen.mean()) / (chosen.std() + np.asarray(1e-8, values.dtype))
    return scaled
