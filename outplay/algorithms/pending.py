"""The evaluation beside training: it is started at one iteration, and reported at a later one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outplay.algorithms import setup
from outplay.collect import EvaluationJob, Evaluator
from outplay.collect.pool import Calls

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

# The attributes of an Algorithm that belong to its evaluations, and not to what it trains.
STATE = ("pending_evaluation", "episodes_since_video")


@dataclass
class PendingEvaluation:
    """An evaluation beside training: of the weights of `iteration`, to be reported at a later iteration.

    The job is kept until its metrics are known: if the evaluation workers are stopped, new ones repeat it.
    """

    iteration: int
    job: EvaluationJob | None = None
    calls: Calls | None = None  # None: the workers were stopped
    metrics: dict[str, Any] | None = None  # None: not known yet
    extra: dict[str, int] = field(default_factory=dict)  # metrics that are known before: the curriculum's level

    def report(self) -> dict[str, Any]:
        """The metrics, with the iteration that they belong to."""
        assert self.metrics is not None
        return {**self.metrics, "iteration": self.iteration}


def evaluator_of(algorithm: Algorithm) -> Evaluator:
    """The evaluation workers, which start on first use."""
    if algorithm._evaluator is None:
        spec = setup.rollout_spec(algorithm.config, algorithm.evaluation_env.spec, algorithm.policy_spec)
        num_workers = algorithm.config.evaluation_num_workers  # these processes have no GPU
        algorithm._evaluator = Evaluator(replace(spec, device="cpu") if num_workers else spec, num_workers)
    return algorithm._evaluator


def stop_evaluator(algorithm: Algorithm) -> None:
    """Stop the evaluation workers. If an evaluation is pending, new ones repeat it."""
    evaluator, algorithm._evaluator = algorithm._evaluator, None
    if algorithm.pending_evaluation is not None:
        algorithm.pending_evaluation.calls = None
    if evaluator is not None:
        evaluator.stop()


def finish(algorithm: Algorithm) -> dict[str, Any] | None:
    """Wait for the evaluation beside training. Returns its metrics, and None if there is none."""
    pending = algorithm.pending_evaluation
    if pending is None:
        return None
    if pending.metrics is None:
        assert pending.job is not None
        try:
            with algorithm.timers("evaluate"):
                evaluator = evaluator_of(algorithm)
                if pending.calls is None:
                    pending.calls = evaluator.begin(pending.job)
                pending.metrics = {**evaluator.end(pending.calls), **pending.extra}
        except BaseException:
            stop_evaluator(algorithm)  # what its workers still do is unknown
            raise
        pending.job = pending.calls = None
    return pending.report()


def finish_if_possible(algorithm: Algorithm) -> dict[str, Any] | None:
    """`finish`, for a checkpoint and the end of a run, which an evaluation that fails must not prevent."""
    try:
        return finish(algorithm)
    except Exception as error:  # noqa: BLE001 - whatever it is, what was trained must be saved
        assert algorithm.pending_evaluation is not None
        log.warning("the evaluation of iteration %d failed: %s", algorithm.pending_evaluation.iteration, error)
        return None


def state(algorithm: Algorithm) -> dict[str, Any] | None:
    """The evaluation beside training, for a checkpoint."""
    if finish_if_possible(algorithm) is None or (pending := algorithm.pending_evaluation) is None:
        return None
    return {"iteration": pending.iteration, "metrics": pending.metrics}


def load(algorithm: Algorithm, saved: dict[str, Any] | None) -> None:
    """Restore `state`."""
    pending = None if saved is None else PendingEvaluation(int(saved["iteration"]), metrics=dict(saved["metrics"]))
    algorithm.pending_evaluation = pending
