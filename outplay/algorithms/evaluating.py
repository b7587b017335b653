"""Evaluation of an Algorithm's policy, or of a checkpoint's: at once, or beside training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.algorithms import saving, watching
from outplay.algorithms.pending import PendingEvaluation, evaluator_of, finish
from outplay.collect import EpisodeProgress, EvaluationJob, next_version
from outplay.config import AlgorithmConfig
from outplay.errors import ConfigError
from outplay.policies import Policy
from outplay.runs.checkpoint import read_checkpoint, use_checkpoint

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

_ATARI_EVALUATION_FRAMES = 18_000  # 5 minutes of play
_EVALUATION_STEPS = 100_000  # of an episode of any other environment, which may never end


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
        policy = algorithm.policy_spec.make()
        saving.load_policy(policy, saving.upgraded(saved, policy))
    finish(algorithm)  # the workers play one job at a time
    with algorithm.timers("evaluate"):
        metrics = evaluator_of(algorithm).evaluate(_job(algorithm, policy, duration, unit), progress)
    return {**metrics, **_level(algorithm)}


def after_iteration(algorithm: Algorithm) -> dict[str, Any] | None:
    """Evaluate, if this iteration is followed by an evaluation. Returns the metrics that its result reports, if any.

    Beside training, these are the metrics of the evaluation before: it had `evaluation_interval` iterations of time.
    """
    config = algorithm.config
    if not config.evaluation_interval or algorithm.iteration % config.evaluation_interval:
        return None
    if config.evaluation_parallel_to_training:
        evaluation = finish(algorithm)
        job = _job(algorithm, algorithm.policy, config.evaluation_duration, config.evaluation_duration_unit)
        algorithm.pending_evaluation = PendingEvaluation(
            algorithm.iteration, job, evaluator_of(algorithm).begin(job), extra=_level(algorithm)
        )
    else:
        algorithm.pending_evaluation = None  # of a run that was resumed without evaluation_parallel_to_training
        evaluation = algorithm.evaluate()
    watching.after_evaluation(algorithm, 0 if evaluation is None else evaluation["episodes"])
    return evaluation


def _level(algorithm: Algorithm) -> dict[str, int]:
    """The level of the curriculum, where evaluations are on it: an environment of their own has no tasks."""
    config = algorithm.config
    has_level = config.curriculum is not None and config.evaluation_config.env is None
    return {"curriculum_level": algorithm.level.number} if has_level else {}


def longest_episode(algorithm: Algorithm) -> int | None:
    """Maximum steps of an evaluation episode: `evaluation_max_episode_steps` with `auto` resolved."""
    limit, spec = algorithm.config.evaluation_max_episode_steps, algorithm.evaluation_env.spec
    if limit != "auto":
        return limit
    return _ATARI_EVALUATION_FRAMES // spec.frame_skip if spec.is_atari else _EVALUATION_STEPS


def _job(algorithm: Algorithm, policy: Policy, duration: int, unit: str) -> EvaluationJob:
    return EvaluationJob(
        policy.snapshot(next_version()),
        algorithm.iteration,
        duration,
        unit,
        algorithm.config.evaluation_explore,
        algorithm.evaluation_task,
        algorithm.longest_evaluation_episode,
    )


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
