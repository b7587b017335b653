"""ASHA: asynchronous successive halving (Li et al. 2020, https://arxiv.org/abs/1810.05934)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune.schedulers.base import CONTINUE, STOP, Action, Decisions, Scheduler
from outplay.tune.schedulers.measure import Measure, check
from outplay.tune.trial import Metrics, Trial


class ASHAScheduler(Scheduler):
    """Stops a trial at a rung unless its score is among the best 1/η of those that reached this rung before it.

    The rungs are at the times r, rη, rη², … with r = `grace_period` and η = `reduction_factor`. Of the n trials at a
    rung, the newest included, the best ⌈n/η⌉ pass. No trial waits for another one.

    >>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1)}, metric="score", mode="max", num_samples=100,
    ...          scheduler=ASHAScheduler(max_t=81, grace_period=1, reduction_factor=3))

    `time_attr`: the metric that is the time. `max_t`: trials end at this time, unless `stop_last_trials` is false.
    `brackets`: bracket s has no rungs before rη^s. Trials are assigned to brackets at random, more of them to those
    with more rungs.
    """

    measure: Measure

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        who = type(self).__name__
        self.measure = Measure(who, time_attr, metric, mode)
        check(who, "grace_period", grace_period, above=0)
        check(who, "max_t", max_t, least=grace_period)
        check(who, "reduction_factor", reduction_factor, above=1)
        check(who, "brackets", brackets, least=1)
        self.max_t, self.eta, self.stop_last_trials = max_t, reduction_factor, stop_last_trials
        milestones = _milestones(grace_period, max_t, reduction_factor)
        if brackets > len(milestones) + 1:
            raise ConfigError(f"{who}: brackets must be at most {len(milestones) + 1} with this max_t, not {brackets}")
        self._brackets = [[_Rung(time) for time in milestones[s:]] for s in range(int(brackets))]
        self._next: dict[str, int] = {}  # by trial: the first rung that it has not reached
        self._bracket: dict[str, int] = {}

    def on_add(self, trial: Trial) -> None:
        weights = np.exp([len(rungs) - len(self._brackets[0]) for rungs in self._brackets])
        rng = stream(self.seed, "asha", trial.index)
        self._bracket[trial.id] = int(rng.choice(len(weights), p=weights / weights.sum()))
        self._next[trial.id] = 0

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        time, score = self.measure.time(trial, result), self.measure.score(trial, result)
        if time >= self.max_t and self.stop_last_trials:
            return {trial.id: STOP}
        return {trial.id: self._at_rungs(trial.id, time, score)}

    def _at_rungs(self, trial_id: str, time: float, score: float) -> Action:
        rungs = self._brackets[self._bracket[trial_id]]
        reached = sum(rung.time <= time for rung in rungs)
        if reached <= self._next[trial_id]:
            return CONTINUE
        # A result may skip rungs. Its score counts at the last one only: it would be unfair to others at earlier ones.
        self._next[trial_id] = reached
        return CONTINUE if rungs[reached - 1].passes(trial_id, score, self.eta) else STOP

    def status(self) -> dict[str, Any]:
        return {
            f"bracket {s}": {f"{rung.time:g}": len(rung.scores) for rung in rungs}
            for s, rungs in enumerate(self._brackets)
        }


AsyncHyperBandScheduler = ASHAScheduler


class _Rung:
    def __init__(self, time: float) -> None:
        self.time = time
        self.scores: dict[str, float] = {}

    def passes(self, trial_id: str, score: float, eta: float) -> bool:
        self.scores[trial_id] = score
        best = sorted(self.scores.values(), reverse=True)
        return score >= best[math.ceil(len(best) / eta) - 1]


def _milestones(first: float, max_t: float, eta: float) -> list[float]:
    """The rungs before `max_t`. At `max_t` itself trials end, so there is nothing to compare."""
    times: list[float] = []
    while (time := first * eta ** len(times)) < max_t:
        times.append(time)
    return times
