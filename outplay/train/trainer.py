"""Trainers: from a training loop and settings to a Result. A trainer is a study of one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from outplay.arguments import shown
from outplay.errors import ConfigError, ResourceError, RunError, TrainError
from outplay.preprocessors import Preprocessor
from outplay.train.configs import (
    CheckpointConfig,
    RunConfig,
    ScalingConfig,
    TorchConfig,
    checked_loop_config,
)
from outplay.train.coordinator import Plan
from outplay.train.group import check_engine
from outplay.train.worker import Backend
from outplay.tune import Checkpoint, TuneConfig, Tuner
from outplay.tune import Result as TrialResult
from outplay.tune import RunConfig as TuneRunConfig

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """The outcome of a trainer."""

    metrics: dict[str, Any]  # the last ones that were reported
    checkpoint: Checkpoint | None  # the newest
    error: TrainError | None  # its message has the traceback
    path: str  # of the trainer's files
    config: dict[str, Any]  # of the training loop
    _trial: TrialResult

    @property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """All reports, one row each. It is read from disk when it is asked for."""
        return self._trial.metrics_dataframe

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints that were kept, with the metrics that were reported with them."""
        return self._trial.best_checkpoints


class DataParallelTrainer:
    """Runs a training loop on several workers. Base of TorchTrainer, XGBoostTrainer and SklearnTrainer."""

    config_name = "train_loop_config"  # in `param_space` of a Tuner

    def __init__(
        self,
        loop: Callable[..., Any],
        config: Any,
        backend: Backend,
        *,
        scaling_config: ScalingConfig | None,
        run_config: TuneRunConfig | None,
        datasets: Mapping[str, Any] | None,
        preprocessor: Any,
        resume_from_checkpoint: Checkpoint | None,
    ) -> None:
        if not callable(loop):
            raise ConfigError(f"train_loop_per_worker must be a function, not {loop!r}")
        scaling = ScalingConfig() if scaling_config is None else scaling_config
        self.run_config = RunConfig(verbose=0) if run_config is None else run_config
        self._resume: bool | str = False
        self._plan = Plan(
            name=type(self).__name__,
            loop=loop,
            config_name=self.config_name,
            config=checked_loop_config(config, self.config_name),
            backend=backend,
            scaling=_of_type(scaling, ScalingConfig, "scaling_config"),
            datasets=_datasets(datasets),
            preprocessor=preprocessor,
            checkpoints=_checkpoint_config(_of_type(self.run_config, TuneRunConfig, "run_config")),
            checkpoint=_folder(resume_from_checkpoint),
        )
        if preprocessor is not None and not isinstance(preprocessor, Preprocessor):
            raise ConfigError(
                f"preprocessor must be an object of outplay.preprocessors, as StandardScaler(), not {preprocessor!r}"
            )
        if preprocessor is not None and not preprocessor.is_fitted and "train" not in self._plan.datasets:
            raise ConfigError("a preprocessor is fitted to the data set 'train': datasets={'train': …}")

    def fit(self) -> Result:
        """Train. Returns when all workers have ended; an error of theirs is in the result."""
        check_engine(self._plan.scaling)
        one = TuneConfig(max_concurrent_trials=1)  # no resources and no process are kept ready for another
        tuner = Tuner(self.as_trainable(), tune_config=one, run_config=self.run_config, resume=self._resume)
        try:
            return self._result(tuner.fit()[0])
        except ResourceError as error:
            scaling = self._plan.scaling
            raise ResourceError(
                f"{scaling.num_workers} workers with {scaling.worker_resources} each do not fit: {error}; use fewer "
                "workers, or less for each, as resources_per_worker={'CPU': 0.5}"
            ) from error

    def _result(self, trial: TrialResult) -> Result:
        error = None if trial.error is None else TrainError(str(trial.error))
        return Result(trial.metrics, trial.checkpoint, error, trial.path, self._plan.config, trial)

    def as_trainable(self) -> Plan:
        """What `tune.Tuner(trainer, param_space={"train_loop_config": …})` runs."""
        return self._plan

    @property
    def resources_per_trial(self) -> list[dict[str, float]]:
        return self._plan.resources_per_trial

    @classmethod
    def can_restore(cls, path: str | Path) -> bool:
        """Whether there is an interrupted or finished training in this folder."""
        return Tuner.can_restore(path)

    @classmethod
    def restore(cls, path: str | Path, *args: Any, **settings: Any) -> Self:
        """A trainer that continues the one in this folder from its newest checkpoint. Give the same arguments again.

        `path` is storage_path/name.
        """
        folder = Path(path).expanduser()
        if not cls.can_restore(folder):
            raise RunError(f"there is no training to continue in {folder}")
        run = settings.pop("run_config", None) or RunConfig(verbose=0)
        settings["run_config"] = type(run)(**{**vars(run), "name": folder.name, "storage_path": folder.parent})
        trainer = cls(*args, **settings)
        trainer._resume = "LOCAL+ERRORED"
        return trainer


