"""Trials of algorithms: they are ordinary runs, with the same results as runs of their own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import outplay
from outplay import tune
from outplay.errors import ConfigError
from outplay.tune import ExperimentAnalysis
from outplay.tune.schedulers import PAUSE, Clone, Decisions, Scheduler

Run = Callable[..., ExperimentAnalysis]
SMALL = {"num_workers": 0, "num_envs": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2}
CARTPOLE = {"env": "CartPole-v1", **SMALL}


def weights(folder: Path, iteration: int) -> str:
    path = folder / "checkpoints" / f"checkpoint_{iteration:06d}" / "weights.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_trial_is_the_run_that_it_would_be_alone(run: Run, tmp_path: Path) -> None:
    config = {**CARTPOLE, "seed": 7, "lr": tune.grid_search([1e-3, 1e-2])}
    result = run("PPO", config=config, stop={"training_iteration": 3}, metric="episode_return_mean", mode="max")
    experiment = {"env": "CartPole-v1", "stop": {"training_iteration": 3}, "config": {**SMALL, "seed": 7, "lr": 1e-2}}
    alone = outplay.Run.create(experiment, results=tmp_path / "alone")
    alone.train()
    assert weights(result.path / "trial_00001", 3) == weights(alone.folder.path, 3)
    assert weights(result.path / "trial_00000", 3) != weights(alone.folder.path, 3)
    assert result.trials[1].last_result["timesteps_total"] == 192
    assert outplay.RunFolder(result.path / "trial_00001").status()["state"] == "finished"


@pytest.mark.slow
def test_classes_and_experiments_as_config(run: Run) -> None:
    settings = {"num_workers": 0, "num_envs": 2, "train_batch_size": 64, "lr": tune.loguniform(1e-4, 1e-2)}
    experiment = {"env": "CartPole-v1", "config": settings}
    result = run(outplay.A2C, config=experiment, stop={"training_iteration": 1}, num_samples=2)
    assert [list(trial.values) for trial in result.trials] == [["config/lr"], ["config/lr"]]
    assert all(trial.iteration == 1 for trial in result.trials)


class Ends(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, 1.0, True, False, {}


@pytest.mark.slow
def test_environments_that_were_registered_here(run: Run) -> None:
    tune.register_env("ends", lambda env_config: Ends())
    gymnasium.register("Ends-v0", Ends)
    config = {**SMALL, "env": tune.grid_search(["ends", "Ends-v0"])}
    result = run("PPO", config=config, stop={"training_iteration": 1})
    assert [trial.last_result["episode_return_mean"] for trial in result.trials] == [1.0, 1.0]


@pytest.mark.slow
def test_trials_with_workers(run: Run) -> None:
    config = {**CARTPOLE, "num_workers": 2, "num_env_groups": 2, "seed": tune.grid_search([1, 2])}
    result = run("PPO", config=config, stop={"training_iteration": 1}, resources_per_trial=[{"cpu": 1}, {"cpu": 0.5}])
    assert [trial.iteration for trial in result.trials] == [1, 1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**CARTPOLE, "lrr": tune.choice([1])}, "unknown setting 'lrr'. Did you mean 'lr'"),
        ({**CARTPOLE, "lr": tune.uniform(-2, -1)}, "lr"),
        (SMALL, "env is missing"),
        ({"env": "CartPole-v1", "config": SMALL, "stops": {}}, "stops"),
    ],
)
def test_wrong_settings_are_found_before_anything_is_written(
    run: Run, tmp_path: Path, config: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run("PPO", config=config, stop={"training_iteration": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_several_seeds(run: Run) -> None:
    result = run(
        "PPO", config=CARTPOLE, stop={"training_iteration": 2}, seeds=2, metric="episode_return_mean", mode="max"
    )
    last = result.trials[0].last_result
    assert len(last["episode_return_mean_per_seed"]) == 2
    assert weights(result.path / "trial_00000", 2) != weights(result.path / "trial_00000_seed1", 2)


class Copying(Scheduler):
    """Trial 0 waits at iteration 2, and continues as a copy of trial 1 when that is there."""

    needs_checkpoints = True

    def on_result(self, trial: Any, result: Any) -> Decisions:
        if trial.iteration != 2 or trial.lineage:
            return {}
        return {"00000": PAUSE if trial.id == "00000" else Clone("00001", {"lr": 5e-3})}


def test_a_copy_continues_exactly_with_other_settings(run: Run, tmp_path: Path) -> None:
    """The weights are those of one run whose setting was changed on the way."""
    config = {**CARTPOLE, "seed": 3, "lr": tune.grid_search([1e-4, 1e-3])}
    result = run("PPO", config=config, stop={"training_iteration": 4}, scheduler=Copying(), max_concurrent_trials=1)
    copied = result.trials[0]
    assert [(a.trial_id, a.values) for a in copied.lineage] == [("00001", {"lr": 5e-3})]
    assert copied.lineage[0].iteration == 2
    experiment = {"env": "CartPole-v1", "stop": {"training_iteration": 4}, "config": {**SMALL, "seed": 3, "lr": 1e-3}}
    alone = outplay.Run.create(experiment, results=tmp_path / "alone")
    for _ in range(2):
        alone.step()
    alone.reconfigure({"lr": 5e-3})
    alone.train()
    assert weights(result.path / "trial_00000", 4) == weights(alone.folder.path, 4)
    read = ExperimentAnalysis(result.path)
    assert read.lineage() == result.lineage()
    assert read.trials[0].config["lr"] == 5e-3


PROGRAM = """
import sys
from outplay import tune
config = {"num_workers": 0, "num_envs": 2, "train_batch_size": 64, "seed": 3, "lr": tune.grid_search([1e-3, 1e-2])}
tune.run(
    "PPO", config={"env": "CartPole-v1", "checkpoint_freq": 2, "config": config}, stop={"training_iteration": 8},
    name="s", storage_path=sys.argv[1], resume="AUTO", verbose=0,
)
"""


@pytest.mark.slow
def test_a_killed_study_of_an_algorithm_ends_with_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(folder: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(tmp_path / "program.py"), str(tmp_path / folder)])

    assert start("undisturbed").wait(timeout=100) == 0
    journal = tmp_path / "killed" / "s" / "journal.jsonl"
    for results in (3, 9):
        process = start("killed")
        while process.poll() is None and not (
            journal.exists() and journal.read_text().count('"event":"result"') >= results
        ):
            time.sleep(0.002)
        os.kill(process.pid, 9)
        process.wait(timeout=30)
    assert start("killed").wait(timeout=100) == 0
    for trial in ("trial_00000", "trial_00001"):
        assert weights(tmp_path / "killed" / "s" / trial, 8) == weights(tmp_path / "undisturbed" / "s" / trial, 8)
