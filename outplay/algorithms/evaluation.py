"""Evaluation: episodes on seeds of their own, here or in worker processes, with the same result."""

from __future__ import annotations

import os
from typing import Any

from outplay.engine import api as engine
from outplay.engine.remote import ActorHandle, remote
from outplay.metrics import episode_figures
from outplay.policies import Weights
from outplay.rollout import EpisodeResults, RolloutSpec, RolloutWorker

# Episodes are played side by side in groups of this size, however many workers there are: the result is the same.
_SIDE_BY_SIDE = 10


class Evaluator:
    def __init__(self, spec: RolloutSpec, num_workers: int) -> None:
        self._version = 0
        self.local: RolloutWorker | None = None
        self.remote: list[ActorHandle] = []
        if num_workers == 0:
            self.local = RolloutWorker(spec, {}, num_threads=os.cpu_count() or 1)
        else:
            worker = remote(RolloutWorker)
            self.remote = [worker.remote(spec, {}) for _ in range(num_workers)]

    def next_version(self) -> int:
        """Workers skip Weights that they have; those of an evaluation are always new."""
        self._version += 1
        return self._version

    def evaluate(self, weights: Weights, number: int, duration: int, unit: str, explore: bool) -> dict[str, Any]:
        """Figures over `duration` episodes or timesteps; `number` tells this evaluation's seeds from others'."""
        if unit == "episodes":
            sizes = [min(_SIDE_BY_SIDE, duration - begun) for begun in range(0, duration, _SIDE_BY_SIDE)]
            results = self._play(weights, [((number, i), size, None) for i, size in enumerate(sizes)], explore)
        else:
            results, steps = [], 0
            while steps < duration:
                results += self._play(weights, [((number, len(results)), 1, duration - steps)], explore)
                steps += results[-1].steps
        # An episode that was cut off counts only if it is all there is.
        whole = [result for result in results if result.finished] or results
        returns = [value for result in whole for value in result.returns]
        lengths = [length for result in whole for length in result.lengths]
        return {
            **episode_figures(returns, lengths),
            "episodes": len(returns),
            "timesteps": sum(r.steps for r in results),
        }

    def _play(
        self, weights: Weights, jobs: list[tuple[tuple[int, ...], int, int | None]], explore: bool
    ) -> list[EpisodeResults]:
        if self.local is not None:
            return [self.local.play(weights, *job, explore) for job in jobs]
        stored = engine.put(weights)
        calls = [self.remote[i % len(self.remote)].play.remote(stored, *job, explore) for i, job in enumerate(jobs)]
        return engine.get(calls)  # type: ignore[no-any-return]

    def stop(self) -> None:
        if self.local is not None:
            self.local.close()
        if engine.is_initialized():
            for worker in self.remote:
                engine.kill(worker)
        self.remote = []
