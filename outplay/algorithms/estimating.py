"""Off-policy evaluation: the return of a policy, estimated from recorded episodes of another one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from outplay.algorithms.fittedq import UPDATES, fitted_q
from outplay.arguments import integer, real, shown
from outplay.data import MINARI, Dataset, read_minari, read_parquet, transitions
from outplay.data.checking import ActionCheck, check_columns, check_finite
from outplay.data.columns import Rows
from outplay.errors import ConfigError, DataError
from outplay.learning.importance import (
    effective_sample_size,
    first_unsupported_step,
    importance_sampling,
    padded,
    weighted_importance_sampling,
)
from outplay.policies import Policy, QPolicy, masked

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

Array = np.ndarray
Method = Literal["is", "wis", "fqe"]
METHODS: tuple[str, ...] = get_args(Method)
log = logging.getLogger("outplay")

_DATA = "the data set"  # in error messages


def estimate(
    algorithm: Algorithm,
    data: Dataset | str | Path,
    methods: str | Sequence[str] | None = None,
    explore: bool | None = None,
    gamma: float | None = None,
    updates: int = UPDATES,
) -> dict[str, dict[str, float]]:
    """Estimates of the policy's discounted return, by method: see `Algorithm.estimate`."""
    methods = [methods] if isinstance(methods, str) else methods
    if methods is not None and (isinstance(methods, Mapping) or not isinstance(methods, Iterable) or not methods):
        raise ConfigError(f"methods must be one of {', '.join(METHODS)} or a list of them, not {shown(methods)}")
    integer(updates, "fqe_updates", 1)
    if gamma is not None and not 0 <= real(gamma, "gamma") <= 1:
        raise ConfigError(f"gamma must be at least 0 and at most 1, not {gamma}")
    for method in methods or ():
        if method not in METHODS:
            raise ConfigError(f"no method {method!r} of off-policy evaluation; valid: {', '.join(METHODS)}")
    config, policy = algorithm.config, algorithm.policy
    if policy.network.core is not None:
        raise ConfigError("off-policy evaluation of recurrent policies is not supported")
    if not isinstance(data, Dataset | str | Path):
        raise ConfigError(f"data must be a Dataset, a folder of Parquet files or 'minari:NAME', not {shown(data)}")
    dataset = data if isinstance(data, Dataset) else _opened(str(data), policy)
    acting = Acting(policy, config.evaluation_explore if explore is None else explore)
    gamma = config.gamma if gamma is None else gamma
    if methods is None:
        has_probabilities = transitions.LOGP in dataset.columns and (acting.is_discrete or acting.explore)
        methods = METHODS if has_probabilities else ["fqe"]
    found: dict[str, dict[str, float]] = {}
    sampled = [method for method in methods if method != "fqe"]
    if sampled:
        rewards, log_ratios = _episodes(dataset, acting)
        size = effective_sample_size(log_ratios)
        _warn_without_support(log_ratios, size, acting.explore)
        for method in sampled:
            function = importance_sampling if method == "is" else weighted_importance_sampling
            each = function(rewards, log_ratios, gamma)
            error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else float("nan")
            found[method] = {
                "return_mean": float(each.mean()), "standard_error": float(error), "effective_sample_size": size
            }  # fmt: skip
    if "fqe" in methods:
        with algorithm.learner_threads():
            found["fqe"] = fitted_q(dataset, acting, gamma, updates, config.seed)
    return found


def _warn_without_support(log_ratios: Array, size: float, explore: bool) -> None:
    """Log a warning if the policy would have taken the actions of no episode up to its end."""
    if (step := first_unsupported_step(log_ratios)) is None:
        return
    remedy = "fqe" if explore else "explore=True (--explore) for the policy that samples its actions, or fqe"
    log.warning(
        "importance sampling: from step %d on, the policy would have taken the actions of none of the %d episodes, so "
        "later rewards are not counted (effective sample size %.3g), and estimates of is and wis mean little; use %s",
        step, len(log_ratios), size, remedy,
    )  # fmt: skip


def _opened(data: str, policy: Policy) -> Dataset:
    minari = data.startswith(MINARI)
    return read_minari(data.removeprefix(MINARI), policy.leaves) if minari else read_parquet(data)


