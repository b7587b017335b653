"""Studies on every engine: the same configurations, results and decisions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import tune
from outplay.streams import stream
from outplay.testing.waiting import until
from outplay.tune import ExperimentAnalysis
from outplay.tune.schedulers import STOP, Decisions, Scheduler


class Worse(Scheduler):
    """Stops a trial at its second result if it is worse than the trial before it."""

    def on_result(self, trial: Any, result: Any) -> Decisions:
        return {trial.id: STOP} if trial.iteration == 2 and result["value"] < 1.0 else {}


def train(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = 0 if checkpoint is None else json.loads(Path(checkpoint.path, "i.json").read_text())
    for i in range(start, 4):
        folder = Path(config["folder"], f"own{config['x']:.6f}")
        folder.mkdir(exist_ok=True)
        (folder / "i.json").write_text(str(i + 1))
        died = Path(config["folder"], "died")
        if config["dies"] and i == 2 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        tune.report(value=config["x"] * (i + 1), checkpoint=str(folder))


def studied(folder: Path, name: str, dies: bool = False) -> ExperimentAnalysis:
    config = {"x": tune.uniform(0, 1), "kind": tune.grid_search(["a", "b"]), "folder": str(folder), "dies": dies}
    return tune.run(
        train, config=config, num_samples=2, name=name, storage_path=folder, verbose=0, metric="value", mode="max",
        scheduler=Worse(), resources_per_trial={"cpu": 0.5},
    )  # fmt: skip


def outcome(result: ExperimentAnalysis) -> list[Any]:
    return [(trial.values, trial.last_result["value"], trial.iteration, trial.reason) for trial in result.trials]


def expected() -> list[Any]:
    """As it follows from the seed, whatever runs it."""
    found: list[Any] = []
    for index, kind in enumerate(("a", "b", "a", "b")):
        x = stream(0, "tune", index).uniform(0, 1)
        stopped = x * 2 < 1
        reason = "stopped by the scheduler" if stopped else "ended by itself"
        found.append(({"x": x, "kind": kind}, x * (2 if stopped else 4), 2 if stopped else 4, reason))
    return found


def test_the_result_does_not_depend_on_the_engine(engine: str, tmp_path: Path) -> None:
    assert {iteration for *_, iteration, _ in expected()} == {2, 4}
    assert outcome(studied(tmp_path, "s")) == expected()
    assert outcome(ExperimentAnalysis(tmp_path / "s")) == expected()


def test_a_lost_process(engine: str, tmp_path: Path) -> None:
    if engine == "inline":
        pytest.skip("all trials run in this process")
    disturbed = studied(tmp_path, "disturbed", dies=True)
    assert (tmp_path / "died").exists()
    assert outcome(disturbed) == expected()


def test_seeds(engine: str, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for i in range(2):
            tune.report(value=config["seed"] % 5 + i)

    result = tune.run(
        train, seeds=3, report_seeds=2, metric="value", mode="max", storage_path=tmp_path, verbose=0,
        resources_per_trial={"cpu": 0.5},
    )  # fmt: skip
    assert len(result.trials[0].last_result["value_per_seed"]) == 3
    assert len(result.reported.last_result["value_per_seed"]) == 2


@outplay.remote
def successor(x: int) -> int:
    return x + 1


@outplay.remote
class Adder:
    def add(self, x: int) -> int:
        return outplay.get(successor.remote(x))


def starts_tasks(config: dict[str, Any]) -> dict[str, Any]:
    return {"value": sum(outplay.get([successor.remote(config["x"]), successor.remote(0)]))}


def starts_an_actor(config: dict[str, Any]) -> dict[str, Any]:
    adder = Adder.options(num_cpus=1).remote()
    return {"value": outplay.get(adder.add.remote(config["x"])) + 1}


class StartsTasks(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.given = config

    def step(self) -> dict[str, Any]:
        return {**starts_tasks(self.given), "done": True}


def check_sums(trainable: Any, resources: Any, folder: Path) -> None:
    result = tune.run(
        trainable, config={"x": tune.grid_search([0, 1, 2])}, storage_path=folder, verbose=0,
        resources_per_trial=resources,
    )  # fmt: skip
    assert [trial.last_result["value"] for trial in result.trials] == [2, 3, 4]
    until(lambda: outplay.available_resources()["CPU"] == 2)


@pytest.mark.usefixtures("engine")
def test_what_a_trial_starts_runs_in_its_reservation(tmp_path: Path) -> None:
    check_sums(starts_tasks, None, tmp_path)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("trainable", [starts_an_actor, StartsTasks])
@pytest.mark.parametrize("resources", [None, [{"cpu": 1}, {"cpu": 1}]], ids=["default", "two bundles"])
def test_trials_never_wait_for_each_other(trainable: Any, resources: Any, tmp_path: Path) -> None:
    check_sums(trainable, resources, tmp_path)


@pytest.mark.usefixtures("engine")
def test_what_does_not_fit_a_trial_uses_the_machine(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        adders = [Adder.options(num_cpus=1).remote() for _ in range(config["actors"])]
        return {"value": sum(outplay.get([adder.add.remote(0) for adder in adders]))}

    def train_large(config: dict[str, Any]) -> dict[str, Any]:
        return {"value": outplay.get(successor.options(num_cpus=2).remote(0))}

    two = tune.run(train, config={"actors": 2}, max_concurrent_trials=1, storage_path=tmp_path, verbose=0)
    assert two.trials[0].last_result["value"] == 2
    large = tune.run(train_large, resources_per_trial={"cpu": 0}, storage_path=tmp_path, verbose=0)
    assert large.trials[0].last_result["value"] == 1
