"""The Scheduler protocol: which trials go on, wait, end, or continue as a copy of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outplay.tune.objective import Objective
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics, Trial


class Action(StrEnum):
    """CONTINUE: train on; a paused trial may run again. PAUSE: save and wait. STOP: end the trial."""

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    STOP = "STOP"


@dataclass(frozen=True)
class Clone:
    """Continue from the newest checkpoint of the trial `source`, with these values of the variables."""

    source: str
    values: Values


Decision = Action | Clone
Decisions = Mapping[str, Decision]  # by trial id; trials that are not named go on as they are

CONTINUE, PAUSE, STOP = Action.CONTINUE, Action.PAUSE, Action.STOP
NOTHING: Decisions = {}


class Scheduler:
    """Runs all trials to their end, in the order of their numbers (FIFO). Base class of all schedulers.

    A scheduler is a state machine: its decisions follow from the calls of its methods and from `seed`. A resumed study
    repeats the calls in the same order.
    """

    objective: Objective
    space: Space
    seed: int

    def setup(self, objective: Objective, space: Space, seed: int) -> None:
        """Called once, before all other methods."""
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


FIFOScheduler = Scheduler
