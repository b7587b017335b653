"""Resolution of `auto` settings, which depend on the environment and the machine; once per run."""

from __future__ import annotations

import logging
from typing import TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box

from outplay.config import AlgorithmConfig
from outplay.envs import EnvSpec, Probe
from outplay.errors import ConfigError
from outplay.machine import count_cpus, has_bfloat16
from outplay.spaces import Leaf

log = logging.getLogger("outplay")

C = TypeVar("C", bound=AlgorithmConfig)

_SLOW_STEP_S = 100e-6  # worker processes pay off for environments with slower steps


def resolved(config: C, env: EnvSpec, probe: Probe, resuming: bool = False) -> C:
    """Resolve `auto` settings that are part of the result. A resumed run keeps the resolved values."""
    if config.num_gpus and not torch.cuda.is_available():
        if (each := config.num_gpus_per_learner) is None:
            raise ConfigError("num_gpus is 1, but torch finds no GPU; set num_gpus: 0")
        raise ConfigError(
            f"num_gpus_per_learner is {each:g}, which sets num_gpus: 1, but torch finds no GPU; leave out both "
            "settings, or set both to 0"
        )
    if config.fire_on_reset and not env.is_atari:
        raise ConfigError("fire_on_reset is only for ALE/… games with atari_preprocessing")
    config = _with_groups(config, resuming)
    if config.normalize_observations == "auto":
        is_taken = config.preprocessor is not None or config.model.sparse_inputs
        is_unscaled = not is_taken and any(map(has_no_bounds, probe.leaves))
        config = config.model_copy(update={"normalize_observations": is_unscaled})
    has_images = any(leaf.is_image for leaf in probe.leaves)
    if config.model.precision == "auto":
        # Values of discrete actions differ by little, compared to what bfloat16 rounds off: these stay in float32.
        is_suitable = config.suits_bfloat16 and isinstance(probe.action_space, Box) and not has_images
        is_low = is_suitable and not resuming and not config.num_gpus and has_bfloat16()
        model = config.model.model_copy(update={"precision": "bfloat16" if is_low else "float32"})
        config = config.model_copy(update={"model": model})
    workers = num_workers(config, probe)
    if config.learner_threads == "auto":
        cores = max(1, count_cpus() // config.num_learners)
        config = config.model_copy(update={"learner_threads": cores if has_images else 1})
    if config.act_on_gpu == "auto":
        config = config.model_copy(update={"act_on_gpu": bool(config.num_gpus) and has_images and not workers})
    elif config.act_on_gpu and (workers or not config.num_gpus):  # a run may be resumed on another machine
        log.warning("act_on_gpu is true, which needs num_gpus: 1 and num_workers: 0; acting on the CPU")
        config = config.model_copy(update={"act_on_gpu": False})
    if config.num_envs_per_worker is not None:
        log.warning(
            "num_envs_per_worker is set, so the result of this run depends on num_workers; with num_envs instead, it "
            "would not"
        )
    return config


def has_no_bounds(leaf: Leaf) -> bool:
    """Whether an observation is a vector of floats of unknown scale: the space has no bound for any of its numbers.

    >>> has_no_bounds(Leaf((), Box(-np.inf, np.inf, (17,))))
    True
    """
    space = leaf.space
    if not isinstance(space, Box) or not np.issubdtype(leaf.dtype, np.floating):
        return False
    return not (np.isfinite(space.low).any() or np.isfinite(space.high).any())


def _with_groups(config: C, resuming: bool) -> C:
    """Resolve the number of EnvGroups and environments. Each worker needs at least one EnvGroup.

    A resumed run keeps its EnvGroups, since they are part of the result.
    """
    workers = 0 if config.num_workers == "auto" else int(config.num_workers)
    envs, groups = config.total_envs, config.num_groups
    usual = config.model_copy(update={"num_workers": 0}).num_groups
    if not resuming:
        groups = max(groups, min(workers, envs))
    if groups > usual and not config.is_async:
        log.warning(
            "num_workers is %d: the environments are split into %d EnvGroups, not %d (num_env_groups)",
            workers, groups, usual,
        )  # fmt: skip
    update = {"num_env_groups": groups}
    if envs == workers and config.num_envs_per_worker is None and envs > config.num_envs:
        log.warning("num_workers is %d: there are %d environments, not %d (num_envs)", workers, envs, config.num_envs)
        update["num_envs"] = envs
    return config.model_copy(update=update)


def num_workers(config: AlgorithmConfig, probe: Probe) -> int:
    """The number of worker processes. `auto`: one per core for slow environments and for `async`, otherwise 0."""
    if config.num_workers != "auto":
        return int(config.num_workers)
    cpus = count_cpus()
    if config.is_async:
        return min(cpus, config.num_groups)
    is_slow = not probe.is_native and probe.pace_seconds > _SLOW_STEP_S
    return min(cpus, config.num_groups) if is_slow and cpus > 1 else 0
