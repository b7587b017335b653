"""The Scheduler protocol: which trials go on, wait, end, or continue as a copy of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outplay.tune.objective import Objective
from outplay.tune.schedulers.measure import Measure
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics, Trial


class Action(StrEnum):
    """What becomes of a trial.

    | action | meaning |
    | --- | --- |
    | CONTINUE | train on; a paused trial may run again |
    | PAUSE | save, free the slot and wait for a CONTINUE or a Clone |
    | YIELD | train on, unless `choose` prefers another trial that waits for a slot: then save, and wait for a slot |
    | STOP | end the trial |
    """

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    YIELD = "YIELD"
    STOP = "STOP"


@dataclass(frozen=True)
class Clone:
    """Continue from the newest checkpoint of the trial `source`, with these values of the variables.

    The trial's iteration and time continue from that checkpoint, too. `source` may be the trial itself: then it
    changes its values and nothing else. A paused trial may run again.
    """

    source: str
    values: Values


Decision = Action | Clone
Decisions = Mapping[str, Decision]  # by trial id; trials that are not named go on as they are

CONTINUE, PAUSE, YIELD, STOP = Action.CONTINUE, Action.PAUSE, Action.YIELD, Action.STOP
NOTHING: Decisions = {}


class Scheduler:
    """Runs all trials to their end, in the order of their numbers (FIFO). Base class of all schedulers.

    A scheduler is a state machine: its decisions follow from the calls of its methods and from `seed`. A resumed study
    repeats the calls in the same order. So decisions must not depend on `trial.status`, on calls of `choose`, or on the
    clock.
    """

    objective: Objective
    space: Space
    seed: int
    measure: Measure | None = None  # what it reads in results, if it compares trials

    def prepare(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config to search, from the user's. Called before `setup`; a scheduler may add variables."""
        return config

    def setup(self, objective: Objective, space: Space, seed: int) -> None:
        """Called once, before all other methods but `prepare`."""
        if self.measure is not None:
            objective = self.measure.objective = self.measure.agree(objective)
        self.objective, self.space, self.seed = objective, space, seed

    @property
    def needs_checkpoints(self) -> bool:
        """Whether trials are paused or copied, so that each result of a trial needs a checkpoint that fits it."""
        return False

    def wants_checkpoint(self, trial: Trial, result: Metrics) -> bool:
        """Whether to write a checkpoint of this result before `on_result` is called with it."""
        return self.needs_checkpoints

    def on_add(self, trial: Trial) -> None:
        """A new trial. It has not started."""

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        """A running trial has a new result. `trial.last_result` is this result already."""
        return NOTHING

    def annotated(self, trial: Trial, result: Metrics) -> Metrics:
        """A result as the searcher gets it. Called before `on_result`; BOHB adds the budget of its rungs."""
        return result

    def on_complete(self, trial: Trial, result: Metrics) -> Decisions:
        """A trial has reached its end by itself or failed (`trial.error`). `result` is its last one, or empty."""
        return NOTHING

    def choose(self, runnable: Sequence[Trial]) -> Trial | None:
        """The next trial to run: of those that are pending, and of paused ones that may continue. None: none now."""
        return runnable[0] if runnable else None

    def suggested(self, values: Values) -> Values:
        """The values of a new trial, as the searcher suggested them; a scheduler may change them."""
        return values

    def on_stall(self) -> Decisions:
        """No trial runs, none can start, and no new ones will come, but some are paused: what becomes of them?"""
        return NOTHING

    def status(self) -> dict[str, Any]:
        """What to show of it: numbers of trials per rung, and so on."""
        return {}

    def remark(self) -> str:
        """What the user should know when the study has ended, such as that no trial was ever compared; or nothing."""
        return ""


FIFOScheduler = Scheduler