class TorchTrainer(DataParallelTrainer):
    """Trains a PyTorch model with a loop of your own on several workers.

    >>> def loop(config):
    ...     model = train.torch.prepare_model(nn.Linear(4, 1))
    ...     for epoch in range(config["epochs"]):
    ...         for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=32):
    ...             …
    ...         train.report({"loss": loss.item()})
    >>> trainer = train.TorchTrainer(loop, train_loop_config={"epochs": 10}, datasets={"train": dataset},
    ...                              scaling_config=train.ScalingConfig(num_workers=2))
    >>> trainer.fit().metrics["loss"]
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: TuneRunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        """Settings are checked here, the content of run_config by `fit`, before it writes anything.

        train_loop_per_worker   a function of the config, or without arguments; it runs in each worker
        train_loop_config       the config
        torch_config            the process group of torch.distributed
        scaling_config          number of workers and their resources; default: one worker with one CPU
        run_config              where results are stored, when to stop, how failures are handled; default: silent
        datasets                data sets by name, each an outplay.data.Dataset, a dict of arrays or a data frame
        preprocessor            fitted to the data set "train" unless it is fitted already; transforms all data sets
        resume_from_checkpoint  what `train.get_checkpoint()` returns at the start
        """
        from outplay.train.backends import TorchBackend

        config = _of_type(TorchConfig() if torch_config is None else torch_config, TorchConfig, "torch_config")
        if config.needs_gpus and not getattr(scaling_config, "use_gpu", False):
            raise ConfigError(
                f"torch_config: backend {config.backend!r} needs GPUs: ScalingConfig(use_gpu=True), or backend='gloo'"
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config,
            TorchBackend(config),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
        )


def _of_type(value: Any, kind: type[Any], name: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, not {value!r}")
    return value


def _folder(checkpoint: Any) -> str | None:
    """The folder of `resume_from_checkpoint`."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError(
            f"resume_from_checkpoint must be train.Checkpoint.from_directory(folder), not {shown(checkpoint)}"
        )
    folder = Path(checkpoint.path).expanduser().absolute()
    if not folder.is_dir() or not any(folder.iterdir()):
        what = "is empty" if folder.is_dir() else "does not exist"
        raise ConfigError(f"resume_from_checkpoint: the folder {folder} {what}; give one that a training has written")
    return str(folder)


def _checkpoint_config(run: TuneRunConfig) -> CheckpointConfig:
    given = run.checkpoint_config
    return given if isinstance(given, CheckpointConfig) else CheckpointConfig(**vars(given))


def _datasets(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Data sets by name. Dicts of arrays and data frames are converted."""
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"datasets must be a dict of data sets by name, not {type(given).__name__}")
    return {str(name): _dataset(value, str(name)) for name, value in (given or {}).items()}


def check_train_set(datasets: Any, who: str) -> None:
    """Raise ConfigError if there is no data set "train"."""
    if not isinstance(datasets, Mapping) or "train" not in datasets:
        raise ConfigError(f"{who} needs a data set 'train': datasets={{'train': …}}")


def checked_label_column(label_column: Any) -> str:
    if not isinstance(label_column, str) or not label_column:
        raise ConfigError(f"label_column must be the name of the column with the labels, not {shown(label_column)}")
    return label_column


def _dataset(value: Any, name: str) -> Any:
    if all(callable(getattr(value, method, None)) for method in ("shard", "iter_batches", "map_batches")):
        return value
    from outplay import data

    if isinstance(value, Mapping):
        return data.from_arrays(dict(value))
    if type(value).__name__ == "DataFrame":
        return data.from_pandas(value)
    raise ConfigError(
        f"datasets: {name!r} must be an outplay.data.Dataset, a dict of arrays or a data frame, not "
        f"{type(value).__name__}"
    )
