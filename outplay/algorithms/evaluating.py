"""Evaluation of an Algorithm's policy, or of a checkpoint's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.algorithms import saving, setup
from outplay.collect import EpisodeProgress, Evaluator
from outplay.config import AlgorithmConfig
from outplay.errors import ConfigError
from outplay.runs.checkpoint import read_checkpoint, use_checkpoint

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm


def evaluate(
    algorithm: Algorithm, checkpoint: str | Path | None, episodes: int | None, progress: EpisodeProgress | None
) -> dict[str, Any]:
    """Play evaluation episodes: see `Algorithm.evaluate`."""
    duration, unit = _length(algorithm.config, checkpoint, episodes)
    algorithm._drain()
    policy = algorithm.policy
    if checkpoint is not None:
        saved = use_checkpoint(checkpoint, read_checkpoint)
        saving.check_fits(algorithm, saved.state)
        policy = algorithm._policy_spec.make()
        saving.load_policy(policy, saving.upgraded(saved, policy))
    if algorithm._evaluator is None:
        spec = setup.rollout_spec(algorithm.config, algorithm.env_spec, algorithm._policy_spec)
        num_workers = algorithm.config.evaluation_num_workers  # these processes have no GPU
        algorithm._evaluator = Evaluator(replace(spec, device="cpu") if num_workers else spec, num_workers)
    with algorithm.timers("evaluate"):
        metrics = algorithm._evaluator.evaluate(
            policy.snapshot(algorithm._evaluator.next_version()),
            algorithm.iteration,
            duration,
            unit,
            algorithm.config.evaluation_explore,
            algorithm.task,
            algorithm.longest_evaluation_episode,
            progress,
        )
    if algorithm.config.curriculum is not None:
        metrics["curriculum_level"] = algorithm.level.number
    return metrics


def _length(config: AlgorithmConfig, checkpoint: Any, episodes: Any) -> tuple[int, str]:
    """(duration, unit) of an evaluation. Raises ConfigError if the arguments of `evaluate` are wrong."""
    if isinstance(checkpoint, int):
        raise ConfigError(
            f"evaluate({checkpoint}): the first argument is a checkpoint; for {checkpoint} episodes, use "
            f"evaluate(episodes={checkpoint})"
        )
    if episodes is None:
        return config.evaluation_duration, config.evaluation_duration_unit
    if not isinstance(episodes, int) or isinstance(episodes, bool) or episodes < 1:
        raise ConfigError(f"evaluate(): episodes must be an integer of at least 1, not {episodes!r}")
    return episodes, "episodes"
