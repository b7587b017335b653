"""TorchTrainer with one worker, in this process: failures, checkpoints, the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import distributed

import outplay
from outplay import preprocessors, train
from outplay.errors import CheckpointError, ConfigError, TrainError
from tests.train.conftest import resuming
from tests.train.rows import PARTS, X, chain


@pytest.fixture(autouse=True, scope="module")
def _engine() -> Iterator[None]:
    outplay.init("inline")
    yield
    outplay.shutdown()


def fit(loop: Any, folder: Path, run: dict[str, Any] | None = None, **settings: Any) -> train.Result:
    config = train.RunConfig(**{"storage_path": folder, "verbose": 0, **(run or {})})
    return train.TorchTrainer(loop, run_config=config, **settings).fit()


def test_a_failure_costs_no_result(tmp_path: Path) -> None:
    run = {
        "failure_config": train.FailureConfig(max_failures=1),
        "checkpoint_config": train.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score"),
    }
    result = fit(resuming, tmp_path, run, train_loop_config={"fails_at": 3, "folder": str(tmp_path)})
    assert result.error is None
    assert (result.metrics["i"], result.metrics["first"]) == (4, 3)
    assert list(result.metrics_dataframe["i"]) == [0, 1, 2, 3, 4]
    kept = [(Path(each.path, "i").read_text(), metrics["i"]) for each, metrics in result.best_checkpoints]
    assert kept == [("1", 1), ("2", 2), ("4", 4)]


def test_the_inline_engine_has_one_worker(tmp_path: Path) -> None:
    result = fit(resuming, tmp_path, train_loop_config={})
    assert (result.error, result.metrics["i"]) == (None, 4)
    assert not distributed.is_initialized()
    assert "RANK" not in os.environ
    with pytest.raises(ConfigError, match="needs processes"):
        fit(resuming, tmp_path, scaling_config=train.ScalingConfig(num_workers=2))


def test_an_error_has_the_traceback_of_the_loop(tmp_path: Path) -> None:
    def helper() -> None:
        raise LookupError("the data is gone")

    def loop() -> None:
        train.report({"i": 1})
        helper()

    result = fit(loop, tmp_path)
    assert isinstance(result.error, TrainError)
    assert "rank 0 of 1 raised" in str(result.error)
    assert "in helper" in str(result.error)
    assert str(result.error).rstrip().endswith("LookupError: the data is gone")
    assert str(Path(train.__file__).parent) not in str(result.error)  # the user's frames only
    assert result.metrics["i"] == 1


def test_scikit_learn(tmp_path: Path) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    estimator, given = linear_model.LogisticRegression(), chain()
    trainer = train.SklearnTrainer(
        estimator, label_column="label", params={"C": 2.0}, datasets=PARTS, preprocessor=given, cv=3,
        run_config=train.RunConfig(storage_path=tmp_path, verbose=0),
    )  # fmt: skip
    result = trainer.fit()
    assert result.error is None, result.error
    assert result.metrics["valid_score"] > 0.9
    assert len(result.metrics["cv_scores"]) == 3
    assert not given.is_fitted  # the user's own is not changed
    assert result.checkpoint is not None
    with pytest.raises(CheckpointError, match="trust=True"):
        train.SklearnTrainer.get_model(result.checkpoint)
    model = train.SklearnTrainer.get_model(result.checkpoint, trust=True)
    fitted = preprocessors.load(result.checkpoint.path)  # the preprocessor is in the checkpoint
    rows = fitted.transform(PARTS["valid"])
    features = np.concatenate([rows["x"], rows["kind"][:, None]], -1)
    assert model.get_params()["C"] == 2.0
    assert model.score(features, rows["label"]) == result.metrics["valid_score"]
    np.testing.assert_allclose(fitted.preprocessors[0].learned_of("x")["shift"], X[:300].mean(0))  # of "train" alone


@pytest.mark.parametrize("checkpoint", ["none", 5, train.Checkpoint("/none")])
def test_a_checkpoint_that_is_no_folder_is_refused(checkpoint: Any, tmp_path: Path) -> None:
    result = fit(lambda: train.report({"i": 1}, checkpoint=checkpoint), tmp_path)
    assert isinstance(result.error, TrainError)
    last = str(result.error).rstrip().splitlines()[-1]
    expected = "checkpoint must be train.Checkpoint.from_directory(folder), and the folder must exist"
    assert last == f"outplay.errors.CheckpointError: {expected}: {checkpoint!r}"


@pytest.mark.parametrize("run", [{"stop": 5}, {"callbacks": [5]}, {"name": "a/b"}, {"stop": {"i": "x"}}])
def test_a_wrong_run_config_is_refused_before_anything_is_written(run: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(run))}"):
        fit(lambda: None, tmp_path, run)
    assert not list(tmp_path.iterdir())


def test_metrics_of_xgboost_are_floats(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    result = train.XGBoostTrainer(
        params={"objective": "binary:logistic"},
        label_column="label",
        num_boost_round=1,
        datasets={"train": {"x": X, "label": (X[:, 0] > 0).astype(np.int64)}},
        run_config=train.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.error is None, result.error
    assert type(result.metrics["train-logloss"]) is float
