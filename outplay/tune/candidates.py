"""Candidates: which trial runs next. One that waits, a new one, or at the end the best one on other seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from typing import Any

from outplay.tune.folder import Entry
from outplay.tune.ledger import REPORT, Ledger
from outplay.tune.objective import known
from outplay.tune.plan import Plan
from outplay.tune.search import Finished
from outplay.tune.spaces import Values
from outplay.tune.trial import Status, Trial


class Candidates:
    """The trials of a study that do not run. `record` writes an entry to the journal; `active` are trials that run."""

    def __init__(self, plan: Plan, ledger: Ledger, record: Callable[[Entry], None], active: Container[str]) -> None:
        self._plan, self._ledger, self._record, self._active = plan, ledger, record, active
        self._is_exhausted = False  # the searcher has no more suggestions

    @property
    def are_left(self) -> bool:
        """Whether a trial may start now, or later."""
        return bool(self.runnable() or self.may_suggest() or self.is_report_due())

    def runnable(self) -> list[Trial]:
        """The trials that wait to run, in the order of their numbers."""
        pending = [trial for trial in self._ledger.with_status(Status.PENDING) if trial.id not in self._active]
        return sorted(pending, key=lambda trial: trial.index)

    def may_suggest(self) -> bool:
        return not self._is_exhausted and not 0 <= self._plan.num_samples <= self._ledger.number

    def is_report_due(self) -> bool:
        """When the search is over, the best configuration is run on other seeds."""
        is_over = not self.may_suggest() and not self._ledger.has_unfinished
        return bool(self._plan.report_seeds) and is_over and REPORT not in self._ledger.trials

    def next(self) -> Trial | None:
        """A trial that waits to run, or a new one; None if there is none now."""
        if (runnable := self.runnable()) and (chosen := self._ledger.scheduler.choose(runnable)) is not None:
            return chosen
        was_asked = self.may_suggest()
        if (suggested := self.suggest()) is not None or (was_asked and not self._is_exhausted):
            return suggested
        return self._add_report() if self.is_report_due() else None

    def suggest(self) -> Trial | None:
        """A new trial; None if the searcher has no values for it now, or none at all."""
        if not self.may_suggest():
            return None
        trial_id = f"{self._ledger.number:05d}"
        values = self._ledger.searcher.suggest(trial_id)
        if isinstance(values, Finished):
            self._is_exhausted = True
        if values is None or isinstance(values, Finished):
            return None
        changed = self._ledger.scheduler.suggested(values)
        more = {} if changed is values else {"suggested": self._ledger.space.encode(values)}
        trial = self._add(trial_id, changed, **more)
        self.save_searcher()
        return trial

    def save_searcher(self) -> None:
        """Record the searcher's state, if it has one and it has changed."""
        state = self._ledger.searcher.save()
        if state is not None and state != self._ledger.searcher_state:
            self._ledger.searcher_state = copy.deepcopy(state)
            self._record({"event": "searcher", "state": state})

    def _add(self, trial_id: str, values: Values, **more: Any) -> Trial:
        trial = self._ledger.add(trial_id, values)
        self._record({"event": "trial", "trial": trial_id, "values": self._ledger.space.encode(values), **more})
        return trial

    def _add_report(self) -> Trial | None:
        tried = [trial for trial in self._ledger.searched if trial.last_result]
        if not tried:
            return None
        best = max(tried, key=lambda trial: known(self._plan.objective.score(trial.last_result)))
        return self._add(REPORT, best.values, of=best.id)
