"""Ledger: the state of a study. It changes by journal entries only, so a resumed study has the state it had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outplay.errors import RunError
from outplay.tune.folder import Entry
from outplay.tune.schedulers import Action, Clone, Decision, Decisions, Scheduler
from outplay.tune.search import Searcher
from outplay.tune.spaces import Space, Values
from outplay.tune.stoppers import Stopper
from outplay.tune.trial import Ancestor, Metrics, Status, Trial

REPORT = "report"  # the id of the trial that reports the best configuration on other seeds


class Ledger:
    """All trials, the searcher and the scheduler.

    New entries are made by methods named after their event; they return the entry. `apply` carries out an entry: while
    the study runs, and when it is resumed.
    """

    def __init__(self, space: Space, searcher: Searcher, scheduler: Scheduler, stopper: Stopper) -> None:
        self.space = space
        self.searcher = searcher
        self.scheduler = scheduler
        self.stopper = stopper
        self.trials: dict[str, Trial] = {}
        self._by_status: dict[Status, dict[str, Trial]] = {status: {} for status in Status}
        self.losses: dict[str, int] = {}  # by trial: how often its process has died
        self.searcher_state: dict[str, Any] | None = None  # the newest one that was saved
        self.finished = ""  # why the study ended
        self.seconds = 0.0  # of all sessions before this one

    @property
    def searched(self) -> list[Trial]:
        """All trials but the one that reports the best configuration."""
        return [trial for trial in self.trials.values() if trial.id != REPORT]

    @property
    def number(self) -> int:
        """How many trials were suggested."""
        return len(self.trials) - (REPORT in self.trials)

    def with_status(self, status: Status) -> list[Trial]:
        """In the order in which they got it."""
        return list(self._by_status[status].values())

    @property
    def has_unfinished(self) -> bool:
        return any(self._by_status[status] for status in (Status.PENDING, Status.RUNNING, Status.PAUSED))

    def set_status(self, trial: Trial, status: Status, reason: str = "") -> None:
        self._by_status[trial.status].pop(trial.id, None)
        self._by_status[status][trial.id] = trial
        trial.status, trial.reason = status, reason or trial.reason

    # Making entries. The searcher and the scheduler are told of an event when it is made, or when it is read.

    def result(self, trial: Trial, metrics: Metrics, checkpoints: Sequence[str] | None, done: bool) -> Entry:
        """The entry of a new result, with the decisions of the scheduler."""
        entry: Entry = {"event": "result", "trial": trial.id, "metrics": metrics}
        if checkpoints:
            entry["checkpoints"] = list(checkpoints)
        self._take_result(trial, entry)
        decisions = self._tell(trial, metrics)
        if self.stopper(trial.id, metrics) or done:
            entry["done"] = True
            self.set_status(trial, Status.TERMINATED)
            decisions |= self._tell_complete(trial)
            decisions.pop(trial.id, None)
        self._take_decisions(entry, decisions)
        return entry

    def end(self, trial: Trial, reason: str) -> Entry:
        """The entry of a trial that came to its end."""
        entry: Entry = {"event": "end", "trial": trial.id, "reason": reason}
        self._drop_unused_copy(trial)
        self.set_status(trial, Status.TERMINATED, reason)
        self._take_decisions(entry, self._tell_complete(trial))
        return entry

    def error(self, trial: Trial, error: str, is_final: bool) -> Entry:
        """The entry of a trial that failed. It is tried again unless `is_final`."""
        entry: Entry = {"event": "error", "trial": trial.id, "error": error, "final": is_final}
        self._take_error(trial, entry)
        self._take_decisions(entry, self._tell_complete(trial) if is_final else {})
        return entry

    def stall(self) -> Entry | None:
        """The entry of a study in which only paused trials are left; None if the scheduler has no use for them."""
        if not (decisions := self.scheduler.on_stall()):
            return None
        entry: Entry = {"event": "stall"}
        self._take_decisions(entry, decisions)
        return entry

    # Reading entries.

    def read(self, entry: Entry) -> None:
        """Repeat an entry of the journal, when a study is resumed."""
        event = entry["event"]
        self.seconds = float(entry["time"])
        if event == "trial":
            values = self.space.decode(entry["values"])
            if entry["trial"] != REPORT:
                suggested = self.space.decode(entry["suggested"]) if "suggested" in entry else values
                self.searcher.repeat(entry["trial"], suggested)
                self.scheduler.suggested(suggested)
            self.add(entry["trial"], values)
        elif event == "searcher":
            self.searcher_state = entry["state"]
            self.searcher.restore(entry["state"])
        elif event in ("result", "end", "error"):
            self._read_outcome(self._trial(entry), entry)
        elif event == "start":
            trial = self._trial(entry)
            self.set_status(trial, Status.RUNNING)
        elif event == "checkpoint":
            self.add_checkpoint(self._trial(entry), entry["iteration"], entry["checkpoints"])
        elif event == "lost":
            self.lose(self._trial(entry))
        elif event == "stall":
            self.scheduler.on_stall()
            self._apply_decisions(entry.get("decisions", {}))
        elif event == "retry":
            self.retry(self._trial(entry), entry["from_start"])
        elif event == "session":
            self.finished = ""
        elif event == "finished":
            self.finished = entry["reason"]

    def _read_outcome(self, trial: Trial, entry: Entry) -> None:
        event = entry["event"]
        if event == "result":
            self._take_result(trial, entry)
            self._tell(trial, entry["metrics"])
            self.stopper(trial.id, entry["metrics"])
            if entry.get("done"):
                self.set_status(trial, Status.TERMINATED)
                self._tell_complete(trial)
        elif event == "end":
            self._drop_unused_copy(trial)
            self.set_status(trial, Status.TERMINATED, entry["reason"])
            self._tell_complete(trial)
        else:
            self._take_error(trial, entry)
            if entry["final"]:
                self._tell_complete(trial)
        self._apply_decisions(entry.get("decisions", {}))

    def _trial(self, entry: Entry) -> Trial:
        try:
            return self.trials[entry["trial"]]
        except KeyError:
            raise RunError(f"the journal names a trial that it did not add: {entry!r}") from None

    # What entries change.

    def add(self, trial_id: str, values: Values) -> Trial:
        trial = Trial(trial_id, len(self.trials), values, self.space.config(values))
        self.trials[trial_id] = trial
        self.set_status(trial, Status.PENDING)
        if trial_id != REPORT:
            self.scheduler.on_add(trial)
        return trial

    def add_checkpoint(self, trial: Trial, iteration: int, paths: Sequence[str]) -> None:
        trial.checkpoints.append((iteration, paths[0]))
        if len(paths) > 1:
            trial.seed_checkpoints[iteration] = list(paths)

    def lose(self, trial: Trial) -> None:
        """A trial's process has died. It continues from its newest checkpoint."""
        self.losses[trial.id] = self.losses.get(trial.id, 0) + 1
        self.set_status(trial, Status.PENDING)

    def retry(self, trial: Trial, from_start: bool) -> None:
        """A failed trial is to run again."""
        self.set_status(trial, Status.PENDING)
        trial.error, trial.failures = "", 0
        self.losses.pop(trial.id, None)
        if from_start:
            trial.checkpoints.clear()
            trial.seed_checkpoints.clear()

    def _take_result(self, trial: Trial, entry: Entry) -> None:
        trial.before_copy = None
        trial.last_result = entry["metrics"]
        self.losses.pop(trial.id, None)  # it has made progress since
        trial.seconds = float(entry["metrics"].get("time_total_s") or 0.0)
        if paths := entry.get("checkpoints"):
            self.add_checkpoint(trial, trial.iteration, paths)

    def _take_error(self, trial: Trial, entry: Entry) -> None:
        trial.failures += 1
        trial.error = entry["error"]
        self.set_status(trial, Status.ERROR if entry["final"] else Status.PENDING)

    def _drop_unused_copy(self, trial: Trial) -> None:
        """A trial that became a copy and ended without another result keeps the values that its result is from."""
        if trial.before_copy is not None:
            trial.values, trial.last_result = trial.before_copy
            trial.config = self.space.config(trial.values)
            trial.before_copy = None
            trial.lineage.pop()

    def _tell(self, trial: Trial, metrics: Metrics) -> dict[str, Decision]:
        if trial.id == REPORT:
            return {}
        self.searcher.on_result(trial.id, self.scheduler.annotated(trial, metrics))
        return dict(self.scheduler.on_result(trial, metrics))

    def _tell_complete(self, trial: Trial) -> dict[str, Decision]:
        if trial.id == REPORT:
            return {}
        self._tell_searcher(trial)
        return dict(self.scheduler.on_complete(trial, trial.last_result))

    def _tell_searcher(self, trial: Trial) -> None:
        failed = trial.status == Status.ERROR
        self.searcher.on_complete(trial.id, None if failed else trial.last_result, error=failed)

    # Decisions: in the journal as text, or for a copy as {"clone": …, "values": …, "iteration": …, "checkpoints": …}.

    def _take_decisions(self, entry: Entry, decisions: Decisions) -> None:
        written = {}
        for trial_id, decision in decisions.items():
            if (text := self._written(decision)) is not None:
                written[trial_id] = text
        if written:
            entry["decisions"] = written
            self._apply_decisions(written)

    def _written(self, decision: Decision) -> Any:
        if isinstance(decision, Action):
            return decision.value
        source = self.trials[decision.source]
        if not source.checkpoints:  # there is nothing to copy
            return None
        iteration, path = source.checkpoints[-1]
        paths = source.seed_checkpoints.get(iteration, [path])
        values = self.space.encode(decision.values)
        return {"clone": source.id, "values": values, "iteration": iteration, "checkpoints": paths}

    def _apply_decisions(self, decisions: dict[str, Any]) -> None:
        for trial_id, decision in decisions.items():
            trial = self.trials[trial_id]
            if trial.status.is_finished:
                continue
            if isinstance(decision, dict):
                self._clone(trial, decision)
            elif decision == Action.STOP:
                self.set_status(trial, Status.TERMINATED, "stopped by the scheduler")
                self._tell_searcher(trial)
            elif decision == Action.PAUSE:
                self.set_status(trial, Status.PAUSED)
            elif trial.status == Status.PAUSED:
                self.set_status(trial, Status.PENDING)

    def _clone(self, trial: Trial, decision: dict[str, Any]) -> None:
        before, trial.values = trial.values, self.space.decode(decision["values"])
        trial.config = self.space.config(trial.values)
        iteration, paths = int(decision["iteration"]), list(decision["checkpoints"])
        source = self.trials[decision["clone"]]
        trial.before_copy = trial.before_copy or (before, trial.last_result)
        trial.lineage.append(Ancestor(source.id, iteration, paths[0], trial.values, generation=len(source.lineage)))
        trial.seconds = source.seconds
        self.add_checkpoint(trial, iteration, paths)
        trial.last_result = {**trial.last_result, "training_iteration": iteration}
        self.set_status(trial, Status.PENDING)


__all__ = ["REPORT", "Clone", "Ledger"]
