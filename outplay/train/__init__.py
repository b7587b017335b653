"""Training loops of your own, on several workers.

>>> from outplay import train
>>> def loop(config):
...     for epoch in range(config["epochs"]):
...         train.report({"epoch": epoch, "rank": train.get_context().get_world_rank()})
>>> train.TorchTrainer(loop, train_loop_config={"epochs": 3}).fit().metrics["epoch"]
2
"""

from typing import TYPE_CHECKING, Any

from outplay import preprocessors
from outplay.errors import TrainError
from outplay.train.configs import CheckpointConfig, RunConfig, ScalingConfig, TorchConfig
from outplay.train.session import TrainContext, get_checkpoint, get_context, get_dataset_shard, report
from outplay.train.shards import DatasetShard
from outplay.train.trainer import DataParallelTrainer, Result, TorchTrainer
from outplay.tune import Checkpoint, FailureConfig

if TYPE_CHECKING:
    from outplay.train import sklearn, torch, xgboost
    from outplay.train.sklearn import SklearnTrainer
    from outplay.train.xgboost import XGBoostTrainer
else:
    _TRAINERS = {"SklearnTrainer": "sklearn", "XGBoostTrainer": "xgboost"}

    def __getattr__(name: str) -> Any:
        """What needs a large library is imported when it is used."""
        if name not in ("torch", *_TRAINERS, *_TRAINERS.values()):
            raise AttributeError(f"module 'outplay.train' has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"outplay.train.{_TRAINERS.get(name, name)}")
        return getattr(module, name) if name in _TRAINERS else module


__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "DataParallelTrainer",
    "DatasetShard",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "SklearnTrainer",
    "TorchConfig",
    "TorchTrainer",
    "TrainContext",
    "TrainError",
    "XGBoostTrainer",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "preprocessors",
    "report",
    "sklearn",
    "torch",
    "xgboost",
]
