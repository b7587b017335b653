"""Evaluation: episodes with separate seeds, in the main process or in worker processes, with the same result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outplay.collect.episodes import EpisodeLimits, EpisodeProgress, EpisodeResults
from outplay.collect.pool import Calls, WorkerPool
from outplay.collect.worker import RolloutSpec
from outplay.metrics import episode_metrics, info_means
from outplay.policies import Weights

# Episodes per parallel batch. Independent of the number of workers, so the result is, too.
_PARALLEL_EPISODES = 10

# Versions of the Weights of evaluations. Workers do not load a version that they have already, and Weights may be
# evaluated by another Evaluator than the one they were made for: so no two Weights of a process have the same version.
_versions: Iterator[int] = itertools.count(1)


def next_version() -> int:
    """A new version for the Weights of an evaluation."""
    return next(_versions)


@dataclass(frozen=True)
class EvaluationJob:
    """What to evaluate, and for how long."""

    weights: Weights
    number: int  # selects the seeds of this evaluation
    duration: int
    unit: str  # of the duration: episodes or timesteps
    explore: bool
    task: Any = None
    longest: int | None = None  # episodes are truncated after this many steps

    def calls(self) -> tuple[str, list[tuple[Any, ...]]]:
        """The method of a RolloutWorker, and the arguments of each call."""
        if self.unit == "timesteps":  # each episode has the steps that are left: one worker plays them all
            return "play_timesteps", [
                (self.weights, self.number, self.duration, self.explore, self.longest, self.task),
            ]
        sizes = [min(_PARALLEL_EPISODES, self.duration - n) for n in range(0, self.duration, _PARALLEL_EPISODES)]
        limits = EpisodeLimits(episode_steps=self.longest)
        return "play", [
            (self.weights, (self.number, i), size, self.explore, limits, self.task) for i, size in enumerate(sizes)
        ]


class Evaluator:
    """Plays episodes with given Weights. Workers are stateless: a replacement repeats the jobs of a crashed worker."""

    def __init__(self, spec: RolloutSpec, num_workers: int) -> None:
        self._info_metrics = spec.info_metrics
        self._pool = WorkerPool(num_workers, lambda _: (spec, {}), spec.max_worker_restarts)

    def evaluate(self, job: EvaluationJob, progress: EpisodeProgress | None = None) -> dict[str, Any]:
        """Play the episodes of a job. Returns metrics, with the number of truncated episodes.

        `progress` is updated while the main process evaluates; worker processes do not report it.
        """
        method, calls = job.calls()
        more = () if self._pool.local is None else (progress,)
        return _metrics(self._pool.call_each(method, [(*call, *more) for call in calls]), self._info_metrics)

    def begin(self, job: EvaluationJob) -> Calls:
        """Start a job in the worker processes, and return at once."""
        return self._pool.begin_each(*job.calls())

    def end(self, calls: Calls) -> dict[str, Any]:
        """Wait for a job. Returns the same metrics as `evaluate`."""
        return _metrics(self._pool.end_each(calls), self._info_metrics)

    def stop(self) -> None:
        self._pool.stop()


def _metrics(played: list[Any], info_metrics: Sequence[str]) -> dict[str, Any]:
    """Metrics of what the calls of a job returned."""
    results: list[EpisodeResults] = []
    for part in played:
        results += part if isinstance(part, list) else [part]
    whole = [result for result in results if result.finished]
    together = EpisodeProgress(steps=sum(result.steps for result in results))
    for result in whole:
        together.add(0, result.returns, result.lengths, result.truncated, result.infos)
    figures = evaluation_metrics(together, info_metrics)
    if not whole:  # no episode ended within the timesteps: report the return so far
        figures["cut_off"] = results[0].returns[0]
    return figures


def evaluation_metrics(played: EpisodeProgress, info_metrics: Sequence[str] = ()) -> dict[str, Any]:
    """Metrics of the evaluation episodes that have ended."""
    figures: dict[str, Any] = episode_metrics(played.returns, played.lengths)
    figures |= {"episodes": len(played.returns), "timesteps": played.steps}
    if played.truncated:
        figures["episodes_truncated"] = played.truncated
    if info_metrics:
        columns = zip(*played.infos, strict=True) if played.infos else [()] * len(info_metrics)
        figures["info"] = info_means(dict(zip(info_metrics, columns, strict=True)))
    return figures
