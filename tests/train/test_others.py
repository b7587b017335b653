"""XGBoostTrainer, SklearnTrainer, and a trainer's preprocessor."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import data, preprocessors, train, tune
from outplay.errors import CheckpointError, ConfigError
from tests.train.conftest import Fit, saved
from tests.train.rows import PARTS, ROWS, X, chain


def config(tmp_path: Path, **more: Any) -> train.RunConfig:
    return train.RunConfig(storage_path=tmp_path, verbose=0, **more)


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    with pytest.raises(ConfigError, match="one worker"):
        train.SklearnTrainer(
            linear_model.Ridge(), label_column="y", datasets=PARTS, scaling_config=train.ScalingConfig(num_workers=2)
        )
    for settings, message in (
        ({"estimator": 5}, "estimator must be one of scikit-learn"),
        ({"estimator": linear_model.Ridge}, r"estimator must be an object of scikit-learn, as Ridge\(\), not the"),
        ({"label_column": None}, "label_column must be the name of the column with the labels, not None"),
        ({"scaling_config": 5}, "scaling_config must be a ScalingConfig, not 5"),
        ({"datasets": 5}, "SklearnTrainer needs a data set 'train'"),
    ):
        with pytest.raises(ConfigError, match=message):
            train.SklearnTrainer(
                **{"estimator": linear_model.Ridge(), "label_column": "y", "datasets": PARTS, **settings}  # type: ignore[arg-type]
            )
    with pytest.raises(CheckpointError, match=r"has no model.pkl: it was not written by a SklearnTrainer"):
        train.SklearnTrainer.get_model(train.Checkpoint(tmp_path), trust=True)
    pytest.importorskip("xgboost")
    with pytest.raises(ConfigError, match="either params and label_column"):
        train.XGBoostTrainer(params={})
    with pytest.raises(ConfigError, match="num_boost_round must be at least 1, not 0"):
        train.XGBoostTrainer(label_column="label", num_boost_round=0, datasets=PARTS)
    with pytest.raises(ConfigError, match="label_column must be the name of the column with the labels, not 5"):
        train.XGBoostTrainer(label_column=5, datasets=PARTS)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"has no model.ubj: it was not written by an XGBoostTrainer"):
        train.XGBoostTrainer.get_model(train.Checkpoint(tmp_path))
    with pytest.raises(ConfigError, match="needs a data set 'train'"):
        train.XGBoostTrainer(label_column="label")


class Killer(tune.Callback):
    kills = 0

    def __init__(self, pids: Path) -> None:
        self.pids = pids

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if result["training_iteration"] == 3 and not self.kills:
            self.kills += 1
            os.kill(int((self.pids / "1").read_text()), signal.SIGKILL)


class Located:
    """Writes the process of each worker to a file, when its data is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        if "RANK" in os.environ:
            (self.folder / os.environ["RANK"]).write_text(str(os.getpid()))
        return rows


def boosted(tmp_path: Path, workers: int, **more: Any) -> Any:
    params = {"objective": "binary:logistic", "eval_metric": "error", "max_depth": 3}
    datasets = {name: chain().fit(PARTS["train"]).transform(data.from_arrays(rows)) for name, rows in PARTS.items()}
    datasets["train"] = datasets["train"].map_batches(Located(tmp_path))
    return train.XGBoostTrainer(
        params=params, label_column="label", num_boost_round=6, datasets=datasets,
        scaling_config=train.ScalingConfig(num_workers=workers), run_config=config(tmp_path, **more),
    ).fit()  # fmt: skip


@pytest.mark.slow
def test_xgboost_on_one_worker_is_xgboost(tmp_path: Path, process_engine: None) -> None:
    xgboost = pytest.importorskip("xgboost")
    result = boosted(tmp_path, 1)
    assert result.error is None, result.error
    assert result.metrics["training_iteration"] == 6
    rows = chain().fit(PARTS["train"]).transform(PARTS["train"])
    matrix = xgboost.DMatrix(np.concatenate([rows["x"], rows["kind"][:, None]], -1), label=rows["label"])
    params = {"objective": "binary:logistic", "eval_metric": "error", "max_depth": 3}
    expected = xgboost.train(params, matrix, num_boost_round=6).predict(matrix)
    matrix.feature_names = ["x_0", "x_1", "x_2", "kind"]
    np.testing.assert_allclose(train.XGBoostTrainer.get_model(result.checkpoint).predict(matrix), expected, rtol=1e-6)


@pytest.mark.slow
def test_xgboost_on_two_workers_of_which_one_is_killed(tmp_path: Path, process_engine: None) -> None:
    pytest.importorskip("xgboost")
    killer = Killer(tmp_path)
    result = boosted(tmp_path, 2, callbacks=[killer])
    assert result.error is None, result.error
    assert killer.kills == 1
    assert list(result.metrics_dataframe["training_iteration"]) == [1, 2, 3, 4, 5, 6]
    assert train.XGBoostTrainer.get_model(result.checkpoint).num_boosted_rounds() == 6
    calm = boosted(tmp_path, 2)
    assert result.metrics["valid-error"] == calm.metrics["valid-error"] < 0.15


@pytest.mark.slow
def test_tune_searches_the_parameters_of_xgboost(tmp_path: Path, process_engine: None) -> None:
    pytest.importorskip("xgboost")
    rows = {"x": X, "label": ROWS["label"]}
    trainer = train.XGBoostTrainer(
        params={"objective": "binary:logistic"}, label_column="label", num_boost_round=3, datasets={"train": rows}
    )
    grid = tune.Tuner(
        trainer,
        param_space={"params": {"max_depth": tune.grid_search([1, 4])}},
        tune_config=tune.TuneConfig(metric="train-logloss", mode="min"),
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert grid.num_errors == 0
    assert grid.get_best_result().config["params"]["max_depth"] == 4


@pytest.mark.slow
def test_a_preprocessor_of_a_torch_trainer(fit: Fit) -> None:
    def loop() -> None:
        shard = train.get_dataset_shard("train")
        rows = shard.materialize()
        train.report({"mean": float(rows["x"].mean()), "kinds": sorted(set(rows["kind"].tolist()))}, saved(done=1))

    scaler = chain()
    result = fit(loop, 1, datasets=PARTS, preprocessor=scaler)
    assert result.error is None, result.error
    assert result.metrics["mean"] == pytest.approx(0, abs=1e-9)
    assert result.metrics["kinds"] == [0, 1]
    assert result.checkpoint is not None
    assert preprocessors.load(result.checkpoint.path).is_fitted
    assert not scaler.is_fitted  # the user's own is not changed
