"""What a policy computed when it chose an action, for people who watch it: probabilities, Q-values, value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from outplay.policies.actor_critic import ActorCritic
from outplay.policies.distributions import Bernoulli, Categorical, Independent, MultiCategorical
from outplay.policies.policy import Policy
from outplay.policies.qpolicy import QPolicy
from outplay.spaces import Leaves

Array = np.ndarray

_MOST_LISTED = 256  # probabilities or Q-values
_FORBIDDEN = -1e29  # logits and Q-values of masked actions are below


@dataclass(frozen=True)
class Choice:
    """`probabilities` and `q` have one entry per label of `action_labels`; None if the policy has none.

    `chosen`: the indices of the labels that the action has. A masked action has the probability 0 and no Q-value.
    """

    chosen: list[int]
    probabilities: list[float] | None
    q: list[float | None] | None
    value: float | None  # of the state in which the action was chosen


def action_labels(space: spaces.Space[Any]) -> list[str] | None:
    """A label for each discrete choice of an action space; None if it has none, or too many.

    >>> action_labels(spaces.MultiDiscrete([2, 2]))
    ['0: 0', '0: 1', '1: 0', '1: 1']
    """
    labels = _labels(space)
    return labels if 0 < len(labels) <= _MOST_LISTED else None


def _labels(space: spaces.Space[Any]) -> list[str]:
    if isinstance(space, spaces.Dict):
        return [f"{key} {label}" for key in sorted(space.spaces) for label in _labels(space.spaces[key])]
    if isinstance(space, spaces.Tuple):
        return [f"{i} {label}" for i, part in enumerate(space.spaces) for label in _labels(part)]
    if isinstance(space, spaces.Discrete):
        return [str(int(space.start) + i) for i in range(min(int(space.n), _MOST_LISTED + 1))]
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        pairs = enumerate(zip(sizes, starts, strict=True))
        return [f"{i}: {start + n}" for i, (size, start) in pairs for n in range(min(size, _MOST_LISTED + 1))]
    if isinstance(space, spaces.MultiBinary):
        return [str(i) for i in range(int(np.prod(space.shape)))]
    return []


def choice_of(policy: Policy, observations: Leaves, actions: Array, extras: dict[str, Array]) -> Choice:
    """What `policy.act` computed for the first lane: its observations, actions (before scaling) and extras."""
    params = extras["dist"][0].astype(np.float64)
    labels = action_labels(policy.action_space)
    value = _value(policy, observations, extras)
    if isinstance(policy, QPolicy):
        q = [float(x) if x > _FORBIDDEN else None for x in params]
        return Choice([int(actions[0])], None, q if labels else None, float(params.max()))
    parts = _parts(policy.distribution, params, np.atleast_1d(actions[0]).astype(np.float64)) if labels else []
    probabilities = [float(p) for part, _ in parts for p in part]
    if labels is None or len(probabilities) != len(labels):  # a custom distribution, or one for continuous actions
        return Choice([], None, None, value)
    chosen, before = [], 0
    for part, indices in parts:
        chosen += [before + index for index in indices]
        before += len(part)
    return Choice(chosen, probabilities, None, value)


def _parts(distribution: Any, params: Array, action: Array) -> list[tuple[Array, list[int]]]:
    """(probabilities, indices that the action has) of each discrete variable."""
    if isinstance(distribution, Categorical):
        return [(_softmax(params), [int(action[0])])]
    if isinstance(distribution, MultiCategorical):
        pieces = np.split(params, np.cumsum(distribution.sizes)[:-1])
        return [(_softmax(piece), [int(a)]) for piece, a in zip(pieces, action, strict=True)]
    if isinstance(distribution, Bernoulli):
        return [(np.exp(-np.logaddexp(0, -params)), np.flatnonzero(action).tolist())]
    if isinstance(distribution, Independent):
        found = []
        for own, own_params, own_action in distribution.split(params, action):
            found += _parts(own, own_params, own_action)
        return found
    return []


def _softmax(logits: Array) -> Array:
    odds = np.exp(logits - logits.max())
    probabilities: Array = odds / odds.sum()
    return probabilities


def _value(policy: Policy, observations: Leaves, extras: dict[str, Array]) -> float | None:
    """V(s), computed here if acting does not need it. None if the policy has no value network."""
    if "value" in extras:
        return float(extras["value"][0])
    network = policy.network
    if not isinstance(network, ActorCritic) or not network.with_value or network.core is not None:
        return None
    with torch.inference_mode():
        arrays = tuple(torch.from_numpy(np.ascontiguousarray(leaf[:1])) for leaf in observations)
        return float(network.value(network.arranged(arrays)))
