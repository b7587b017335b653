"""tune.run with functions: results, stops, failures, the analysis."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outplay
from outplay import tune
from outplay.errors import ConfigError, OutplayError, ResourceError, RunError, SerializationError, TuneError
from outplay.tune import ExperimentAnalysis

Run = Callable[..., ExperimentAnalysis]
XY = {"x": tune.grid_search([-1, -0.5, 0, 0.5, 1]), "y": tune.grid_search([-1, -0.5, 0, 0.5, 1])}


def distance(config: dict[str, Any]) -> None:
    tune.report(score=math.sqrt((config["x"] ** 2 + config["y"] ** 2) / 2))


def counting(config: dict[str, Any]) -> None:
    for i in range(config.get("steps", 5)):
        tune.report({"value": config["x"] * i, "i": i})


def test_a_grid(run: Run) -> None:
    result = run(distance, config=XY)
    assert len(result) == 25
    assert result.get_best_config(metric="score", mode="min") == {"x": 0, "y": 0}
    assert result.get_best_config(metric="score", mode="max") == {"x": -1, "y": -1}
    assert all(trial.status == "TERMINATED" for trial in result.trials)


def test_what_a_function_returns_is_its_last_result(run: Run) -> None:
    assert run(lambda config: {"v": config["x"]}, config={"x": 3}).trials[0].last_result["v"] == 3
    assert run(lambda config: 2.5).trials[0].last_result["_metric"] == 2.5
    assert run(lambda config: None).trials[0].last_result == {}


def test_results_have_their_iteration_and_time(run: Run) -> None:
    result = run(counting, config={"x": 2})
    curve = result.curves()["00000"]
    assert [r["training_iteration"] for r in curve] == [1, 2, 3, 4, 5]
    assert [r["value"] for r in curve] == [0, 2, 4, 6, 8]
    assert curve[-1]["time_total_s"] >= curve[0]["time_total_s"] > 0


def test_numpy_values_and_nan(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report(a=np.float32(0.5), b=np.arange(2), c=math.nan, d={"e": np.int64(3)})

    result = run(train)
    last = result.trials[0].last_result
    assert (last["a"], last["b"], last["d"]) == (0.5, [0, 1], {"e": 3})
    read = ExperimentAnalysis(result.path)
    assert read.trials[0].last_result["c"] is None
    assert read.get_best_trial("d/e", "max").id == "00000"


@pytest.mark.parametrize("slots", [1, 3])
def test_random_values_do_not_depend_on_how_many_trials_run_at_once(run: Run, slots: int) -> None:
    found = run(
        counting, config={"x": tune.uniform(0, 1), "steps": tune.randint(1, 4)}, num_samples=6, seed=5,
        max_concurrent_trials=slots, resources_per_trial={"cpu": 0},
    )  # fmt: skip
    again = run(counting, config={"x": tune.uniform(0, 1), "steps": tune.randint(1, 4)}, num_samples=6, seed=5)
    assert [trial.config for trial in found.trials] == [trial.config for trial in again.trials]
    assert [t.last_result["value"] for t in found.trials] == [t.last_result["value"] for t in again.trials]


# Stopping.


def test_stop_conditions(run: Run) -> None:
    def ends(stop: Any) -> list[int]:
        config = {"x": tune.grid_search([1, 2]), "steps": 8}
        return [trial.iteration for trial in run(counting, config=config, stop=stop).trials]

    assert ends({"training_iteration": 3}) == [3, 3]
    assert ends({"value": 4}) == [5, 3]
    assert ends(lambda trial_id, result: result["i"] >= int(trial_id) + 1) == [2, 3]
    assert ends(tune.MaximumIterationStopper(4)) == [4, 4]
    assert ends([tune.MaximumIterationStopper(4), {"value": 2}]) == [3, 2]
    with pytest.raises(ConfigError, match="the function must take two arguments"):
        ends(lambda result: True)
    with pytest.raises(ConfigError, match="stop must be a dict"):
        ends(3)


def test_plateaus(run: Run) -> None:
    def flat(config: dict[str, Any]) -> None:
        for i in range(30):
            tune.report(value=min(i, 6))

    stopper = tune.TrialPlateauStopper("value", std=0.0, num_results=3)
    assert run(flat, stop=stopper).trials[0].iteration == 9  # 6, 6, 6
    stopper = tune.ExperimentPlateauStopper("value", std=0.0, top=4, mode="max")
    result = run(flat, num_samples=5, stop=stopper, max_concurrent_trials=1)
    assert [trial.iteration for trial in result.trials] == [10]


def test_a_stopped_function_runs_its_finally_block(run: Run, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        try:
            while True:
                try:
                    tune.report(x=1)
                except Exception:  # does not catch the stop
                    (tmp_path / "caught").touch()
        finally:
            (tmp_path / "closed").touch()

    run(train, stop={"training_iteration": 2})
    assert (tmp_path / "closed").exists()
    assert not (tmp_path / "caught").exists()


def test_the_time_budget(run: Run) -> None:
    def slow(config: dict[str, Any]) -> None:
        while True:
            time.sleep(0.02)
            tune.report(x=1)

    started = time.monotonic()
    result = run(slow, num_samples=50, time_budget_s=1.0)
    assert time.monotonic() - started < 60
    assert all(trial.status == "TERMINATED" for trial in result.trials)
    assert "time budget" in result.trials[0].reason


# Failures.


def failing(config: dict[str, Any]) -> None:
    tune.report(x=config["x"])
    if config["x"] == 1:
        raise ValueError("one is wrong")


def test_a_trial_that_raises_is_recorded_and_the_others_go_on(run: Run) -> None:
    with pytest.raises(TuneError, match="1 trial has failed of 3; trial 00001: ValueError: one is wrong") as caught:
        run(failing, config={"x": tune.grid_search([0, 1, 2])})
    analysis = caught.value.analysis
    assert [str(trial.status) for trial in analysis.trials] == ["TERMINATED", "ERROR", "TERMINATED"]
    assert 'raise ValueError("one is wrong")' in analysis.errors["00001"]
    assert "outplay/tune" not in analysis.errors["00001"], "the user's own frames only"
    assert ExperimentAnalysis(analysis.path).errors == analysis.errors


def test_failures_without_raising(run: Run) -> None:
    result = run(failing, config={"x": tune.grid_search([0, 1, 2])}, raise_on_failed_trial=False)
    assert list(result.errors) == ["00001"]
    assert result.get_best_config("x", "max") == {"x": 2}


def test_fail_fast(run: Run) -> None:
    result = run(
        failing, config={"x": tune.grid_search([1, 0, 2, 3])}, fail_fast=True, raise_on_failed_trial=False,
        max_concurrent_trials=1,
    )  # fmt: skip
    assert len(result) == 1


def test_a_failed_trial_is_tried_again_from_its_checkpoint(run: Run, tmp_path: Path) -> None:
    def flaky(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = 0 if checkpoint is None else json.loads(Path(checkpoint.path, "state.json").read_text())
        for i in range(start, 6):
            folder = tmp_path / "own"
            folder.mkdir(exist_ok=True)
            (folder / "state.json").write_text(str(i + 1))
            tune.report(i=i, checkpoint=tune.Checkpoint.from_directory(folder) if i % 2 else None)
            if i == 4 and start == 0:
                raise RuntimeError("once")

    result = run(flaky, max_failures=1)
    assert [r["i"] for r in result.curves()["00000"]] == [0, 1, 2, 3, 4, 5], "4 is not reported twice"
    assert result.trials[0].failures == 1
    with pytest.raises(TuneError, match="once"):
        run(flaky)


def test_a_process_that_dies_costs_time_not_data(run: Run, tmp_path: Path) -> None:
    def fragile(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = 0 if checkpoint is None else int(Path(checkpoint.path, "i").read_text())
        for i in range(start, 5):
            folder = tmp_path / f"own{config['x']}"
            folder.mkdir(exist_ok=True)
            (folder / "i").write_text(str(i + 1))
            if i == 3 and config["x"] == 1 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), 9)
            tune.report(i=i, checkpoint=str(folder))

    result = run(fragile, config={"x": tune.grid_search([0, 1, 2])})
    assert (tmp_path / "died").exists()
    assert all([r["i"] for r in curve] == [0, 1, 2, 3, 4] for curve in result.curves().values())


def test_a_process_that_dies_again_and_again(run: Run) -> None:
    def crash(config: dict[str, Any]) -> None:
        os.kill(os.getpid(), 9)

    with pytest.raises(TuneError, match="its process died 4 times"):
        run(crash)


def test_sys_exit_is_a_failure(run: Run) -> None:
    def leave(config: dict[str, Any]) -> None:
        raise SystemExit(3)

    with pytest.raises(TuneError, match="SystemExit: 3"):
        run(leave)


# Wrong use.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainable": 3}, "tune.run takes a function of the config, a class with step"),
        ({"trainable": "PPP"}, "no algorithm 'PPP'"),
        ({"trainable": lambda: None}, "must take one argument: the config"),
        ({"trainable": Path}, "Path is no trainable: it has no method step"),
        ({"mode": "maximum", "metric": "x"}, "mode must be 'min' or 'max', not 'maximum'"),
        ({"num_samples": 0}, "num_samples must be an integer of at least 1"),
        ({"search_alg": "optuna"}, "search_alg must be a Searcher"),
        ({"scheduler": 3}, "scheduler must be a Scheduler"),
        ({"max_concurrent_trials": 0}, "max_concurrent_trials must be an integer of at least 1, not 0"),
        ({"resources_per_trial": {"cpus": 1}}, "resources_per_trial: no resource 'cpus'. Did you mean 'cpu'"),
        ({"resources_per_trial": {"cpu": -1}}, "cpu must be a number of at least 0, not -1"),
        ({"name": "a/b"}, "'a/b' cannot be used for a folder"),
        ({"resume": "AUTOO"}, "resume: unknown mode 'AUTOO'. Did you mean 'AUTO'"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, not 0"),
        ({"seeds": 2, "config": {"seed": 1}}, "config has a seed, but seeds sets it"),
        ({"report_seeds": 2}, "report_seeds needs a metric and a mode"),
        ({"aggregate": "median"}, "aggregate must be 'mean' or 'iqm', not 'median'"),
        ({"config": [1]}, "config must be a dict"),
        ({"time_budget_s": "x"}, "time_budget_s must be a number of seconds above 0, not 'x'"),
        ({"time_budget_s": math.nan}, "time_budget_s must be a number of seconds above 0"),
        ({"fail_fast": "x"}, "fail_fast must be True or False, not 'x'"),
        ({"seed": "x"}, "seed must be an integer of at least 0, not 'x'"),
        ({"callbacks": [3]}, "callbacks must be objects of tune.Callback, not 3"),
        ({"checkpoint_freq": -1}, "checkpoint_freq must be an integer of at least 0, not -1"),
        ({"trainable": "PPO", "config": {"env": "CartPole-v1"}}, "without a stop condition the trials never end"),
        ({"config": {"a/b": tune.uniform(0, 1), "a": {"b": tune.uniform(0, 1)}}}, "two variables .* named 'a/b'"),
        (
            {"config": {"a": tune.uniform(0, 1)}, "points_to_evaluate": [{"b": 1}]},
            "points_to_evaluate: no variable 'b'",
        ),
        ({"config": {"a": tune.uniform(0, 1)}, "points_to_evaluate": [{"a": 5}]}, "a=5 is not in {'uniform': "),
    ],
)
def test_wrong_settings_are_named_and_nothing_is_written(run: Run, tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(given.pop("trainable", counting), **given)
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_begin_leaves_nothing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="1000"):
        run(counting, config={"x": 1}, resources_per_trial={"cpu": 1000}, name="s")
    with pytest.raises(SerializationError):
        run(counting, config={"x": threading.Lock()}, name="s")
    with pytest.raises(ConfigError, match="stop: the function raised KeyError: 'zz'"):
        run(counting, config={"x": 1}, stop=lambda trial_id, result: result["zz"], name="s")
    assert list(tmp_path.iterdir()) == []


def test_a_report_from_a_thread(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        for i in range(3):
            thread = threading.Thread(target=lambda i=i: tune.report(i=i))
            thread.start()
            thread.join()

    assert [r["i"] for r in run(train).curves()["00000"]] == [0, 1, 2]
    assert [r["i"] for r in run(train, stop={"training_iteration": 2}).curves()["00000"]] == [0, 1]


def test_a_trial_without_the_metric_is_told_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run(counting, config={"x": tune.grid_search([1, 2])}, metric="score", mode="max")
    assert [m for m in caplog.messages if "without the metric 'score': it reported" in m]
    assert len([m for m in caplog.messages if "without the metric" in m]) == 1


@pytest.mark.parametrize("maker", [tune.choice, tune.grid_search])
def test_arrays_and_functions_as_values(run: Run, maker: Any) -> None:
    config = {"a": maker([np.ones(2), np.zeros(3)]), "f": maker([math.sin, math.cos])}

    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"s": float(config["a"].sum()) + config["f"](0)}

    first = run(train, config=config, num_samples=3, name="s")
    more = run(train, config=config, num_samples=5, name="s", resume=True)
    assert {t.last_result["s"] for t in more.trials} <= {0.0, 1.0, 2.0, 3.0}
    assert [t.last_result for t in more.trials[: len(first)]] == [t.last_result for t in first.trials]


def test_report_outside_of_a_trial() -> None:
    with pytest.raises(OutplayError, match=r"tune.report\(\) was called outside of a trial"):
        tune.report(x=1)


def test_a_wrong_report_and_checkpoint(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report([1]) if config["x"] else tune.report(a=1, checkpoint="/does/not/exist")

    result = run(train, config={"x": tune.grid_search([True, False])}, raise_on_failed_trial=False)
    first, second = result.errors.values()
    assert "tune.report() takes a dict of metrics" in first
    assert "'/does/not/exist' is no folder" in second


def test_a_study_is_not_overwritten(run: Run) -> None:
    run(counting, config={"x": 1}, name="mine")
    with pytest.raises(RunError, match=r"there is a study in .*mine already; continue it with resume=True"):
        run(counting, config={"x": 1}, name="mine")


def test_an_unknown_metric_is_named(run: Run) -> None:
    result = run(counting, config={"x": 1})
    with pytest.raises(ConfigError, match=r"no trial has reported 'score'; there is .*value"):
        result.get_best_config("score", "max")
    with pytest.raises(ConfigError, match="metric is missing"):
        result.get_best_config()


def test_a_metric_without_a_value_is_told(run: Run) -> None:
    """The return is nan until an episode has ended."""
    result = run(lambda config: tune.report({"v": float("nan")}), metric="v", mode="max")
    with pytest.raises(RunError, match=r"no trial has a value of 'v': it is nan in every result .*; train longer"):
        result.best_config  # noqa: B018


# More ways to use it.


def test_no_results(run: Run) -> None:
    result = run(lambda config: None, metric="v", mode="max")
    with pytest.raises(RunError, match="no trial has reported a result"):
        result.best_config  # noqa: B018
    with pytest.raises(RunError, match="set report_seeds"):
        result.reported  # noqa: B018


def test_scopes(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        for value in config["values"]:
            tune.report(v=value)

    result = run(train, config={"values": tune.grid_search([[9, 0, 0], [1, 1, 5], [4, 4, 4]])}, metric="v", mode="max")
    best = {scope: result.get_best_trial(scope=scope).id for scope in ("last", "all", "avg", "last-5-avg")}
    assert best == {"last": "00001", "all": "00000", "avg": "00002", "last-5-avg": "00002"}
    with pytest.raises(ConfigError, match="scope must be one of"):
        result.get_best_trial(scope="first")


def test_data_frames(run: Run) -> None:
    result = run(counting, config={"x": tune.grid_search([1, 2])}, metric="value", mode="max")
    frame = result.dataframe()
    assert frame["config/x"].tolist() == [1, 2]
    assert frame["value"].tolist() == [4, 8]
    assert result.dataframe("value", "min")["value"].tolist() == [0, 0]
    assert result.trial_dataframes["00001"]["value"].tolist() == [0, 2, 4, 6, 8]


def test_with_parameters(run: Run) -> None:
    def train(config: dict[str, Any], data: Any, scale: float) -> dict[str, float]:
        return {"v": float(data.sum()) * scale * config["x"]}

    bound = tune.with_parameters(train, data=np.ones(1_000_000), scale=2.0)
    result = run(bound, config={"x": tune.grid_search([1, 2])})
    assert [trial.last_result["v"] for trial in result.trials] == [2e6, 4e6]


def test_with_resources_and_context(run: Run) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        context = tune.get_context()
        Path(context.get_trial_dir(), "note.txt").write_text("kept")
        return {"id": context.get_trial_id(), "cpu": context.get_trial_resources()["cpu"]}

    result = run(tune.with_resources(train, {"cpu": 0.5}), num_samples=2)
    assert [(t.last_result["id"], t.last_result["cpu"]) for t in result.trials] == [("00000", 0.5), ("00001", 0.5)]
    assert (result.path / "trial_00001" / "note.txt").read_text() == "kept"


def test_callbacks(run: Run) -> None:
    seen: list[str] = []

    class Notes(tune.Callback):
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            seen.append(f"start {trial.id}")

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            seen.append(f"result {trial.id} {result['x']}")

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            seen.append(f"complete {trial.id}")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            seen.append(f"error {trial.id}")

        def on_experiment_end(self, trials: Any, **info: Any) -> None:
            seen.append(f"end {len(trials)}")

    run(
        failing, config={"x": tune.grid_search([0, 1])}, callbacks=[Notes()], max_concurrent_trials=1,
        raise_on_failed_trial=False,
    )  # fmt: skip
    assert seen == [
        *("start 00000", "result 00000 0", "complete 00000"),
        *("start 00001", "result 00001 1", "error 00001", "end 2"),
    ]


def test_the_tuner(tmp_path: Path) -> None:
    tuner = tune.Tuner(
        counting,
        param_space={"x": tune.uniform(0, 1), "steps": 3},
        tune_config=tune.TuneConfig(metric="value", mode="max", num_samples=4),
        run_config=tune.RunConfig(name="mine", storage_path=tmp_path, verbose=0),
    )
    results = tuner.fit()
    best = results.get_best_result()
    assert len(results) == 4
    assert best.metrics["value"] == max(result.metrics["value"] for result in results)
    assert best.config["x"] == best.metrics["value"] / 2
    assert results.num_errors == 0
    assert tune.Tuner.can_restore(tmp_path / "mine")
    restored = tune.Tuner.restore(tmp_path / "mine", counting, param_space={"x": tune.uniform(0, 1), "steps": 3})
    assert len(restored.get_results()) == 4


def test_trials_may_use_the_engine(run: Run) -> None:
    def train(config: dict[str, Any]) -> dict[str, int]:
        @outplay.remote
        def square(x: int) -> int:
            return x * x

        return {"v": sum(outplay.get([square.options(num_cpus=0).remote(x) for x in range(config["x"])]))}

    result = run(train, config={"x": tune.grid_search([2, 3, 4])})
    assert [trial.last_result["v"] for trial in result.trials] == [1, 5, 14]


class Counter(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.x = config["start"]

    def step(self) -> dict[str, Any]:
        self.x += 1
        return {"x": self.x, "done": self.x >= 5}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "x.txt").write_text(str(self.x))

    def load_checkpoint(self, folder: str) -> None:
        self.x = int(Path(folder, "x.txt").read_text())


def test_a_class(run: Run) -> None:
    result = run(Counter, config={"start": tune.grid_search([0, 3])}, checkpoint_freq=2, metric="x", mode="max")
    assert [trial.iteration for trial in result.trials] == [5, 2]
    first = result.trials[0]
    assert [iteration for iteration, _ in first.checkpoints] == [2, 4]
    checkpoint = result.get_last_checkpoint(first)
    assert checkpoint is not None
    assert Path(checkpoint.path, "x.txt").read_text() == "4"


def test_a_class_without_a_setup(run: Run) -> None:
    class Plain:
        def __init__(self, config: dict[str, Any]) -> None:
            self.x = config["x"]

        def step(self) -> Any:
            return {"x": self.x, "done": True} if self.x else 3

    assert run(Plain, config={"x": 2}).trials[0].last_result["x"] == 2
    with pytest.raises(TuneError, match=r"Plain.step\(\) must return a dict of metrics, not 3"):
        run(Plain, config={"x": 0})
