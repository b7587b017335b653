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


def episode_returns(
    rewards: Array, episodes: Array, steps: Array, terminated: Array, gamma: float
) -> tuple[Array, Array, Array]:
    """Returns of recorded steps (B,) in any order: (G_t without bootstrap, discount of the bootstrap, last row).

    `episodes` and `steps`: the number of each row's episode, and its step in it. The last row is that of the episode's
    last step. The discount is γ^k for k steps until the episode's end, and 0 if it terminated.

    >>> ends = np.array([True, False, False])
    >>> episode_returns(np.array([1., 2., 4.]), np.array([7, 7, 9]), np.array([1, 0, 0]), ends, 0.5)
    (array([1. , 2.5, 4. ]), array([0. , 0. , 0.5]), array([0, 0, 2]))
    """
    order = np.lexsort((steps, episodes))
    sorted_episodes, sorted_rewards = episodes[order], rewards[order].astype(np.float64)
    is_last = np.append(sorted_episodes[1:] != sorted_episodes[:-1], True) if len(order) else np.zeros(0, bool)
    ends = np.flatnonzero(is_last)  # one per episode
    lengths = np.diff(ends, prepend=-1)
    discounts, found = np.zeros(len(order)), np.zeros(len(order))
    after = np.zeros(len(ends))
    left = np.where(terminated[order][ends], 0.0, 1.0)
    for back in range(int(lengths.max(initial=0))):  # steps before the end, in all episodes at once
        chosen = lengths > back
        rows = ends[chosen] - back
        after[chosen] = sorted_rewards[rows] + gamma * after[chosen]
        left[chosen] *= gamma
        found[rows], discounts[rows] = after[chosen], left[chosen]
    result, result_discounts, last = np.empty_like(found), np.empty_like(found), np.empty(len(order), np.int64)
    result[order], result_discounts[order] = found, discounts
    last[order] = np.repeat(order[ends], lengths)
    return result, result_discounts, last


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


def lambda_returns(rewards: Array, following: Array, ended: Array, gamma: float, lambda_: float) -> Array:
    """λ-returns G_t = r_t + γ [λ G_{t+1} + (1 − λ) V'_t]; at an episode's end and the last step G_t = r_t + γ V'_t.

    With V = max_a Q(·, a), these are the targets of Q(λ) (Peng & Williams 1996), as PQN uses it (Gallici et al. 2024).
    λ = 0 gives the one-step target of Q-learning.

    >>> lambda_returns(np.array([[1.], [1.]]), np.array([[2.], [4.]]), np.zeros((2, 1), bool), 0.5, 0.5)
    array([[2.25],
           [3.  ]])
    """
    returns = np.empty_like(rewards)
    after = following[-1]
    for t in reversed(range(len(rewards))):
        mixed = following[t] + lambda_ * np.where(ended[t], np.zeros((), rewards.dtype), after - following[t])
        after = rewards[t] + gamma * mixed
        returns[t] = after
    return returns


def vtrace(
    rewards: Array,
    values: Array,
    following: Array,
    ended: Array,
    ratios: Array,
    gamma: float,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace (Espeholt et al. 2018): (value targets v, advantages A) of a policy π, from steps of another policy μ.

    v_t = V_t + Σ_k γ^k (Π_{i<k} λ min(c̄, ρ_{t+i})) δ_{t+k}, δ_t = min(ρ̄, ρ_t) (r_t + γ V'_t − V_t)
    A_t = r_t + γ V'_t + γλ (v_{t+1} − V_{t+1}) − V_t

    `ratios` are ρ_t = π(a_t)/μ(a_t), and 0 where a step is not valid. With λ = 1, A_t is the r_t + γ v_{t+1} − V_t of
    the paper. With π = μ, A_t is the advantage of `gae`, and v_t = A_t + V_t.

    >>> half = np.array([[0.5], [0.5]])
    >>> vtrace(np.ones((2, 1)), np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1), bool), half, gamma=1.0)
    (array([[0.75],
           [0.5 ]]), array([[1.5],
           [1. ]]))
    """
    errors: Array = rewards + gamma * following - values
    weighted = np.minimum(ratios, np.asarray(rho_bar, errors.dtype)) * errors
    none = np.zeros((), errors.dtype)
    carry = np.where(ended, none, np.asarray(gamma * lambda_, errors.dtype))  # to the step before
    trace = carry * np.minimum(ratios, np.asarray(c_bar, errors.dtype))
    corrections, advantages = np.empty_like(errors), np.empty_like(errors)  # corrections are v_t − V_t
    correction = np.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        advantages[t] = errors[t] + carry[t] * correction
        correction = weighted[t] + trace[t] * correction
        corrections[t] = correction
    return values + corrections, advantages


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
