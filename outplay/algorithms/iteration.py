"""One iteration of training: collect, learn. Synchronous or asynchronous, the same for all algorithms."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outplay.collect import AsyncCollector
from outplay.config import AsyncConfig
from outplay.fragments import Fragment, join

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

_UPDATES_AT_A_TIME = 8  # asynchronous: updates before new Fragments are looked for


def synchronous(algorithm: Algorithm) -> dict[str, float]:
    """Collect a Batch with the present policy, learn from it. Returns the learner's metrics."""
    with algorithm.timers("collect"):
        fragments = collect(algorithm)
    with algorithm.timers("join"):
        batch = join(fragments)
    before = algorithm.timesteps
    algorithm.count(fragments)
    with algorithm.timers("learn"), algorithm.learner_threads():
        metrics = algorithm.learner.update(batch, before, algorithm.iteration)
        if algorithm.config.normalize_observations:
            algorithm.learner.update_normalisers(batch)
    return metrics


def asynchronous(algorithm: Algorithm) -> dict[str, float]:
    """Take Fragments as they arrive and learn as much as is due, until there are enough steps."""
    config, learner, collector = algorithm.config, algorithm.learner, algorithm.collector
    assert isinstance(collector, AsyncCollector)
    assert isinstance(config, AsyncConfig)
    enough = algorithm.timesteps + config.least_steps
    while algorithm.timesteps < enough:
        if collector.is_stale(learner.updates, algorithm.timesteps, config.weights_interval, config.least_steps):
            collector.publish(algorithm.snapshot(), learner.updates, algorithm.timesteps)
        is_behind = learner.due >= config.most_updates_behind
        with algorithm.timers("wait"):
            fragments = collector.collect(None if is_behind else collector.newest, wait=not learner.due)
        with algorithm.timers("take"):
            _take(algorithm, collector, fragments)
        with algorithm.timers("learn"), algorithm.learner_threads():
            learner.learn(min(learner.due, _UPDATES_AT_A_TIME))
    return {**learner.metrics(), **collector.lag_metrics()}


def drain(algorithm: Algorithm, collector: AsyncCollector) -> None:
    """Finish all that is under way: take every requested Fragment, make every update that is due."""
    _take(algorithm, collector, collector.drain())
    with algorithm.learner_threads():
        algorithm.learner.learn(algorithm.learner.due)


def _take(algorithm: Algorithm, collector: AsyncCollector, fragments: list[Fragment]) -> None:
    if not fragments:
        return
    check_rebuilt(algorithm, fragments)
    collector.record_lag(fragments, algorithm.learner.updates)
    algorithm.count(fragments)
    algorithm.learner.take(fragments, algorithm.timesteps)
    if algorithm.config.normalize_observations:
        algorithm.learner.update_normalisers(join(fragments))


def collect(algorithm: Algorithm, at_random: bool = False) -> list[Fragment]:
    """The Fragments of one iteration, all from the present policy, or from random actions."""
    weights = algorithm.snapshot(at_random)
    fragments: list[Fragment] = []
    steps = 0
    while steps < algorithm.config.least_steps:
        collected = algorithm.collector.collect(weights)
        check_rebuilt(algorithm, collected)
        fragments += collected
        steps += sum(fragment.steps for fragment in collected)
        for stage in ("act", "step"):
            # Workers run in parallel: the iteration waits for the mean of their times.
            spent = sum(fragment.seconds[stage] for fragment in collected)
            algorithm.timers.add(f"collect/{stage}", spent / max(1, algorithm.collector.num_workers))
    return fragments


def fit_normalisers(algorithm: Algorithm) -> None:
    """Before the first iteration, which is to act and learn with them: to a batch of random actions.

    That batch is not learned from and not counted; its episodes continue in the first iteration.
    """
    with algorithm.timers("collect"):
        batch = join(collect(algorithm, at_random=True))
    with algorithm.timers("learn"), algorithm.learner_threads():
        algorithm.learner.update_normalisers(batch)


def check_rebuilt(algorithm: Algorithm, fragments: list[Fragment]) -> None:
    """Say if environments could not be restored after a worker was replaced, or a run resumed."""
    wrong = sum(fragment.wrongly_rebuilt for fragment in fragments)
    if wrong:
        algorithm.inexact = "environments could not be rebuilt as they were"
        log.warning(
            "%d environments could not be rebuilt as they were: an episode did not repeat itself, or was too long; "
            "the run goes on, but not exactly as it would have", wrong,
        )  # fmt: skip
