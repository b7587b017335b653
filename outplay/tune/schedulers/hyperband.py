"""HyperBand (Li et al. 2018, https://jmlr.org/papers/v18/16-558.html), and its form for BOHB (Falkner et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from outplay.tune.schedulers.base import CONTINUE, NOTHING, PAUSE, STOP, Decision, Decisions, Scheduler
from outplay.tune.schedulers.measure import Measure, check
from outplay.tune.trial import Metrics, Trial


class HyperBandScheduler(Scheduler):
    """Successive halving in brackets, which differ in how many trials they start with and how early they stop them.

    Bracket s starts with n trials. All of them run to its first rung and wait there. The best 1/η continue to the next
    rung, at η times the time, the others stop; and so on to `max_t`. With `max_t=81` and η = `reduction_factor` = 3,
    trials at time:

    | bracket 4 | bracket 3 | bracket 2 | bracket 1 | bracket 0 |
    | --- | --- | --- | --- | --- |
    | 81 at 1 | 27 at 3 | 9 at 9 | 6 at 27 | 5 at 81 |
    | 27 at 3 | 9 at 9 | 3 at 27 | 2 at 81 | |
    | 9 at 9 | 3 at 27 | 1 at 81 | | |
    | 3 at 27 | 1 at 81 | | | |
    | 1 at 81 | | | | |

    New trials go to the last bracket until it is full; bracket 0 is followed by another bracket 4. If there are too few
    trials for a bracket, it halves those that it has.

    >>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1)}, metric="score", mode="max", num_samples=128,
    ...          scheduler=HyperBandScheduler(max_t=81))

    `time_attr`: the metric that is the time. The smallest unit of time that a trial runs is 1. `stop_last_trials`: if
    false, trials that reach `max_t` go on to their own end. Trials are paused, so they need checkpoints.
    """

    measure: Measure

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        who = type(self).__name__
        self.measure = Measure(who, time_attr, metric, mode)
        check(who, "max_t", max_t, least=1)
        check(who, "reduction_factor", reduction_factor, above=1)
        self.max_t, self.eta, self.stop_last_trials = max_t, reduction_factor, stop_last_trials
        self._s_max = _last_power(reduction_factor, max_t)
        self._brackets: list[Bracket] = []
        self._bracket: dict[str, int] = {}  # by trial: its bracket's position in the list

    @property
    def needs_checkpoints(self) -> bool:
        return True

    def wants_checkpoint(self, trial: Trial, result: Metrics) -> bool:
        bracket = self._brackets[self._bracket[trial.id]]
        return not bracket.is_last_rung and self.measure.time(trial, result) >= bracket.milestone

    def on_add(self, trial: Trial) -> None:
        if not self._brackets or not self._brackets[-1].is_open:
            s = self._s_max - len(self._brackets) % (self._s_max + 1)
            self._brackets.append(Bracket(s, self._s_max, self.max_t, self.eta))
        self._brackets[-1].add(trial.id)
        self._bracket[trial.id] = len(self._brackets) - 1

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        time, score = self.measure.time(trial, result), self.measure.score(trial, result)
        bracket = self._brackets[self._bracket[trial.id]]
        if time < bracket.milestone:
            return {trial.id: CONTINUE}
        if bracket.is_last_rung:
            return {trial.id: STOP if self.stop_last_trials else CONTINUE}
        bracket.arrived[trial.id] = score
        return {trial.id: PAUSE, **bracket.halved()} if bracket.is_complete else {trial.id: PAUSE}

    def on_complete(self, trial: Trial, result: Metrics) -> Decisions:
        bracket = self._brackets[self._bracket[trial.id]]
        bracket.remove(trial.id)
        return bracket.halved() if bracket.is_complete else NOTHING

    def choose(self, runnable: Sequence[Trial]) -> Trial | None:
        return min(runnable, key=lambda trial: (self._bracket[trial.id], trial.index), default=None)

    def on_stall(self) -> Decisions:
        decisions: dict[str, Decision] = {}
        for bracket in self._brackets:
            if bracket.arrived:
                decisions |= bracket.halved()
        return decisions

    def status(self) -> dict[str, Any]:
        return {
            f"bracket {bracket.s} ({number})": f"{len(bracket.live)} trials to {bracket.milestone:g}"
            for number, bracket in enumerate(self._brackets)
            if bracket.live
        }


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand for a searcher with a model, together: BOHB.

    The searcher gets each result that reaches a rung with its budget, `result["hyperband_info"]["budget"]`. So it can
    model the scores of the largest budget of which it knows enough. New trials start only if no trial of an earlier
    rung may continue: their values are suggested as late as possible.

    >>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1)}, metric="score", mode="max", num_samples=128,
    ...          scheduler=HyperBandForBOHB(max_t=81), search_alg=TuneBOHB())
    """

    def annotated(self, trial: Trial, result: Metrics) -> Metrics:
        bracket = self._brackets[self._bracket[trial.id]]
        if self.measure.time(trial, result) < bracket.milestone:
            return result
        return {**result, "hyperband_info": {"budget": bracket.milestone}}


