"""Schedulers in real studies: trials pause, take turns, are copied, and are replayed from the study's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay import tune
from outplay.errors import ConfigError
from outplay.tune import ExperimentAnalysis
from outplay.tune.schedulers import (
    ASHAScheduler,
    HyperBandForBOHB,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
)
from outplay.tune.search import Variants

Run = Callable[..., ExperimentAnalysis]


class Rising(tune.Trainable):
    """The score rises by `lr` in each iteration, and loses a tenth."""

    def setup(self, config: dict[str, Any]) -> None:
        self.lr, self.score = config["lr"], 0.0

    def step(self) -> dict[str, Any]:
        self.score = 0.9 * self.score + self.lr
        return {"score": self.score}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "score.json").write_text(json.dumps(self.score))

    def load_checkpoint(self, folder: str) -> None:
        self.score = json.loads(Path(folder, "score.json").read_text())


def test_asha_and_bohb_stop_trials_early(run: Run) -> None:
    given = {"config": {"lr": tune.grid_search([4, 3, 2, 1])}, "metric": "score", "mode": "max"}
    asha = run(Rising, scheduler=ASHAScheduler(max_t=4, reduction_factor=2), max_concurrent_trials=1, **given)
    assert [trial.iteration for trial in asha.trials] == [4, 1, 1, 1]
    budgets: list[tuple[str, float]] = []

    class Told(Variants):
        def on_result(self, trial_id: str, result: dict[str, Any]) -> None:
            if "hyperband_info" in result:
                budgets.append((trial_id, result["hyperband_info"]["budget"]))

    bohb = run(
        Rising,
        scheduler=HyperBandForBOHB(max_t=4, reduction_factor=2),
        search_alg=Told(),
        max_concurrent_trials=1,
        **given,
    )
    assert [trial.iteration for trial in bohb.trials] == [4, 2, 1, 1]
    assert budgets == [("00000", 1), ("00001", 1), ("00002", 1), ("00003", 1), ("00000", 2), ("00001", 2), ("00000", 4)]
    # A trial that was paused goes on with the score that it had.
    assert bohb.best_trial is not None
    assert bohb.best_trial.last_result["score"] == pytest.approx(4 * (1 + 0.9 + 0.81 + 0.729))


def population(**more: Any) -> PopulationBasedTraining:
    mutations = {"lr": tune.uniform(0, 100)}
    return PopulationBasedTraining(
        "training_iteration", perturbation_interval=2, hyperparam_mutations=mutations, **more
    )


@pytest.mark.parametrize("synch", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_population_takes_turns_and_is_replayed(run: Run, tmp_path: Path, synch: bool) -> None:
    result = run(
        Rising,
        config={"lr": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
        scheduler=population(synch=synch),
        metric="score",
        mode="max",
        stop={"training_iteration": 9},
        max_concurrent_trials=1,
        name="population",
    )
    assert {trial.iteration for trial in result.trials} == {9}
    copied = [trial for trial in result.trials if trial.lineage]
    assert copied
    # With one slot, all four train for an interval before the first one trains for a second.
    assert order(tmp_path / "population")[:4] == ["00000", "00001", "00002", "00003"]
    best = result.best_trial
    assert best is not None
    for trial in {best.id, copied[-1].id}:
        again = run(
            Rising,
            config={"lr": 0.5},
            scheduler=PopulationBasedTrainingReplay.of_study(tmp_path / "population", trial),
            stop={"training_iteration": 9},
            name=f"replay of {trial}".replace(" ", "_"),
        )
        original = next(t for t in result.trials if t.id == trial)
        assert again.trials[0].last_result["score"] == original.last_result["score"]
    assert PopulationBasedTrainingReplay.of_study(tmp_path / "population").steps


def order(folder: Path) -> list[str]:
    from outplay.tune.folder import StudyFolder

    return [entry["trial"] for entry in StudyFolder(folder).entries() if entry["event"] == "start"]


def test_a_constant_setting_becomes_a_variable_and_warm_up_chooses_the_population(run: Run) -> None:
    result = run(
        Rising,
        config={"lr": 3.0},  # all scores are equal
        num_samples=5,
        scheduler=population(initial_trials=5, population_size=2, warm_up_t=1, quantile_fraction=0.5, synch=True),
        metric="score",
        mode="max",
        stop={"training_iteration": 8},
        max_concurrent_trials=2,
    )
    assert sorted(trial.iteration for trial in result.trials) == [1, 1, 1, 8, 8]
    assert {trial.initial_values["lr"] for trial in result.trials} == {3.0}
    assert any(trial.values["lr"] != 3.0 for trial in result.trials)


def test_times_continue_after_a_pause(run: Run) -> None:
    result = run(
        Rising,
        config={"lr": tune.grid_search([1.0, 2.0])},
        scheduler=population(synch=True, resample_probability=0, perturbation_factors=(0.5,)),  # copies are worse
        metric="score",
        mode="max",
        stop={"training_iteration": 8},
    )
    times = [entry["time_total_s"] for entry in result.curves()["00001"]]  # it is paused, but never a copy
    assert result.trials[1].lineage == []
    assert len(times) == 8
    assert times == sorted(times)


def test_a_population_of_functions_without_checkpoints(run: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(5):
            tune.report(score=config["lr"])

    with pytest.raises(ConfigError, match="is to be copied, but it has no checkpoint"):
        run(
            train,
            config={"lr": tune.grid_search([1.0, 2.0])},
            scheduler=population(quantile_fraction=0.5, synch=True),
            metric="score",
            mode="max",
        )
