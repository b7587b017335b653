"""Acting outside training: by name as in RLlib, and `predict` as in Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outplay import spaces
from outplay.errors import ConfigError, EnvError
from outplay.masks import checked_mask, mask_in, mask_sizes
from outplay.policies import Policy
from outplay.spaces import Leaf, Leaves


def single_action(
    policy: Policy, rng: np.random.Generator, observation: Any, state: Any, explore: bool, mask: Any, prev_reward: Any
) -> Any:
    """The action, and with a state (action, next state, extras): see `Algorithm.compute_single_action`."""
    masks = None if mask is None else {"": mask}
    before = policy.state_from(state, _rewards(prev_reward, 1), 1)
    actions, next_state, extras = policy.act_by_name({"": observation}, before, masks, explore, rng)
    if state is None:
        return actions[""]
    return actions[""], next_state, {name: array[0] for name, array in extras.items()}


def actions_by_name(
    policy: Policy,
    rng: np.random.Generator,
    observations: Any,
    state: Any,
    explore: bool,
    masks: Mapping[Any, Any] | None,
    prev_reward: Mapping[Any, Any] | None,
) -> Any:
    """Actions by name, and with a state (actions, next state, extras): see `Algorithm.compute_actions`."""
    if not isinstance(observations, Mapping):
        raise ConfigError(
            "compute_actions() takes observations by name, as {'a': observation, …}; for an array of observations, "
            "use predict(array), and for one observation compute_single_action(observation)"
        )
    rewards = None
    if prev_reward is not None:
        if not isinstance(prev_reward, Mapping) or set(prev_reward) != set(observations):
            raise ConfigError("prev_reward must have the same names as the observations")
        rewards = _rewards([prev_reward[name] for name in observations], len(observations))
    before = policy.state_from(state, rewards, len(observations))
    if not observations:
        return {} if state is None else ({}, before, {})
    actions, next_state, extras = policy.act_by_name(observations, before, masks, explore, rng)
    return actions if state is None else (actions, next_state, extras)


def predict(
    policy: Policy,
    rng: np.random.Generator,
    observation: Any,
    state: Any,
    episode_start: Any,
    deterministic: bool,
    action_masks: Any,
    prev_reward: Any,
) -> tuple[Any, dict[str, np.ndarray] | None]:
    """(actions, next state): see `Algorithm.predict`."""
    rows, is_batch = _rows(observation, policy.leaves)
    number = len(rows[0])
    before = policy.state_from(state, _rewards(prev_reward, number), number)
    if state is not None and episode_start is not None:
        before = _restarted(before, policy.initial_state(number), episode_start, number)
    if action_masks is None:
        action_masks = _masks_in(observation, policy, is_batch)
    mask = None if action_masks is None else _masks(action_masks, policy, number, is_batch)
    actions, next_state, _ = policy.act_on_rows(rows, before, mask, not deterministic, rng)
    space = policy.action_space
    if not is_batch:
        return spaces.nested_action(space, actions[0]), next_state or None
    if spaces.is_composite(space):
        return [spaces.nested_action(space, action) for action in actions], next_state or None
    return actions, next_state or None


def _rewards(prev_reward: Any, number: int) -> np.ndarray | None:
    """The rewards of the last step, one per observation. None if they are not given."""
    if prev_reward is None:
        return None
    try:
        rewards: np.ndarray = np.atleast_1d(np.asarray(prev_reward, np.float32))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"prev_reward must be a number per observation, not {prev_reward!r}") from error
    if rewards.shape != (number,) or not np.isfinite(rewards).all():
        raise ConfigError(f"prev_reward must be one finite number per observation ({number}), not {prev_reward!r}")
    return rewards


def _rows(observation: Any, of: tuple[Leaf, ...]) -> tuple[Leaves, bool]:
    """The observations as leaves with one row each, and whether they are a batch: the shapes tell."""
    try:
        parts = spaces.split(observation, of)
    except (EnvError, TypeError, ValueError):  # `write` says what is wrong
        parts = ()
    pairs = list(zip(parts, of, strict=False))
    is_batch = all(part.ndim == len(leaf.shape) + 1 and part.shape[1:] == leaf.shape for part, leaf in pairs)
    if parts and is_batch and len({len(part) for part in parts}) == 1 and len(parts[0]):
        return parts, True
    rows = spaces.empty(of, 1)
    spaces.write(observation, of, rows, 0, "")
    return rows, False


def _restarted(
    state: dict[str, np.ndarray], initial: dict[str, np.ndarray], episode_start: Any, number: int
) -> dict[str, np.ndarray]:
    """The state with the initial one in the rows where an episode starts."""
    starts = np.atleast_1d(np.asarray(episode_start, bool))
    if starts.shape != (number,):
        raise ConfigError(f"predict(): episode_start has shape {starts.shape}; one boolean per observation is needed")
    restarted = {name: array.copy() for name, array in state.items()}
    for name, array in restarted.items():
        array[starts] = initial[name][starts]
    return restarted


def _masks_in(observation: Any, policy: Policy, is_batch: bool) -> Any:
    """The action masks in the observations, if they have any."""
    masks = mask_in(observation, policy.observation_space, "")
    return list(zip(*masks, strict=True)) if is_batch and isinstance(masks, tuple) else masks


def _masks(masks: Any, policy: Policy, number: int, is_batch: bool) -> np.ndarray:
    sizes = mask_sizes(policy.action_space)
    given = masks if is_batch else [masks]
    if len(given) != number:
        raise ConfigError(f"predict(): {number} observations need {number} action masks, not {len(given)}")
    return np.stack([checked_mask(mask, sizes, "") for mask in given])