class Bracket:
    """Successive halving of one group of trials."""

    def __init__(self, s: int, s_max: int, max_t: float, eta: float) -> None:
        self.s, self.eta = s, eta
        # As in the paper's table 1. Its algorithm 1 rounds later: brackets 3 to 1 would start with 34, 15, 8 trials.
        self.capacity = math.floor((s_max + 1) // (s + 1) * eta**s)
        self.milestones = [max_t if i == s else max(1, math.floor(max_t / eta ** (s - i))) for i in range(s + 1)]
        self.rung = 0
        self.size = 0  # trials that it started with
        self.live: dict[str, None] = {}  # trials that have not ended, in the order in which they came
        self.arrived: dict[str, float] = {}  # those that wait at the rung, with their scores

    @property
    def milestone(self) -> float:
        return self.milestones[self.rung]

    @property
    def is_last_rung(self) -> bool:
        return self.rung == self.s

    @property
    def is_open(self) -> bool:
        return self.rung == 0 and self.size < self.capacity

    @property
    def is_complete(self) -> bool:
        """Whether all trials of the rung are there."""
        return not self.is_open and bool(self.arrived) and len(self.arrived) == len(self.live)

    def sizes(self) -> list[tuple[int, float]]:
        """Trials and time of each rung, if the bracket is full."""
        return [(self._keep(i, self.capacity), time) for i, time in enumerate(self.milestones)]

    def add(self, trial_id: str) -> None:
        self.size += 1
        self.live[trial_id] = None

    def remove(self, trial_id: str) -> None:
        """A trial ended by itself."""
        self.live.pop(trial_id, None)
        self.arrived.pop(trial_id, None)

    def halved(self) -> dict[str, Decision]:
        """The best of those that wait continue to the next rung, the others stop. The bracket is closed from now on."""
        ranked = sorted(self.arrived, key=lambda trial_id: -self.arrived[trial_id])  # stable: the first to come wins
        kept = set(ranked[: self._keep(self.rung + 1, self.size)])
        decisions: dict[str, Decision] = {trial_id: CONTINUE if trial_id in kept else STOP for trial_id in self.arrived}
        self.live = {trial_id: None for trial_id in self.live if trial_id in kept}
        self.arrived = {}
        self.rung += 1
        return decisions

    def _keep(self, rung: int, size: int) -> int:
        return max(1, math.floor(size / self.eta**rung + 1e-9))


def _last_power(base: float, limit: float) -> int:
    """The largest s with base^s ≤ limit. A logarithm may be rounded to the wrong side."""
    s = 0
    while base ** (s + 1) <= limit * (1 + 1e-9):
        s += 1
    return s
