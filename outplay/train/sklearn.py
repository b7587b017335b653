"""SklearnTrainer: an estimator of scikit-learn, fitted in a worker."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from outplay.errors import CheckpointError, ConfigError
from outplay.train import session
from outplay.train.backends import NoBackend
from outplay.train.configs import ScalingConfig
from outplay.train.tables import table
from outplay.train.trainer import DataParallelTrainer, check_train_set, checked_label_column
from outplay.tune import Checkpoint
from outplay.tune import RunConfig as TuneRunConfig

MODEL = "model.pkl"  # in a checkpoint


class SklearnTrainer(DataParallelTrainer):
    """Fits an estimator to the data set "train", in one worker, and scores it on all other data sets.

    >>> trainer = train.SklearnTrainer(
    ...     RandomForestClassifier(), label_column="label", datasets={"train": dataset, "valid": other}, cv=5)
    >>> result = trainer.fit()
    >>> result.metrics["valid_score"], result.metrics["cv_score_mean"]
    """

    config_name = "params"

    def __init__(
        self,
        estimator: Any,
        *,
        label_column: str,
        params: Mapping[str, Any] | None = None,
        scoring: Any = None,
        cv: Any = None,
        scaling_config: ScalingConfig | None = None,
        run_config: TuneRunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Any = None,
    ) -> None:
        """
        estimator     of scikit-learn, not fitted
        label_column  the column with the labels; all others are features
        params        set on the estimator; a Tuner searches them: param_space={"params": {"max_depth": …}}
        scoring       a name of scikit-learn's scorers, or a function; default: the estimator's score
        cv            cross validation on the data set "train": a number of folds, or a splitter; default: none
        """
        _check_installed()
        if isinstance(estimator, type):
            name = estimator.__name__
            raise ConfigError(f"estimator must be an object of scikit-learn, as {name}(), not the class {name}")
        if not callable(getattr(estimator, "fit", None)) or not callable(getattr(estimator, "set_params", None)):
            raise ConfigError(f"estimator must be one of scikit-learn, as RandomForestClassifier(), not {estimator!r}")
        checked_label_column(label_column)
        if isinstance(scaling_config, ScalingConfig) and scaling_config.num_workers != 1:
            raise ConfigError("scikit-learn fits in one worker: num_workers=1; give it several CPUs and n_jobs instead")
        check_train_set(datasets, "SklearnTrainer")
        super().__init__(
            partial(_fit, estimator, label_column, scoring, cv),
            params,
            NoBackend(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=None,
        )

    @staticmethod
    def get_model(checkpoint: Checkpoint, trust: bool = False) -> Any:
        """The fitted estimator of a checkpoint.

        scikit-learn has no file format but pickle, and reading a pickle runs code: `trust=True` says that you know
        where the file comes from.
        """
        path = Path(checkpoint.path) / MODEL
        if not trust:
            raise CheckpointError(f"{path} is a pickle, and reading it would run its code; if you trust it, trust=True")
        if not path.is_file():
            raise CheckpointError(f"{checkpoint} has no {MODEL}: it was not written by a SklearnTrainer")
        return pickle.loads(path.read_bytes())


def _check_installed() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ConfigError("SklearnTrainer needs scikit-learn: pip install 'outplay[tune]'") from error


def _fit(estimator: Any, label: str, scoring: Any, cv: Any, config: dict[str, Any]) -> None:
    """The training loop."""
    from sklearn.base import clone
    from sklearn.metrics import check_scoring

    shards = session.current_shards()
    try:
        model = clone(estimator).set_params(**config)
    except ValueError as error:
        raise ConfigError(f"params: {error}") from error
    features, labels, _ = table(shards["train"].materialize(), label)
    metrics: dict[str, Any] = {}
    if cv is not None:
        from sklearn.model_selection import cross_validate

        found = cross_validate(model, features, labels, scoring=scoring, cv=cv)["test_score"]
        metrics |= {"cv_score_mean": float(found.mean()), "cv_score_std": float(found.std())}
        metrics["cv_scores"] = found.tolist()
    started = time.perf_counter()
    model.fit(features, labels)
    metrics["fit_time_s"] = time.perf_counter() - started
    scorer = check_scoring(model, scoring)
    for name, shard in shards.items():
        x, y, _ = table(shard.materialize(), label)
        metrics[f"{name}_score"] = float(scorer(model, x, y))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MODEL).write_bytes(pickle.dumps(model))
        session.report(metrics, checkpoint=Checkpoint.from_directory(folder))
