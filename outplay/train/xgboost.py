"""XGBoostTrainer: gradient-boosted trees on several workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from outplay.arguments import integer
from outplay.errors import CheckpointError, ConfigError
from outplay.train import session
from outplay.train.configs import ScalingConfig
from outplay.train.tables import table
from outplay.train.trainer import DataParallelTrainer, check_train_set, checked_label_column
from outplay.train.worker import Place
from outplay.tune import Checkpoint
from outplay.tune import RunConfig as TuneRunConfig

MODEL = "model.ubj"  # in a checkpoint


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise ConfigError("XGBoostTrainer needs xgboost: pip install 'outplay[xgboost]'") from error
    return xgboost


class XGBoostBackend:
    """XGBoost's own collective communication. Rank 0 has its tracker."""

    def __init__(self) -> None:
        self._tracker: Any = None

    def rendezvous(self, host: str, world_size: int) -> dict[str, Any]:
        _xgboost()
        from xgboost.tracker import RabitTracker

        if world_size == 1:
            return {}
        self._tracker = RabitTracker(host_ip=host, n_workers=world_size, sortby="task")
        self._tracker.start()
        return {"tracker": self._tracker.worker_args()}

    @contextmanager
    def connected(self, place: Place, meeting: dict[str, Any]) -> Iterator[None]:
        if place.world_size == 1:
            yield
            return
        from xgboost import collective

        collective.init(**meeting["tracker"], dmlc_task_id=f"{place.world_rank:06d}")
        # If the loop raises, its connections stay open: the others wait, and are killed, so its error is the only one.
        yield
        collective.finalize()
        if self._tracker is not None:
            self._tracker.wait_for()


class XGBoostTrainer(DataParallelTrainer):
    """Trains gradient-boosted trees on all rows of the data set "train", of which each worker has a part.

    >>> trainer = train.XGBoostTrainer(
    ...     params={"objective": "binary:logistic"}, label_column="label", num_boost_round=20,
    ...     datasets={"train": dataset, "valid": other}, scaling_config=train.ScalingConfig(num_workers=2))
    >>> result = trainer.fit()
    >>> result.metrics["valid-logloss"], train.XGBoostTrainer.get_model(result.checkpoint)

    After each round, the metrics of all data sets are reported. A worker keeps its rows in memory.
    """

    config_name = "params"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        label_column: str | None = None,
        num_boost_round: int = 10,
        train_loop_config: Mapping[str, Any] | None = None,
        checkpoint_frequency: int = 1,
        scaling_config: ScalingConfig | None = None,
        run_config: TuneRunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        """params, label_column and num_boost_round; or a loop of your own, in which `xgboost.train` uses all workers.

        params                 of xgboost.train; a Tuner searches them: param_space={"params": {"eta": …}}
        label_column           the column with the labels; all others are features
        num_boost_round        number of rounds
        train_loop_per_worker  a loop of your own, with train_loop_config
        checkpoint_frequency   rounds between checkpoints; there is always one at the end
        """
        _xgboost()
        if (train_loop_per_worker is None) == (label_column is None):
            raise ConfigError("XGBoostTrainer needs either params and label_column, or train_loop_per_worker")
        if train_loop_per_worker is None:
            integer(num_boost_round, "num_boost_round", 1)
            integer(checkpoint_frequency, "checkpoint_frequency", 1)
            label = checked_label_column(label_column)
            check_train_set(datasets, "XGBoostTrainer")
            loop: Callable[..., Any] = partial(_boost, label, num_boost_round, checkpoint_frequency)
        else:
            loop = train_loop_per_worker
            self.config_name = "train_loop_config"
        super().__init__(
            loop,
            params if train_loop_per_worker is None else train_loop_config,
            XGBoostBackend(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
        )

    @staticmethod
    def get_model(checkpoint: Checkpoint) -> Any:
        """The xgboost.Booster of a checkpoint."""
        if not (Path(checkpoint.path) / MODEL).is_file():
            raise CheckpointError(f"{checkpoint} has no {MODEL}: it was not written by an XGBoostTrainer")
        booster = _xgboost().Booster()
        booster.load_model(Path(checkpoint.path) / MODEL)
        return booster


def _boost(label: str, rounds: int, frequency: int, config: dict[str, Any]) -> None:
    """The training loop."""
    xgboost = _xgboost()
    here = session.current_shards()
    matrices = {name: _matrix(shard.materialize(), label) for name, shard in here.items()}
    booster = None
    if (checkpoint := session.get_checkpoint()) is not None:
        booster = XGBoostTrainer.get_model(checkpoint)
    left = rounds - (0 if booster is None else booster.num_boosted_rounds())
    if left <= 0:
        return
    cpus = session.get_context().resources.get("cpu", 1)
    xgboost.train(
        {"nthread": max(1, int(cpus)), **config},
        matrices["train"],
        num_boost_round=left,
        evals=[(matrix, name) for name, matrix in matrices.items()],
        xgb_model=booster,
        callbacks=[_reporting(xgboost, rounds, frequency)],
        verbose_eval=False,
    )


def _matrix(rows: Mapping[str, Any], label: str) -> Any:
    features, labels, names = table(rows, label)
    return _xgboost().DMatrix(features, label=labels, feature_names=names)


def _reporting(xgboost: Any, rounds: int, frequency: int) -> Any:
    """A callback of xgboost that reports after each round."""

    class Reporting(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:  # noqa: ARG002
            done = model.num_boosted_rounds()
            metrics = {  # floats of Python: xgboost's are of numpy
                f"{data}-{name}": float(values[-1]) for data, log in evals_log.items() for name, values in log.items()
            }
            if session.get_context().get_world_rank() != 0 or (done % frequency and done != rounds):
                session.report(metrics)
                return False
            with tempfile.TemporaryDirectory() as folder:
                model.save_model(Path(folder) / MODEL)
                session.report(metrics, checkpoint=Checkpoint.from_directory(folder))
            return False

    return Reporting()
