"""Conditions on metrics, as {metric: value}: for stop conditions and curricula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outplay.errors import ConfigError, nearest
from outplay.synonyms import METRIC_NAMES

# Metrics for conditions, besides learner/…, info/… and evaluation/….
METRICS = (
    "training_iteration",
    "timesteps_total",
    "episodes_total",
    "episode_return_mean",
    "episode_return_min",
    "episode_return_max",
    "episode_len_mean",
    "episode_return_running",
    "time_total_s",
    "time_this_iter_s",
    "env_steps_per_s",
    "episodes_this_iter",
    "curriculum_level",
)
TIME_METRICS = frozenset({"time_total_s", "time_this_iter_s", "env_steps_per_s"})  # these differ from run to run
_EVALUATION = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean")
# RLlib's names of these metrics.
_RLLIB = {"episode_reward_mean": "episode_return_mean", "episode_reward_min": "episode_return_min",
          "episode_reward_max": "episode_return_max"}  # fmt: skip


def metric_name(name: str) -> str:
    """The name of a metric for a condition; RLlib's names are translated. Raises ConfigError if unknown."""
    prefix, slash, last = name.rpartition("/")
    name = prefix + slash + _RLLIB.get(last, last)
    known = [*METRICS, *(f"evaluation/{metric}" for metric in _EVALUATION)]
    if name not in known and not name.startswith(("learner/", "info/", "evaluation/info/")):
        meant = METRIC_NAMES.get(last)
        hint = nearest(name, known, "`outplay settings`") if meant is None else f". Did you mean {meant!r}?"
        raise ConfigError(f"there is no metric {name!r}{hint}")
    return name


def flattened(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics as a flat dict with keys like learner/kl. Lists are omitted.

    >>> flattened({"a": 1, "learner": {"kl": 0.1}, "episode_returns": [1.0, 2.0]})
    {'a': 1, 'learner/kl': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}/"))
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat
