"""Collecting experience: workers, collectors, evaluation, video."""

from __future__ import annotations

from outplay.collect.asynchronous import AsyncCollector
from outplay.collect.collector import Collector, SyncCollector
from outplay.collect.episodes import EpisodeProgress
from outplay.collect.evaluation import EvaluationJob, Evaluator, next_version
from outplay.collect.health import report
from outplay.collect.worker import RolloutSpec, RolloutWorker, torch_threads

__all__ = [
    "AsyncCollector",
    "Collector",
    "EpisodeProgress",
    "EvaluationJob",
    "Evaluator",
    "RolloutSpec",
    "RolloutWorker",
    "SyncCollector",
    "next_version",
    "report",
    "torch_threads",
]
