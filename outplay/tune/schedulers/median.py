"""The median stopping rule (Golovin et al. 2017, Google Vizier, https://research.google/pubs/pub46180/)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from outplay.tune.schedulers.base import CONTINUE, NOTHING, PAUSE, STOP, YIELD, Action, Decisions, Scheduler
from outplay.tune.schedulers.measure import Measure, check
from outplay.tune.trial import Metrics, Trial


class MedianStoppingRule(Scheduler):
    """Stops a trial whose best score so far is below the median of the other trials' mean scores up to the same time.

    >>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1)}, metric="score", mode="max", num_samples=50,
    ...          scheduler=MedianStoppingRule(time_attr="training_iteration", grace_period=5))

    - `time_attr`: the metric that is the time.
    - `grace_period`: no trial stops before this time, and scores from before it are not in the means.
    - `min_samples_required`: other trials that must have reached the time of a result, so that it is judged.
    - `min_time_slice`: a trial that cannot be judged yet lets others run, if they wait for a slot, whenever it has run
      this long. 0: never. This needs checkpoints.
    - `hard_stop`: if false, trials are paused rather than stopped. They run on when all others have ended.
    """

    measure: Measure

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        who = type(self).__name__
        self.measure = Measure(who, time_attr, metric, mode)
        check(who, "grace_period", grace_period, least=0)
        check(who, "min_samples_required", min_samples_required, least=1)
        check(who, "min_time_slice", min_time_slice, least=0)
        self.grace_period, self.min_samples_required = grace_period, min_samples_required
        self.min_time_slice, self.hard_stop = min_time_slice, hard_stop
        self._scores: dict[str, list[tuple[float, float]]] = {}  # by trial: (time, score)
        self._slice: dict[str, float] = {}  # by trial: when its time slice began
        self._paused: dict[str, None] = {}
        self._free: set[str] = set()  # paused once, and never judged again

    @property
    def needs_checkpoints(self) -> bool:
        return self.min_time_slice > 0 or not self.hard_stop

    def wants_checkpoint(self, trial: Trial, result: Metrics) -> bool:
        return False  # a trial is saved when it pauses, and few do

    def on_add(self, trial: Trial) -> None:
        self._scores[trial.id] = []

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        time, score = self.measure.time(trial, result), self.measure.score(trial, result)
        # A trial that was restarted from a checkpoint repeats some of its results.
        earlier = [(t, s) for t, s in self._scores[trial.id] if t < time]
        self._scores[trial.id] = [*earlier, (time, score)]
        if trial.id in self._free or time < self.grace_period:
            return {trial.id: CONTINUE}
        return {trial.id: self._judged(trial.id, time)}

    def _judged(self, trial_id: str, time: float) -> Action:
        others = [s for other, s in self._scores.items() if other != trial_id and s and s[-1][0] >= time]
        if len(others) < self.min_samples_required:
            return self._not_judged(trial_id, time)
        means = [fmean(within) for scores in others if (within := self._within(scores, time))]
        best = max(score for _, score in self._scores[trial_id])
        if not means or best >= median(means):
            return CONTINUE
        if self.hard_stop:
            return STOP
        self._paused[trial_id] = None
        return PAUSE

    def _within(self, scores: list[tuple[float, float]], time: float) -> list[float]:
        """A trial's scores from the grace period to `time`."""
        return [score for t, score in scores if self.grace_period <= t <= time]

    def _not_judged(self, trial_id: str, time: float) -> Action:
        if self.min_time_slice <= 0 or time - self._slice.setdefault(trial_id, 0.0) < self.min_time_slice:
            return CONTINUE
        self._slice[trial_id] = time
        return YIELD

    def on_complete(self, trial: Trial, result: Metrics) -> Decisions:
        self._paused.pop(trial.id, None)
        return NOTHING

    def choose(self, runnable: Sequence[Trial]) -> Trial | None:
        """The trial that has run least, so that there is something to compare with."""
        return min(runnable, key=lambda trial: (self._time(trial.id), trial.index), default=None)

    def _time(self, trial_id: str) -> float:
        scores = self._scores[trial_id]
        return scores[-1][0] if scores else -math.inf

    def remark(self) -> str:
        longest = max((scores[-1][0] for scores in self._scores.values() if scores), default=math.inf)
        return self.measure.unreached("grace_period", self.grace_period, longest) if longest < self.grace_period else ""

    def on_stall(self) -> Decisions:
        paused, self._paused = self._paused, {}
        self._free.update(paused)
        return dict.fromkeys(paused, CONTINUE)
