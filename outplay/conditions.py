"""Conditions on metrics, as {metric: value}: for stop conditions and curricula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def check_reachable(names: Iterable[str], evaluates: bool, info_metrics: Sequence[str]) -> None:
    """Raise ConfigError if a condition is on a metric that a run with these settings does not have."""
    known = [f"{of}info/{key}_mean" for of in ("", "evaluation/") for key in info_metrics]
    for name in names:
        if name.startswith("evaluation/") and not evaluates:
            raise ConfigError("a condition on evaluation/… needs evaluation_interval; otherwise it is never reached")
        if name.startswith(("info/", "evaluation/info/")) and name not in known:
            hint = nearest(name, known) if known else "; list its key in info_metrics"
            raise ConfigError(f"there is no metric {name!r}{hint}")


def check_level(conditions: Mapping[str, float], num_levels: int) -> None:
    """Raise ConfigError if there is a condition on a curriculum level that does not exist. 0: no curriculum."""
    if (level := conditions.get("curriculum_level")) is None:
        return
    if not num_levels:
        raise ConfigError("a condition on curriculum_level needs a curriculum; otherwise it is never reached")
    if level > num_levels - 1:
        levels = "level, 0" if num_levels == 1 else f"levels, 0 to {num_levels - 1}"
        raise ConfigError(f"curriculum_level {level:g} is never reached: the curriculum has {num_levels} {levels}")


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
