"""Evaluation: episodes with separate seeds, in the main process or in worker processes, with the same result."""

from __future__ import annotations

from typing import Any

from outplay.collect.episodes import EpisodeLimits, EpisodeProgress, EpisodeResults
from outplay.collect.pool import WorkerPool
from outplay.collect.worker import RolloutSpec
from outplay.metrics import episode_metrics
from outplay.policies import Weights

# Episodes per parallel batch. Independent of the number of workers, so the result is, too.
_PARALLEL_EPISODES = 10


class Evaluator:
    """Plays episodes with given Weights. Workers are stateless: a replacement repeats the jobs of a crashed worker."""

    def __init__(self, spec: RolloutSpec, num_workers: int) -> None:
        self._pool = WorkerPool(num_workers, lambda _: (spec, {}), spec.max_worker_restarts)
        self._version = 0

    def next_version(self) -> int:
        """A new version for the Weights of an evaluation. Workers do not load a version that they have already."""
        self._version += 1
        return self._version

    def evaluate(
        self,
        weights: Weights,
        number: int,
        duration: int,
        unit: str,
        explore: bool,
        task: Any = None,
        longest: int | None = None,
        progress: EpisodeProgress | None = None,
    ) -> dict[str, Any]:
        """Metrics over `duration` episodes or timesteps (`unit`). `number` selects the seeds of this evaluation.

        Episodes are truncated after `longest` steps. The metrics include the number of truncated episodes. `progress`
        is updated while the main process evaluates; worker processes do not report it.
        """
        results: list[EpisodeResults] = []
        more = () if self._pool.local is None else (progress,)
        if unit == "episodes":
            sizes = [min(_PARALLEL_EPISODES, duration - begun) for begun in range(0, duration, _PARALLEL_EPISODES)]
            limits = EpisodeLimits(episode_steps=longest)
            jobs = [(weights, (number, i), size, explore, limits, task, *more) for i, size in enumerate(sizes)]
            results = self._pool.call_each("play", jobs)
        else:
            while (left := duration - sum(result.steps for result in results)) > 0:
                limits = EpisodeLimits(total_steps=left, episode_steps=longest)
                job = (weights, (number, len(results)), 1, explore, limits, task, *more)
                results += self._pool.call_each("play", [job])
        whole = [result for result in results if result.finished]
        returns = [value for result in whole for value in result.returns]
        lengths = [length for result in whole for length in result.lengths]
        steps = sum(result.steps for result in results)
        figures = evaluation_metrics(returns, lengths, steps, sum(result.truncated for result in whole))
        if not whole:  # no episode ended within the timesteps: report the return so far
            figures["cut_off"] = results[0].returns[0]
        return figures

    def stop(self) -> None:
        self._pool.stop()


def evaluation_metrics(returns: list[float], lengths: list[int], steps: int, truncated: int) -> dict[str, Any]:
    """Metrics of evaluation episodes; `truncated` of them reached the limit of steps."""
    figures = {**episode_metrics(returns, lengths), "episodes": len(returns), "timesteps": steps}
    return {**figures, "episodes_truncated": truncated} if truncated else figures
