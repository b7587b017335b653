"""Several seeds per configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay import tune
from outplay.tune import ExperimentAnalysis
from outplay.tune.seeds import aggregated, interquartile_mean, report_seeds, search_seeds

Run = Callable[..., ExperimentAnalysis]


def noisy(config: dict[str, Any]) -> None:
    for i in range(3):
        tune.report(value=config["x"] + i + config["seed"] % 7, seed=config["seed"])


def test_the_interquartile_mean() -> None:
    assert interquartile_mean([0, 1, 2, 9]) == 1.5
    assert interquartile_mean([5]) == 5
    assert interquartile_mean([0, 3, 99]) == pytest.approx((0.25 * 0 + 1 * 3 + 0.25 * 99) / 1.5)
    assert interquartile_mean(list(range(8))) == 3.5


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_the_interquartile_mean_lies_between_the_extremes(values: list[float]) -> None:
    assert min(values) - 1e-9 <= interquartile_mean(values) <= max(values) + 1e-9


def test_seeds_of_the_search_and_of_the_report_differ() -> None:
    assert not set(search_seeds(0, 50)) & set(report_seeds(0, 50))
    assert search_seeds(0, 3) == search_seeds(0, 5)[:3]
    assert search_seeds(0, 3) != search_seeds(1, 3)


def test_aggregated_results() -> None:
    results = [
        {"training_iteration": 2, "time_total_s": 1.0, "v": 1.0, "learner": {"kl": 0.1}, "name": "a", "flag": True},
        {"training_iteration": 3, "time_total_s": 2.0, "v": 4.0, "learner": {"kl": 0.3}, "name": "a", "flag": True},
    ]
    merged = aggregated(results, "mean", ["v"])
    assert merged["v"] == 2.5
    assert merged["v_per_seed"] == [1.0, 4.0]
    assert merged["learner"]["kl"] == pytest.approx(0.2)
    assert (merged["training_iteration"], merged["time_total_s"]) == (3, 2.0)
    assert (merged["name"], merged["flag"]) == ("a", True)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_trial_is_judged_by_the_mean_over_its_seeds(run: Run, slots: int) -> None:
    result = run(
        noisy, config={"x": tune.grid_search([1, 2])}, seeds=3, metric="value", mode="max",
        resources_per_trial={"cpu": 0}, max_concurrent_trials=slots,
    )  # fmt: skip
    seeds = search_seeds(0, 3)
    offset = sum(seed % 7 for seed in seeds) / 3
    for trial, x in zip(result.trials, (1, 2), strict=True):
        assert trial.last_result["value"] == pytest.approx(x + 2 + offset)
        assert trial.last_result["value_per_seed"] == [x + 2 + seed % 7 for seed in seeds]
        assert trial.iteration == 3


def test_the_best_configuration_is_reported_on_other_seeds(run: Run) -> None:
    result = run(noisy, config={"x": tune.grid_search([1, 5, 2])}, seeds=2, report_seeds=3, metric="value", mode="max")
    reported = result.reported
    assert reported.config["x"] == 5
    assert reported.last_result["value_per_seed"] == [5 + 2 + seed % 7 for seed in report_seeds(0, 3)]
    assert len(result.trials) == 3
    read = ExperimentAnalysis(result.path)
    assert read.reported.last_result == reported.last_result


def test_seeds_that_end_at_different_times(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        for i in range(2 + config["seed"] % 3):
            tune.report(value=i)

    result = run(train, seeds=3, metric="value", mode="max")
    lengths = [2 + seed % 3 for seed in search_seeds(0, 3)]
    assert len(set(lengths)) > 1
    trial = result.trials[0]
    assert trial.iteration == max(lengths)
    assert trial.last_result["value_per_seed"] == [length - 1 for length in lengths]


def test_one_seed_that_fails_fails_the_trial(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report(value=1)
        if config["seed"] == search_seeds(0, 2)[1]:
            raise RuntimeError("the second seed")

    result = run(train, seeds=2, num_samples=2, raise_on_failed_trial=False)
    assert all("the second seed" in error for error in result.errors.values())
    assert len(result.errors) == 2


def test_seeds_run_side_by_side(run: Run, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        (tmp_path / f"here_{config['seed']}").touch()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("here_*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        tune.report(together=len(list(tmp_path.glob("here_*"))))

    result = run(train, seeds=2, resources_per_trial={"cpu": 0})
    assert result.trials[0].last_result["together"] == 2
