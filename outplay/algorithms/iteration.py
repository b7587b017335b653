"""One iteration of training: collect, learn, evaluate. Synchronous or asynchronous, the same for all algorithms."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from outplay.algorithms import curriculum, evaluating, experience
from outplay.algorithms.atomic import atomically
from outplay.collect import AsyncCollector
from outplay.config import AsyncConfig
from outplay.fragments import Fragment, join
from outplay.metrics import Result

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

_UPDATES_PER_POLL = 8  # asynchronous: updates between two checks for new Fragments


def iterate(algorithm: Algorithm) -> Result:
    """One iteration, with the evaluation and the curriculum if they are due. Returns its result."""
    started, steps_before, seconds_before = time.perf_counter(), algorithm.timesteps, algorithm.seconds
    config = algorithm.config
    if config.normalize_observations and algorithm.learner.collects and not algorithm.learner.is_normaliser_fitted:
        fit_normalisers(algorithm)
    algorithm.learner.start_iteration()
    metrics = from_data(algorithm) if not algorithm.learner.collects else from_experience(algorithm)
    algorithm.iteration += 1
    evaluation = evaluating.after_iteration(algorithm)
    seconds = time.perf_counter() - started
    algorithm.seconds = seconds_before + seconds
    returns, algorithm._returns = algorithm._returns, []
    lengths, algorithm._lengths = algorithm._lengths, []
    result: Result = {
        "training_iteration": algorithm.iteration,
        "timesteps_total": algorithm.timesteps,
        **algorithm.episodes.metrics(),  # type: ignore[typeddict-item] # mypy: it might hold an "evaluation"
        "episodes_this_iter": len(returns),
        "episode_returns": returns,
        "episode_lengths": lengths,
        "time_this_iter_s": seconds,
        "time_total_s": algorithm.seconds,
        "env_steps_per_s": (algorithm.timesteps - steps_before) / seconds,
        "learner": metrics,
        "stages_s": algorithm.timers.take(),
    }
    if config.curriculum is not None:
        result["curriculum_level"] = algorithm.level.number
    if evaluation is not None:
        result["evaluation"] = evaluation
    for key in algorithm.episodes.missing_infos():
        log.warning(
            "info_metrics: the info of environment %r has no %r at the end of its episodes so far; check the key",
            algorithm.env_spec.name, key,
        )  # fmt: skip
    curriculum.update(algorithm, result)
    return result


def from_data(algorithm: Algorithm) -> dict[str, float]:
    """Learn from recorded data; its rows count as timesteps. Returns the learner's metrics."""
    with algorithm.timers("learn"), algorithm.learner_threads():
        rows, metrics = algorithm.learner.on_all("update_from_data", algorithm.timesteps)
    algorithm.timesteps += rows
    return dict(metrics)


def from_experience(algorithm: Algorithm) -> dict[str, float]:
    """Collect experience and learn from it. Returns the learner's metrics."""
    return asynchronous(algorithm) if algorithm.config.is_async else synchronous(algorithm)


def synchronous(algorithm: Algorithm) -> dict[str, float]:
    """Collect a Batch with the current policy and learn from it. Returns the learner's metrics."""
    with algorithm.timers("collect"):
        fragments = collect(algorithm)
    with algorithm.timers("join"):
        batch = join(fragments)
    before = algorithm.timesteps
    count(algorithm, fragments)
    with algorithm.timers("learn"), algorithm.learner_threads():
        metrics = algorithm.learner.update_on_all(batch, before, algorithm.iteration)
        if algorithm.config.normalize_observations:
            algorithm.learner.update_normalisers(batch)
    return metrics


def count(algorithm: Algorithm, fragments: list[Fragment]) -> None:
    """Count the steps and finished episodes of Fragments, and record them if the trainer has an `output`."""
    config = algorithm.config
    experience.record(algorithm, fragments)
    for fragment in fragments:
        algorithm.timesteps += fragment.steps
        of_level = curriculum.of_level(config, algorithm.task, fragment)
        infos = fragment.episode_infos[of_level] if config.info_metrics else None
        algorithm.episodes.add(fragment.episode_returns[of_level], fragment.episode_lengths[of_level], infos)
        algorithm.episodes.total += of_level.count(False)
        algorithm._returns += fragment.episode_returns.tolist()
        algorithm._lengths += fragment.episode_lengths.tolist()