class Acting:
    """What a policy would do at recorded observations: sampling its distribution (`explore`), or greedily."""

    where = _DATA

    def __init__(self, policy: Policy, explore: bool) -> None:
        self.policy, self.explore = policy, explore
        self.is_discrete = isinstance(policy.action_space, spaces.Discrete)
        spec = policy.spec
        self._check_actions = ActionCheck(spec.action_space, spec.normalize_actions or spec.clip_actions, _DATA)
        if explore and isinstance(policy, QPolicy):
            raise ConfigError("a policy of Q-values has no action probabilities: evaluate it greedily (explore=False)")

    def observations(self, rows: Rows, prefix: str) -> tuple[Tensor, ...]:
        leaves = self.policy.leaves
        names = zip(leaves, transitions.leaf_columns(leaves, prefix), strict=True)
        arrays = tuple(np.array(rows[name].astype(leaf.dtype, copy=False)) for leaf, name in names)
        return tuple(torch.from_numpy(array).to(self.policy.device) for array in arrays)

    def check(self, rows: Rows, names: Sequence[str]) -> None:
        """Raise DataError for actions that are not in the action space, and NaN in these columns or observations."""
        prefixes = [] if self.policy.spec.preprocessor is not None else [transitions.OBSERVATION]
        if prefixes and transitions.NEXT_OBSERVATION in names:
            prefixes.append(transitions.NEXT_OBSERVATION)
        observed = [name for prefix in prefixes for name in transitions.leaf_columns(self.policy.leaves, prefix)]
        check_finite(rows, [*observed, *(name for name in names if name != transitions.NEXT_OBSERVATION)], _DATA)
        self._check_actions(rows[transitions.ACTION])

    @torch.no_grad()
    def params(self, rows: Rows, after: bool = False) -> Tensor:
        """Parameters of the action distribution, or Q-values, (B, P)."""
        prefix = transitions.NEXT_OBSERVATION if after else transitions.OBSERVATION
        mask = rows.get(transitions.NEXT_MASK if after else transitions.MASK) if self.policy.spec.with_masks else None
        outputs = self.policy._outputs(self.observations(rows, prefix))[:, : self.policy.distribution.num_params]
        return masked(outputs, None if mask is None else torch.from_numpy(mask).to(outputs.device))

    def probabilities(self, params: Tensor) -> Tensor:
        """Of discrete actions, (B, A)."""
        if self.explore:
            return params.softmax(-1)
        return torch.nn.functional.one_hot(params.argmax(-1), params.shape[-1]).to(params.dtype)

    @torch.no_grad()
    def log_prob(self, rows: Rows) -> Array:
        """log π(a) of the recorded actions, (B,)."""
        params, distribution = self.params(rows), self.policy.distribution
        actions = torch.from_numpy(np.array(self.policy.from_env(rows[transitions.ACTION]))).to(params.device)
        if self.is_discrete:
            found = self.probabilities(params).gather(-1, actions.long()[:, None]).squeeze(-1).log()
            return found.double().cpu().numpy()  # −∞ of an action that the policy never takes: the ratio is 0
        if not self.explore or not hasattr(distribution, "log_prob"):
            raise ConfigError(
                "importance sampling needs the probabilities of actions, and a greedy policy over continuous actions "
                "has none: give explore=True (--explore) for a stochastic policy, or use fqe"
            )
        density: Array = distribution.log_prob(params, actions).double().cpu().numpy()
        return density

    def actions(self, params: Tensor, rng: np.random.Generator) -> Tensor:
        """Actions of the policy, as inputs of a Q-function, (B, n)."""
        array, distribution = params.cpu().numpy(), self.policy.distribution
        drawn = distribution.sample(array, rng) if self.explore else distribution.mode(array)
        return torch.from_numpy(drawn.astype(np.float32)).to(params.device)


def _episodes(dataset: Dataset, acting: Acting) -> tuple[Array, Array]:
    """(rewards, log π(a) − log μ(a)) of all episodes, (E, T) each."""
    needed = [transitions.ACTION, transitions.REWARD, transitions.EPISODE, transitions.STEP]
    needed += [transitions.LOGP] if transitions.LOGP in dataset.columns else []
    needed += [transitions.MASK] if acting.policy.spec.with_masks else []
    check_columns(dataset.columns, acting.policy.leaves, acting.policy.action_space, needed, _DATA)
    if transitions.LOGP not in dataset.columns:
        raise DataError(
            "importance sampling needs the column 'action_logp', the probabilities of the policy that was recorded; "
            "record one that samples its actions (PPO, or evaluate --explore), or use fqe"
        )
    rewards, ratios, episodes, steps = [], [], [], []
    for rows in dataset.blocks():
        acting.check(rows, [transitions.REWARD, transitions.LOGP])
        rewards.append(rows[transitions.REWARD].astype(np.float64))
        ratios.append(acting.log_prob(rows) - rows[transitions.LOGP])
        episodes.append(rows[transitions.EPISODE])
        steps.append(rows[transitions.STEP])
    where = np.concatenate(episodes), np.concatenate(steps)
    transitions.check_steps(*where, _DATA)
    return padded(np.concatenate(rewards), *where), padded(np.concatenate(ratios), *where)
