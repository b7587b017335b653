"""Settings of runs side by side: what differs, and which runs differ in the seed only. Does not import torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

AUTO = "auto"  # a default that config.yaml replaces by what it became

# Settings under `config` that change where and how a run computes, or what it prints, but not what it learns.
OPERATIONAL = frozenset(
    {
        *("num_workers", "max_worker_restarts", "num_learners", "num_gpus", "num_gpus_per_learner", "learner_threads"),
        *("act_on_gpu", "framework", "env_step_timeout_s"),
        *("evaluation_interval", "evaluation_num_workers", "evaluation_parallel_to_training"),
        *("render_env", "record_env", "record_env_interval", "output", "log_level"),
    }
)


def flat_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run as config.yaml has them (`RunFolder.recorded`), without nesting: `env`, `run`, and those
    under `config` with dots in their names. Settings of the experiment alone, as `stop`, are left out.

    >>> flat_settings({"env": "Pong", "run": "PPO", "stop": {}, "config": {"lr": 0.1, "model": {"text": "ignore"}}})
    {'run': 'PPO', 'env': 'Pong', 'lr': 0.1, 'model.text': 'ignore'}
    """
    config = body.get("config")
    inner = flat(config) if isinstance(config, dict) else {}
    return {"run": body.get("run"), "env": body.get("env"), **inner}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dots between the keys.

    >>> flat({"lr": 0.1, "model": {"use_lstm": True}})
    {'lr': 0.1, 'model.use_lstm': True}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return found


def group_key(experiment: str, settings: Mapping[str, Any]) -> str:
    """The same text for runs of one experiment whose flat settings differ only in the seed, or in OPERATIONAL ones."""
    compared = {name: value for name, value in settings.items() if _is_compared(name)}
    text = json.dumps([experiment, compared], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _is_compared(name: str) -> bool:
    return name != "seed" and name.partition(".")[0] not in OPERATIONAL


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of flat settings that are not the same in all of these runs. A missing setting is like null."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if any(each.get(name) != settings[0].get(name) for each in settings[1:])]


def differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """As `differing`, without the seed and OPERATIONAL settings."""
    return [name for name in differing(settings) if _is_compared(name)]
