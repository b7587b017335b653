"""Schedulers: which trials go on, wait, end, or continue as a copy of another one."""

from outplay.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
from outplay.tune.schedulers.base import (
    CONTINUE,
    PAUSE,
    STOP,
    YIELD,
    Action,
    Clone,
    Decision,
    Decisions,
    FIFOScheduler,
    Scheduler,
)
from outplay.tune.schedulers.hyperband import HyperBandForBOHB, HyperBandScheduler
from outplay.tune.schedulers.median import MedianStoppingRule
from outplay.tune.schedulers.pb2 import PB2
from outplay.tune.schedulers.pbt import PopulationBasedTraining
from outplay.tune.schedulers.replay import PopulationBasedTrainingReplay

__all__ = [
    "CONTINUE",
    "PAUSE",
    "PB2",
    "STOP",
    "YIELD",
    "ASHAScheduler",
    "Action",
    "AsyncHyperBandScheduler",
    "Clone",
    "Decision",
    "Decisions",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "Scheduler",
]
