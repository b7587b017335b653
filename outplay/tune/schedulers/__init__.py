"""Schedulers: which trials go on, wait, end, or continue as a copy of another one."""

from outplay.tune.schedulers.base import (
    CONTINUE,
    PAUSE,
    STOP,
    Action,
    Clone,
    Decision,
    Decisions,
    FIFOScheduler,
    Scheduler,
)

__all__ = ["CONTINUE", "PAUSE", "STOP", "Action", "Clone", "Decision", "Decisions", "FIFOScheduler", "Scheduler"]
