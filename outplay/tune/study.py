"""Study: the loop that runs trials.

`run` fills free slots with trials, waits for events, and records them. What an event changes is in `Ledger`; what a
trial does is in `TrialWorker`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import outplay
from outplay.conditions import flattened
from outplay.tune.active import LOST, Active, Replica
from outplay.tune.candidates import Candidates
from outplay.tune.executions import Event, Job
from outplay.tune.folder import Entry, StudyFolder
from outplay.tune.ledger import REPORT, Ledger
from outplay.tune.plan import Plan
from outplay.tune.resources import Slot, Slots
from outplay.tune.schedulers import Action
from outplay.tune.seeds import aggregated
from outplay.tune.trial import Metrics, Status, Trial

log = logging.getLogger("outplay")

_LOSSES = 3  # restarts of a trial whose process was killed, at most
_POLL_S = 0.5
_STOPS = 100
_ENDING_S = 10.0  # for trials to write their last checkpoints


class Study:
    """Trials, a searcher and a scheduler, on the engine."""

    def __init__(self, plan: Plan, ledger: Ledger, folder: StudyFolder, slots: Slots) -> None:
        self.plan = plan
        self.ledger = ledger
        self.folder = folder
        self._slots = slots
        self._active: dict[str, Active] = {}
        self._awaited: dict[Any, tuple[Active, Replica]] = {}
        self._stops: list[Any] = []  # Refs of trials that are being ended
        self._candidates = Candidates(plan, ledger, self._record, self._active)
        self._has_warned = False
        self._started = time.monotonic()
        self.results = 0  # of all trials, since the start or resume

    @property
    def seconds(self) -> float:
        """Since the study began, without the time in which it did not run."""
        return self.ledger.seconds + time.monotonic() - self._started

    @property
    def trials(self) -> list[Trial]:
        return list(self.ledger.trials.values())

    # The loop.

    def run(self) -> str:
        """Run trials until all have ended. Returns the reason why the study ended."""
        try:
            self._begin()
            while not (reason := self._reason_to_stop()):
                self._fill()
                if self._awaited:
                    self._handle_next()
                elif not self._resolve_stall():
                    reason = "all trials have ended"
                    break
            self._finish_all(reason)
        finally:
            self._slots.close()
            self._tell("on_experiment_end", self.trials)
        if remark := self.ledger.scheduler.remark():
            log.warning("%s", remark)
        return reason

    def _begin(self) -> None:
        self._record({"event": "session"})
        self._candidates.save_searcher()
        self._tell(
            "setup",
            study=self.plan.name,
            folder=str(self.folder),
            objective=self.plan.objective,
            total=self.plan.total,
            time_budget_s=self.plan.time_budget_s,
            seconds=self.seconds,
        )

    def _finish_all(self, reason: str) -> None:
        """End what still runs, and wait until trials have written their last checkpoints."""
        self._end_all(reason)
        if self._stops:
            outplay.wait(self._stops, num_returns=len(self._stops), timeout=_ENDING_S)
        self._record({"event": "finished", "reason": reason})
        self.ledger.finished = reason

    def _reason_to_stop(self) -> str:
        if self.plan.time_budget_s is not None and self.seconds >= self.plan.time_budget_s:
            return f"the time budget of {self.plan.time_budget_s:g} s is spent"
        if self.ledger.stopper.stop_all():
            return "the stopper has ended the study"
        if self.plan.fail_fast and self.ledger.with_status(Status.ERROR):
            return "a trial has failed"
        return ""

    def _fill(self) -> None:
        """Start trials while there are free slots."""
        limit = self.plan.max_concurrent
        while (limit is None or len(self._active) < limit) and self._candidates.are_left:
            if not (slots := self._acquire()):
                return
            if (trial := self._candidates.next()) is None:
                for slot in slots:
                    self._slots.release(slot)
                return
            self._start(trial, slots)

    def _acquire(self) -> list[Slot]:
        """The slots for the seeds of one trial: as many as it has, or all that there are. Empty: wait for them."""
        wanted = max(len(self.plan.seeds), len(self.plan.report_seeds) if self._candidates.is_report_due() else 0)
        slots: list[Slot] = []
        while len(slots) < wanted and (slot := self._slots.acquire()) is not None:
            slots.append(slot)
        if len(slots) < wanted and self._active:  # others will become free
            for slot in slots:
                self._slots.release(slot)
            return []
        return slots

    def _resolve_stall(self) -> bool:
        """Nothing runs. Whether there is something left to do; the scheduler decides on paused trials."""
        if self.ledger.with_status(Status.PENDING):
            time.sleep(_POLL_S)  # the scheduler, or the resources, do not allow it yet
            return True
        if paused := self.ledger.with_status(Status.PAUSED):
            if (entry := self.ledger.stall()) is not None:
                self._record(entry)
            for trial in () if entry is not None else paused:
                self._record(self.ledger.end(trial, "paused when the study ended"))
            return True
        if not self._candidates.are_left:
            return False
        time.sleep(_POLL_S)  # the searcher has no values now
        return True

    # One trial.

    def _start(self, trial: Trial, slots: list[Slot]) -> None:
        seeds = self.plan.report_seeds if trial.id == REPORT else self.plan.seeds
        replicas = [Replica(i, f"{trial.id}.{i}", slots[i % len(slots)]) for i in range(len(seeds))]
        active = self._active[trial.id] = Active(trial, replicas, slots, trial.iteration)
        iteration = trial.checkpoint_iteration
        paths = trial.seed_checkpoints.get(iteration) or ([trial.checkpoint] if trial.checkpoint else [])
        self.ledger.set_status(trial, Status.RUNNING)
        self._record({"event": "start", "trial": trial.id, "iteration": iteration})
        if self.plan.callbacks:
            self._tell("on_trial_start", self.results, self.trials, trial)
        for replica, seed in zip(replicas, seeds, strict=True):
            path = self.folder.absolute(paths[replica.number]) if replica.number < len(paths) else None
            job = Job(
                trial.id,
                self.plan.name,
                self._config(trial, seed),
                str(self.folder.trial_folder(trial.id, replica.number)),
                seed,
                iteration if path else 0,
                path,
                self.plan.checkpoint_freq,
                self.plan.checkpoint_at_end,
                self.plan.resources,
                self.plan.stop,
                trial.seconds if path else 0.0,
                self._has_seeds,
            )
            self._await(active, replica, replica.slot.worker.start.remote(replica.key, job))

    def _config(self, trial: Trial, seed: int) -> dict[str, Any]:
        """The config of one seed. If there is one seed only, functions get the config as it is."""
        return {**trial.config, "seed": seed} if self._has_seeds and not self.plan.is_run else trial.config

    @property
    def _has_seeds(self) -> bool:
        return len(self.plan.seeds) + len(self.plan.report_seeds) > 1

    def _await(self, active: Active, replica: Replica, ref: Any) -> None:
        replica.ref, replica.event = ref, None
        self._awaited[ref] = (active, replica)

    def _handle_next(self) -> None:
        """Wait for the next event, and handle it."""
        ready, _ = outplay.wait(list(self._awaited), timeout=_POLL_S)
        for ref in ready:
            active, replica = self._awaited.pop(ref)
            event = replica.receive()
            if event.kind == "lost":
                self._after_loss(active, replica, event.error)
            elif not active.is_awaited:
                self._after_events(active)

    def _after_events(self, active: Active) -> None:
        """All seeds of a trial have reported a result, or ended."""
        trial = active.trial
        events = [replica.event for replica in active.replicas if replica.event is not None]
        if active.is_obsolete:
            self._release(active)
        elif errors := [event.error for event in events if event.kind == "error"]:
            self._release(active)
            limit = self.plan.max_failures
            entry = self.ledger.error(trial, errors[0], is_final=0 <= limit <= trial.failures)
            self._finish(entry)
        elif not any(event.kind == "result" for event in events):
            self._release(active)
            self._finish(self.ledger.end(trial, "ended by itself"))
        else:
            self._after_result(active, events)

    def _after_result(self, active: Active, events: Sequence[Event]) -> None:
        trial = active.trial
        results = [replica.result for replica in active.replicas if replica.result is not None]
        metrics = aggregated(results, self.plan.aggregate, self.plan.objective.metrics)
        paths = [self.folder.relative(event.checkpoint) for event in events if event.checkpoint]
        checkpoints = paths if len(paths) == len(active.replicas) else []
        done = all(replica.has_ended or bool((replica.result or {}).get("done")) for replica in active.replicas)
        trial.folder = trial.folder or next((self.folder.relative(e.folder) for e in events if e.folder), "")
        iteration = int(metrics["training_iteration"])
        if iteration <= active.repeats_until:
            self._after_repeat(active, iteration, checkpoints, done)
            return
        if not checkpoints and self._wants_checkpoint(trial, metrics):
            checkpoints = self._save(active)
        self.results += 1
        entry = self.ledger.result(trial, metrics, checkpoints, done)
        self._finish(entry, active)

    def _after_repeat(self, active: Active, iteration: int, checkpoints: list[str], done: bool) -> None:
        """A result that was recorded and decided upon before the trial was lost."""
        if checkpoints:
            self._add_checkpoint(active.trial, iteration, checkpoints)
        if done:
            self._release(active)
            self._finish(self.ledger.end(active.trial, "ended by itself"))
        else:
            self._advance(active)

    def _wants_checkpoint(self, trial: Trial, metrics: Metrics) -> bool:
        return trial.id != REPORT and self.ledger.scheduler.wants_checkpoint(trial, metrics)

    def _save(self, active: Active) -> list[str]:
        """Checkpoints of all seeds, now. Empty if the trials cannot be saved now, as functions."""
        refs = [replica.slot.worker.save.remote(replica.key) for replica in active.replicas if not replica.has_ended]
        try:
            paths = outplay.get(refs)
        except LOST:  # the next event says so, too
            return []
        saved = [self.folder.relative(path) for path in paths if path]
        return saved if len(saved) == len(active.replicas) else []

    def _add_checkpoint(self, trial: Trial, iteration: int, paths: Sequence[str]) -> None:
        self.ledger.add_checkpoint(trial, iteration, paths)
        self._record({"event": "checkpoint", "trial": trial.id, "iteration": iteration, "checkpoints": list(paths)})

    def _finish(self, entry: Entry, active: Active | None = None) -> None:
        """Record an entry, and carry out what it means for trials that run."""
        self._record(entry)
        self._tell_outcome(entry)
        self._check_metric(entry)
        others = [self._active.get(trial_id) for trial_id in entry.get("decisions", ())]
        for each in dict.fromkeys([active, *others]):
            if each is None:
                continue
            if each.is_awaited and each.trial.status != Status.RUNNING:
                each.is_obsolete = True
            elif not each.is_awaited:
                if entry.get("decisions", {}).get(each.trial.id) == Action.YIELD:
                    self._yield(each.trial)
                self._carry_out(each)

    def _yield(self, trial: Trial) -> None:
        """Let the trial wait if the scheduler prefers another one, which has no slot."""
        if trial.status != Status.RUNNING:
            return
        if all(other.last_result for other in self._candidates.runnable()):
            self._candidates.suggest()  # a trial that has not begun may be preferred to all others
        if self.ledger.scheduler.choose([*self._candidates.runnable(), trial]) is not trial:
            self.ledger.set_status(trial, Status.PENDING)

    def _carry_out(self, active: Active) -> None:
        """A trial has reported a result, which was decided upon."""
        trial = active.trial
        if trial.status == Status.RUNNING:
            self._advance(active)
            return
        is_unsaved = not trial.status.is_finished and trial.checkpoint_iteration < trial.iteration
        if is_unsaved and (paths := self._save(active)):
            self._add_checkpoint(trial, trial.iteration, paths)
        self._release(active)

    def _advance(self, active: Active) -> None:
        for replica in active.replicas:
            if replica.has_ended:
                replica.event = None
            elif (replica.result or {}).get("done"):
                self._stop(replica)
            else:
                self._await(active, replica, replica.slot.worker.step.remote(replica.key))

    def _stop(self, replica: Replica) -> None:
        if not replica.has_ended:
            replica.has_ended, replica.event = True, None
            self._stops.append(replica.slot.worker.stop.remote(replica.key))
            if len(self._stops) > _STOPS:
                self._stops = outplay.wait(self._stops, num_returns=len(self._stops), timeout=0)[1]

    def _release(self, active: Active) -> None:
        """The slots of a trial are free for others."""
        for replica in active.replicas:
            self._stop(replica)
        for slot in active.slots:
            self._slots.release(slot)
        del self._active[active.trial.id]

    def _after_loss(self, active: Active, replica: Replica, error: str) -> None:
        """A worker process has died. The trial continues from its newest checkpoint, in another one."""
        if replica.slot in active.slots:
            active.slots.remove(replica.slot)
            self._slots.discard(replica.slot)
        if not active.is_obsolete:
            active.is_obsolete = True
            trial = active.trial
            if self.ledger.losses.get(trial.id, 0) >= _LOSSES:
                self._finish(self.ledger.error(trial, f"its process died {_LOSSES + 1} times: {error}", is_final=True))
            else:
                log.warning("the process of trial %s died (%s); the trial is started again", trial.id, error)
                self.ledger.lose(trial)
                self._record({"event": "lost", "trial": trial.id, "error": error})
        for each in active.replicas:
            each.has_ended |= each.slot is replica.slot
        if not active.is_awaited and active.trial.id in self._active:
            self._release(active)

    def _end_all(self, reason: str) -> None:
        """The study ends before its trials: they keep the results that they have."""
        for status in (Status.RUNNING, Status.PENDING, Status.PAUSED):
            for trial in self.ledger.with_status(status):
                self._finish(self.ledger.end(trial, reason))
        for active in self._active.values():  # they end after the iteration that they are in
            for replica in active.replicas:
                self._stop(replica)

    # Recording.

    def _record(self, entry: Entry) -> None:
        self.folder.append({**entry, "time": round(self.seconds, 4)})

    def _check_metric(self, entry: Entry) -> None:
        """Say once if a trial has ended without the metric that the study optimises."""
        trial = self.ledger.trials.get(entry.get("trial", ""))
        if self._has_warned or not self.plan.objective.metrics or trial is None or trial.status != Status.TERMINATED:
            return
        metric = self.plan.objective.metric
        if metric not in trial.last_result and metric not in flattened(trial.last_result):
            self._has_warned = True
            known = ", ".join(sorted(trial.last_result)[:8])
            has = f"it reported {known}" if known else "it reported nothing; call tune.report()"
            log.warning("trial %s has ended without the metric %r: %s", trial.id, metric, has)

    def _tell_outcome(self, entry: Entry) -> None:
        if not self.plan.callbacks:
            return
        trials = self.trials
        named = [entry["trial"]] if "trial" in entry else []
        for trial in (self.ledger.trials[trial_id] for trial_id in named):
            if entry["event"] == "result":
                self._tell("on_trial_result", self.results, trials, trial, entry["metrics"])
                for path in entry.get("checkpoints", ())[:1]:
                    self._tell("on_checkpoint", self.results, trials, trial, path)
            if trial.status == Status.ERROR:
                self._tell("on_trial_error", self.results, trials, trial)
        for trial_id in {*named, *entry.get("decisions", ())}:
            if self.ledger.trials[trial_id].status == Status.TERMINATED:
                self._tell("on_trial_complete", self.results, trials, self.ledger.trials[trial_id])

    def _tell(self, hook: str, *args: Any, **info: Any) -> None:
        for callback in self.plan.callbacks:
            getattr(callback, hook)(*args, **info)