def asynchronous(algorithm: Algorithm) -> dict[str, float]:
    """Accept Fragments as they arrive and make due updates, until `least_steps` are collected. Returns metrics."""
    config, learner, collector = algorithm.config, algorithm.learner, algorithm.collector
    assert isinstance(collector, AsyncCollector)
    assert isinstance(config, AsyncConfig)
    target = algorithm.timesteps + config.least_steps
    while algorithm.timesteps < target:
        if collector.is_stale(learner.updates, algorithm.timesteps, config.weights_interval, config.least_steps):
            collector.publish(algorithm.snapshot(), learner.updates, algorithm.timesteps)
        is_behind = learner.due >= config.most_updates_behind
        with algorithm.timers("wait"):
            fragments = collector.collect(None if is_behind else collector.newest, wait=not learner.due)
        with algorithm.timers("take"):
            _take(algorithm, collector, fragments)
        with algorithm.timers("learn"), algorithm.learner_threads():
            learner.learn(min(learner.due, config.weights_interval, _UPDATES_PER_POLL))
    lag = collector.lag_metrics()  # of the Fragments that were taken
    return {**({} if learner.measures_lag else lag), **learner.metrics()}


def drain(algorithm: Algorithm) -> None:
    """Asynchronous: accept all pending Fragments and make all due updates. Synchronous: nothing is pending."""
    collector = algorithm.training_workers.running
    if isinstance(collector, AsyncCollector):
        started = time.perf_counter()
        atomically(algorithm, "draining", lambda: _drain(algorithm, collector))
        algorithm.seconds += time.perf_counter() - started


def _drain(algorithm: Algorithm, collector: AsyncCollector) -> None:
    _take(algorithm, collector, collector.drain())
    with algorithm.learner_threads():
        algorithm.learner.finish()


def _take(algorithm: Algorithm, collector: AsyncCollector, fragments: list[Fragment]) -> None:
    if not fragments:
        return
    check_rebuilt(algorithm, fragments)
    collector.record_lag(fragments, algorithm.learner.updates)
    count(algorithm, fragments)
    algorithm.learner.take(fragments, algorithm.timesteps)
    if algorithm.config.normalize_observations:
        algorithm.learner.update_normalisers(join(fragments))


def collect(algorithm: Algorithm, at_random: bool = False) -> list[Fragment]:
    """Collect the Fragments of one iteration, all with the current policy, or with random actions."""
    weights = algorithm.snapshot(at_random)
    fragments: list[Fragment] = []
    steps = 0
    while steps < algorithm.config.least_steps:
        collected = algorithm.collector.collect(weights)
        check_rebuilt(algorithm, collected)
        fragments += collected
        steps += sum(fragment.steps for fragment in collected)
        for stage in ("act", "step"):
            # Workers run in parallel: their mean is the time that the iteration waits.
            spent = sum(fragment.seconds[stage] for fragment in collected)
            algorithm.timers.add(f"collect/{stage}", spent / max(1, algorithm.collector.num_workers))
    return fragments


def fit_normalisers(algorithm: Algorithm) -> None:
    """Fit the normalisers to a batch of random actions, before the first iteration uses them.

    The batch is neither learned from nor counted. Its episodes continue in the first iteration.
    """
    with algorithm.timers("collect"):
        batch = join(collect(algorithm, at_random=True))
    with algorithm.timers("learn"), algorithm.learner_threads():
        algorithm.learner.update_normalisers(batch)


def check_rebuilt(algorithm: Algorithm, fragments: list[Fragment]) -> None:
    """Warn if environments could not be rebuilt exactly, after a worker crash or a resume."""
    wrong = sum(fragment.wrongly_rebuilt for fragment in fragments)
    if wrong:
        algorithm.inexact = "environments could not be rebuilt exactly"
        log.warning(
            "%d environments could not be rebuilt exactly: an episode was not deterministic, or too long; the run "
            "continues, but its result is not exactly reproducible", wrong,
        )  # fmt: skip
