"""Population-based training of algorithms: recorded, resumed and replayed, bit by bit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import tune
from outplay.tune import ExperimentAnalysis
from outplay.tune.folder import StudyFolder
from outplay.tune.schedulers import (
    Clone,
    Decisions,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    Scheduler,
)

SMALL = {"env": "CartPole-v1", "num_workers": 0, "num_envs": 2, "train_batch_size": 64, "seed": 3}
LR = tune.loguniform(1e-5, 1e-1)
PROGRAM = """
import sys
from outplay import tune
from outplay.tune.schedulers import PopulationBasedTraining
lr = tune.loguniform(1e-5, 1e-1)
tune.run(
    "PPO",
    config={**SETTINGS, "lr": lr},
    num_samples=4, stop={"training_iteration": 8}, metric="episode_return_mean", mode="max",
    scheduler=PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"lr": lr}, quantile_fraction=0.5,
        synch=True,
    ),
    name="s", storage_path=sys.argv[1], resume="AUTO", verbose=0, max_concurrent_trials=2,
)
""".replace("SETTINGS", repr(SMALL))


def weights(folder: Path) -> str:
    path = folder / "checkpoints" / "checkpoint_000008" / "weights.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def start(tmp_path: Path, folder: str) -> subprocess.Popen[bytes]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return subprocess.Popen([sys.executable, str(tmp_path / "program.py"), str(tmp_path / folder)])


def clones(folder: Path) -> list[Any]:
    found = []
    for entry in StudyFolder(folder).entries():
        for trial, decision in entry.get("decisions", {}).items():
            if isinstance(decision, dict):
                found.append((trial, decision["clone"], decision["iteration"], decision["values"]))
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_population_that_is_killed_and_one_that_is_replayed(tmp_path: Path) -> None:
    """Synchronous PBT: the same copies and weights after kills; and each trial again, from its lineage alone."""
    assert start(tmp_path, "undisturbed").wait(timeout=300) == 0
    copies = clones(tmp_path / "undisturbed" / "s")
    assert copies, "something was copied"

    journal = tmp_path / "killed" / "s" / "journal.jsonl"
    for results in (5, 14, 22):
        process = start(tmp_path, "killed")
        while process.poll() is None and not (
            journal.exists() and journal.read_text().count('"event":"result"') >= results
        ):
            time.sleep(0.005)
        os.kill(process.pid, 9)
        process.wait(timeout=30)
    assert start(tmp_path, "killed").wait(timeout=300) == 0
    assert clones(tmp_path / "killed" / "s") == copies
    for trial in range(4):
        folder = f"s/trial_{trial:05d}"
        assert weights(tmp_path / "killed" / folder) == weights(tmp_path / "undisturbed" / folder)

    analysis = ExperimentAnalysis(tmp_path / "undisturbed" / "s")
    copied = next(trial for trial in reversed(analysis.trials) if trial.lineage)
    replay = PopulationBasedTrainingReplay.of_study(analysis.path, copied.id)
    again = tune.run(
        "PPO", config={**SMALL, "lr": LR}, stop={"training_iteration": 8}, scheduler=replay, name="replay",
        storage_path=tmp_path, verbose=0,
    )  # fmt: skip
    assert weights(again.path / "trial_00000") == weights(analysis.path / f"trial_{copied.id}")


def test_a_small_population_of_functions(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        value = 0.0 if checkpoint is None else float(Path(checkpoint.path, "v").read_text())
        while True:
            value += config["rate"]
            folder = tmp_path / "own" / tune.get_context().get_trial_id()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "v").write_text(str(value))
            tune.report(value=value, checkpoint=str(folder))

    result = tune.run(
        train,
        config={"rate": tune.uniform(0, 1)},
        num_samples=4,
        metric="value",
        mode="max",
        stop={"training_iteration": 12},
        scheduler=PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=3,
            hyperparam_mutations={"rate": tune.uniform(0, 1)},
            quantile_fraction=0.25,
            synch=True,
        ),
        storage_path=tmp_path,
        verbose=0,
    )
    rates = sorted(trial.values["rate"] for trial in tune.ExperimentAnalysis(result.path).trials)
    best = result.best_result
    assert result.lineage()
    assert best["value"] >= 12 * sorted(t.initial_values["rate"] for t in result.trials)[0], rates


class CopiesAtTheEnd(Scheduler):
    """The second trial becomes a copy of the first at its last report."""

    def on_result(self, trial: Any, result: Any) -> Decisions:
        if trial.id == "00001" and trial.iteration == 3:
            return {trial.id: Clone("00000", {"rate": 100.0})}
        return {}


def test_a_copy_that_reports_nothing_keeps_the_values_of_its_result(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = 0 if checkpoint is None else int(Path(checkpoint.path, "i").read_text())
        for i in range(start, 3):
            folder = tmp_path / "own" / tune.get_context().get_trial_id()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "i").write_text(str(i + 1))
            tune.report(value=config["rate"], checkpoint=str(folder))

    result = tune.run(
        train, config={"rate": tune.grid_search([1.0, 2.0])}, scheduler=CopiesAtTheEnd(), storage_path=tmp_path,
        verbose=0, max_concurrent_trials=1,
    )  # fmt: skip
    for analysis in (result, ExperimentAnalysis(result.path)):
        copied = analysis.trials[1]
        assert (copied.values["rate"], copied.config["rate"], copied.last_result["value"]) == (2.0, 2.0, 2.0)
        assert copied.lineage == []


def test_other_settings_of_a_copy_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outplay.shutdown()  # that of another test
    outplay.init("inline")
    try:
        found = tune.run(
            "PPO",
            config={**SMALL, "lr": tune.grid_search([1e-4, 1e-3])},
            stop={"training_iteration": 3},
            metric="episode_return_mean",
            mode="max",
            scheduler=PopulationBasedTraining(
                "training_iteration", perturbation_interval=1, hyperparam_mutations={"lr": LR}, quantile_fraction=0.5
            ),
            max_concurrent_trials=1,
            storage_path=tmp_path,
            name="s",
            verbose=0,
        )
    finally:
        outplay.shutdown()
    assert clones(tmp_path / "s")
    assert len(found) == 2
    assert "settings differ" not in caplog.text


def test_a_population_that_was_never_compared_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tune.run(
        lambda config: {"v": config["x"]}, config={"x": tune.uniform(0, 1)}, num_samples=2, metric="v", mode="max",
        scheduler=PopulationBasedTraining(hyperparam_mutations={"x": tune.uniform(0, 1)}), storage_path=tmp_path,
        verbose=0,
    )  # fmt: skip
    assert [message for message in caplog.messages if "time_attr='training_iteration'" in message]
