"""Runs a scheduler over synthetic learning curves: k slots, no engine, no clock.

>>> study = simulate(ASHAScheduler(max_t=16), lambda trial, state: trial.index, trials=16, slots=2)
>>> study.iterations  # by trial number
{0: 16, 1: 16, …}
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outplay.tune.objective import Objective
from outplay.tune.schedulers import CONTINUE, PAUSE, STOP, YIELD, Clone, Decision, Decisions, Scheduler
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Ancestor, Metrics, Status, Trial

# The score of the next iteration. The state is the score of the last one: a checkpoint, which clones continue from.
Curve = Callable[[Trial, float], float]
Call = tuple[str, str, Metrics]  # of a method of the scheduler: its name, the trial, the result


@dataclass
class Simulation:
    """A study without an engine."""

    scheduler: Scheduler
    curve: Curve
    values: Callable[[int], Values]
    total: int
    slots: int
    until: int  # trials end by themselves at this iteration
    duration: Callable[[Trial], float] = lambda trial: 1.0
    fails: Callable[[Trial], bool] = lambda trial: False
    metric: str = "score"
    trials: list[Trial] = field(default_factory=list)
    decisions: list[dict[str, Decision]] = field(default_factory=list)  # of each call
    calls: list[Call] = field(default_factory=list)
    runnable: set[str] = field(default_factory=set)  # paused, but may continue
    best: float = float("-inf")
    saved: dict[str, float] = field(default_factory=dict)  # states, by the checkpoints' paths
    states: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # iterations
    queue: list[tuple[float, int]] = field(default_factory=list)  # (time of the next result, trial)
    now: float = 0.0

    @property
    def iterations(self) -> dict[int, int]:
        """The iterations that each trial has reached, by its number."""
        return {trial.index: trial.iteration for trial in self.trials}

    def reached(self, iteration: int) -> set[int]:
        return {index for index, last in self.iterations.items() if last >= iteration}

    def named(self, trial_id: str) -> Trial:
        return self.trials[int(trial_id)]

    def run(self) -> Simulation:
        while True:
            self._fill()
            if self.queue:
                self.now, index = heapq.heappop(self.queue)
                if (trial := self.trials[index]).status is Status.RUNNING:
                    self._step(trial)
            elif any(trial.status is Status.PAUSED for trial in self.trials):
                self._record("on_stall", "", {}, decisions := self.scheduler.on_stall())
                assert decisions, "the scheduler leaves paused trials waiting forever"
            else:
                return self

    def _waiting(self) -> list[Trial]:
        return [t for t in self.trials if t.status is Status.PENDING or t.id in self.runnable]

    def _create(self) -> None:
        if len(self.trials) < self.total:
            index = len(self.trials)
            values = self.scheduler.suggested(self.values(index))
            trial = Trial(f"{index:05}", index, values, self.scheduler.space.config(values))
            self.trials.append(trial)
            self.scheduler.on_add(trial)
            self.calls.append(("on_add", trial.id, {}))
            self.decisions.append({})

    def _fill(self) -> None:
        while sum(t.status is Status.RUNNING for t in self.trials) < self.slots:
            if not self._waiting():
                self._create()
            if (trial := self.scheduler.choose(self._waiting())) is None:
                return
            self._start(trial)

    def _start(self, trial: Trial) -> None:
        trial.status = Status.RUNNING
        self.runnable.discard(trial.id)
        self._load(trial)
        heapq.heappush(self.queue, (self.now + self.duration(trial), trial.index))

    def _step(self, trial: Trial) -> None:
        state = self.states[trial.id] = self.curve(trial, self.states[trial.id])
        iteration = self.counts[trial.id] = self.counts[trial.id] + 1
        result = {"training_iteration": iteration, self.metric: state, "timesteps_total": 100 * iteration}
        if self.fails(trial):
            trial.status, trial.error = Status.ERROR, "it failed"
            self._record("on_complete", trial.id, result, self.scheduler.on_complete(trial, result))
            return
        trial.last_result = result
        self.best = max(self.best, state)
        if self.scheduler.wants_checkpoint(trial, result):
            self._save(trial)
        if iteration >= self.until:
            trial.status = Status.TERMINATED
            self._record("on_complete", trial.id, result, self.scheduler.on_complete(trial, result))
            return
        self._record("on_result", trial.id, result, self.scheduler.on_result(trial, result))
        if trial.status is Status.RUNNING:
            heapq.heappush(self.queue, (self.now + self.duration(trial), trial.index))

    def _save(self, trial: Trial) -> None:
        iteration = self.counts[trial.id]
        path = f"{trial.id}/{iteration}/{len(trial.lineage)}"
        trial.checkpoints.append((iteration, path))
        self.saved[path] = self.states[trial.id]

    def _load(self, trial: Trial) -> None:
        self.states[trial.id] = self.saved[trial.checkpoint] if trial.checkpoint else 0.0
        self.counts[trial.id] = trial.checkpoint_iteration

    def _pause(self, trial: Trial) -> None:
        trial.status = Status.PAUSED
        if trial.checkpoint_iteration < trial.iteration:
            self._save(trial)

    def _record(self, name: str, trial_id: str, result: Metrics, decisions: Decisions) -> None:
        self.calls.append((name, trial_id, result))
        self.decisions.append(dict(decisions))
        for named, decision in decisions.items():
            self._carry_out(self.named(named), decision)

    def _carry_out(self, trial: Trial, decision: Decision) -> None:
        assert not trial.status.is_finished, f"{decision} for trial {trial.id}, which has ended"
        if isinstance(decision, Clone):
            self._clone(trial, decision)
        elif decision is CONTINUE and trial.status is Status.PAUSED:
            self.runnable.add(trial.id)
        elif decision is PAUSE:
            self._pause(trial)
            self.runnable.discard(trial.id)
        elif decision is STOP:
            trial.status = Status.TERMINATED
            self.runnable.discard(trial.id)
        elif decision is YIELD:
            if not any(t.status is Status.PENDING for t in self.trials):
                self._create()
            if (chosen := self.scheduler.choose([*self._waiting(), trial])) not in (None, trial):
                assert chosen is not None
                self._pause(trial)
                self.runnable.add(trial.id)
                self._start(chosen)

    def _clone(self, trial: Trial, clone: Clone) -> None:
        source = self.named(clone.source)
        iteration, path = source.checkpoints[-1]
        trial.lineage.append(Ancestor(source.id, iteration, path, clone.values, generation=len(source.lineage)))
        trial.values, trial.config = clone.values, self.scheduler.space.config(clone.values)
        trial.checkpoints.append((iteration, path))
        trial.last_result = {**trial.last_result, "training_iteration": iteration}
        self._load(trial)
        if trial.status is Status.PAUSED:
            self.runnable.add(trial.id)


def simulate(
    scheduler: Scheduler,
    curve: Curve,
    trials: int,
    slots: int = 1,
    config: dict[str, Any] | None = None,
    values: Callable[[int], Values] = lambda index: {},
    mode: str = "max",
    seed: int = 0,
    until: int = 10**6,
    **options: Any,
) -> Simulation:
    """Run all trials to their end."""
    space = Space(scheduler.prepare(config or {}))
    scheduler.setup(Objective.of(options.get("metric", "score"), mode), space, seed)
    return Simulation(scheduler, curve, values, trials, slots, until, **options).run()


def repeated(scheduler: Scheduler, study: Simulation, mode: str = "max", seed: int = 0) -> list[dict[str, Decision]]:
    """The decisions of a fresh scheduler that gets the calls of a study, as if it were resumed: no `choose`."""
    scheduler.setup(Objective.of(study.metric, mode), study.scheduler.space, seed)
    trials: dict[str, Trial] = {}
    decisions: list[dict[str, Decision]] = []
    for name, trial_id, result in study.calls:
        if name == "on_add":
            first = study.named(trial_id)
            values = first.initial_values
            trials[trial_id] = Trial(trial_id, first.index, values, scheduler.space.config(values))
            scheduler.on_add(trials[trial_id])
            decisions.append({})
        elif name == "on_stall":
            decisions.append(dict(scheduler.on_stall()))
        else:
            trials[trial_id].last_result = result
            if name == "on_result" and scheduler.wants_checkpoint(trials[trial_id], result):
                trials[trial_id].checkpoints.append((result["training_iteration"], "a checkpoint"))
            decisions.append(dict(getattr(scheduler, name)(trials[trial_id], result)))
    return decisions
