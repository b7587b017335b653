"""Hyper-parameter search.

>>> from outplay import tune
>>> def train(config):
...     tune.report(score=(config["x"] - 1) ** 2)
>>> tune.run(train, config={"x": tune.grid_search([0, 1, 2])}).get_best_config(metric="score", mode="min")
{'x': 1}
"""

from typing import TYPE_CHECKING, Any

from outplay.errors import TuneError
from outplay.tune import schedulers, search
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.callbacks import Callback
from outplay.tune.checkpoint import Checkpoint
from outplay.tune.configs import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from outplay.tune.domains import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from outplay.tune.objective import pareto_front
from outplay.tune.resultgrid import Result, ResultGrid
from outplay.tune.running import run
from outplay.tune.search import Searcher
from outplay.tune.session import get_checkpoint, get_context, report
from outplay.tune.stoppers import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    Stopper,
    TrialPlateauStopper,
)
from outplay.tune.trainables import Trainable, with_parameters, with_resources
from outplay.tune.trial import Trial
from outplay.tune.tuner import Tuner

if TYPE_CHECKING:
    from outplay import register_env
else:

    def __getattr__(name: str) -> Any:
        if name != "register_env":
            raise AttributeError(f"module 'outplay.tune' has no attribute {name!r}")
        from outplay import register_env  # it needs gymnasium

        return register_env


__all__ = [
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "CombinedStopper",
    "ExperimentAnalysis",
    "ExperimentPlateauStopper",
    "FailureConfig",
    "FunctionStopper",
    "MaximumIterationStopper",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Searcher",
    "Stopper",
    "Trainable",
    "Trial",
    "TrialPlateauStopper",
    "TuneConfig",
    "TuneError",
    "Tuner",
    "choice",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "lograndint",
    "loguniform",
    "pareto_front",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "report",
    "run",
    "sample_from",
    "schedulers",
    "search",
    "uniform",
    "with_parameters",
    "with_resources",
]
