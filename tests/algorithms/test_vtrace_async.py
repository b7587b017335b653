"""IMPALA and APPO that collect and learn side by side: engines, dead and slow workers, a killed run, real tasks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from outplay import APPO, IMPALA, Algorithm, EnvError
from outplay.envs.examples import RepeatAfterMe
from outplay.learning.vtrace import VTraceLearner
from outplay.testing.probes import Forbidding
from tests import probes
from tests.algorithms.test_conformance import SETTINGS
from tests.cli.common import only_run, start, wait_for

BOTH = pytest.mark.parametrize("algorithm", [IMPALA, APPO])
PROCESSES = pytest.mark.usefixtures("process_engine")
BESIDE: dict[str, Any] = {
    "async": True, "num_workers": 2, "num_envs": 4, "num_env_groups": 4, "train_batch_size": 64,
    "rollout_fragment_length": 16, "seed": 7, "model": {"fcnet_hiddens": [16]},
}  # fmt: skip

MEMORY = {"use_lstm": True, "lstm_cell_size": 32}


def make(algorithm: type[Algorithm], env: Any, **config: Any) -> Algorithm:
    return algorithm(env, {**SETTINGS[algorithm.__name__], **BESIDE, **config})


def learner_of(trainer: Algorithm) -> VTraceLearner[Any]:
    assert isinstance(trainer.learner, VTraceLearner)
    return trainer.learner


def train(trainer: Algorithm, iterations: int) -> dict[str, Any]:
    for _ in range(iterations):
        result = trainer.train()
    return dict(result)


def steps_collected(trainer: Algorithm, length: int = 16) -> int:
    """The steps of all Fragments that were accepted, by the states of the EnvGroups."""
    return sum(state.fragments * state.lanes for state in trainer.training_workers.states or []) * length


def count_learned(trainer: Algorithm) -> list[int]:
    """The steps of all batches from now on."""
    learner, sizes = learner_of(trainer), list[int]()
    learn_from = learner.learn_from

    def counted(batch: Any, *arguments: Any) -> Any:
        sizes.append(batch.steps)
        return learn_from(batch, *arguments)

    learner.learn_from = counted  # type: ignore[method-assign]
    return sizes


@PROCESSES
def test_the_end_adds_two_fragments_per_environment_at_most() -> None:
    """The bound in docs/algorithms/impala.md."""
    with make(IMPALA, probes.Match) as trainer:
        train(trainer, 3)
        before = trainer.timesteps
        trainer.evaluate()  # accepts what is pending, as the end of a run does
        assert 0 <= trainer.timesteps - before <= 2 * BESIDE["num_envs"] * BESIDE["rollout_fragment_length"]


@pytest.mark.slow
@BOTH
def test_workers_and_learner_side_by_side(engine: str, algorithm: type[Algorithm], tmp_path: Path) -> None:
    """Everything that was collected is learned from once before an evaluation, a checkpoint and the end."""
    with make(algorithm, probes.Match, max_policy_lag=1_000_000) as trainer:
        sizes = count_learned(trainer)
        result = train(trainer, 40)
        metrics = result["learner"]
        assert metrics["policy_lag_max"] >= metrics["policy_lag"] >= 0
        assert trainer.evaluate()["episode_return_mean"] == 1.0
        learner = learner_of(trainer)
        assert (learner.due, learner._queue) == (0, ())
        trainer.train()
        path = trainer.save(tmp_path)
        assert sum(sizes) == trainer.timesteps == steps_collected(trainer)
        updates, states = learner.updates, trainer.workers.states
    with make(algorithm, probes.Match) as again:
        again.restore(path)
        assert (again.timesteps, learner_of(again).updates) == (trainer.timesteps, updates)
        again.train()
        again.evaluate()
        assert all(new.fragments > old.fragments for new, old in zip(again.workers.states, states, strict=True))


@PROCESSES
@BOTH
def test_a_worker_that_dies_is_replaced(algorithm: type[Algorithm]) -> None:
    with make(algorithm, probes.Walk, max_policy_lag=1_000_000) as trainer:
        sizes = count_learned(trainer)
        trainer.train()
        _, pid = trainer.workers.foreach_worker(lambda worker: worker.process())[0]
        os.kill(pid, signal.SIGKILL)
        train(trainer, 6)
        trainer.evaluate()
        assert trainer.workers.replaced == 1
        assert sum(sizes) == trainer.timesteps == steps_collected(trainer)


@PROCESSES
@pytest.mark.parametrize("algorithm", [IMPALA, pytest.param(APPO, marks=pytest.mark.slow)])
def test_the_learner_does_not_wait_for_the_slowest_worker(algorithm: type[Algorithm], tmp_path: Path) -> None:
    env_config = {"folder": str(tmp_path)}
    with make(algorithm, probes.Stuck, num_env_groups=2, env_config=env_config, max_policy_lag=3) as trainer:
        trainer.train()
        (tmp_path / "armed").touch()
        before = trainer.learner.updates
        train(trainer, 8)  # with the other worker alone
        assert (tmp_path / "taken").exists()
        assert trainer.learner.updates > before + 4
        (tmp_path / "go").touch()
        trainer.evaluate()  # what the slow one has collected is too old by now
        assert trainer.timesteps == steps_collected(trainer)
        assert sum(learner_of(trainer)._discarded) >= 32


@PROCESSES
@pytest.mark.slow
@BOTH
def test_workers_do_not_flood_the_learner(algorithm: type[Algorithm]) -> None:
    """A slow learner: no more than allowed is due, and what two workers have under way."""
    with make(algorithm, probes.Walk, most_updates_behind=2) as trainer:
        learner = learner_of(trainer)
        seen = []
        learn = learner.learn

        def slowly(updates: int) -> None:
            seen.append(learner.due)
            trainer.workers.foreach_worker(lambda worker: worker.process())  # waits for all that was requested
            learn(updates)

        learner.learn = slowly  # type: ignore[method-assign]
        train(trainer, 12)
        assert max(seen) <= 2 + 2 * 2 * 2 * 16 // 64  # 2 workers, 2 requests each, of 2 Fragments with 16 steps


@PROCESSES
@pytest.mark.slow
@BOTH
def test_an_environment_that_fails_fails_the_iteration_with_its_words(algorithm: type[Algorithm]) -> None:
    with make(algorithm, probes.Flawed, env_config={"flaw": "raises", "after": 1100}) as trainer:
        with pytest.raises(EnvError, match="the gripper is stuck"):
            train(trainer, 100)
        assert trainer.timesteps == steps_collected(trainer)  # rolled back: both are those of the last iteration


@PROCESSES
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("more", [{"normalize_observations": True}, {"batch_mode": "complete_episodes"}])
def test_masks(algorithm: type[Algorithm], more: dict[str, Any]) -> None:
    with make(algorithm, Forbidding, env_config={"masks": "info", "truncates": True}, **more) as trainer:
        returns = []
        while len(returns) < 5 and (not returns or returns[-1] <= 3.2):  # how fast it learns depends on the machine
            train(trainer, 90)
            returns.append(trainer.evaluate()["episode_return_mean"])
        assert returns[-1] > 3.2, returns  # of 4; random policy: about 2


@PROCESSES
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    ("model", "least", "most"), [({"use_lstm": True, "lstm_cell_size": 32}, 60, 99), ({}, -99, 20)]
)
def test_a_task_that_needs_memory(algorithm: type[Algorithm], model: dict[str, Any], least: int, most: int) -> None:
    """On RepeatAfterMe, 0 is guessing and 99 is the best."""
    config = {"num_workers": 2, "gamma": 0.5, "lr": 3e-3, "metrics_num_episodes": 20, "seed": 1}
    with algorithm(RepeatAfterMe, {**config, "model": {"fcnet_hiddens": [32], **model}}) as trainer:
        while trainer.timesteps < 100_000:
            result = trainer.train()
            if result["episodes_total"] and result["episode_return_mean"] > least > 0:
                break
        assert least < result["episode_return_mean"] <= most


@PROCESSES
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_solved_with_two_workers(algorithm: type[Algorithm], seed: int) -> None:
    config = {"num_workers": 2, "metrics_num_episodes": 20, "seed": seed}
    with algorithm("CartPole-v1", config) as trainer:
        while trainer.timesteps < 400_000:
            if trainer.train()["episode_return_mean"] >= 475:
                break
        assert trainer.last_result["episode_return_mean"] >= 475


@pytest.mark.slow
@BOTH
def test_a_run_that_is_killed_goes_on(algorithm: type[Algorithm], tmp_path: Path) -> None:
    """kill -9 of the main process while its workers collect."""
    arguments = ["--env", "tests.probes:Walk", "--run", algorithm.__name__, "--num-workers", "2"]
    for setting in ("num_envs=4", "train_batch_size=64", "rollout_fragment_length=8"):
        arguments += ["--config", setting]
    killed = start(tmp_path, *arguments, "--stop", "training_iteration=5000", "--checkpoint-freq", "3")
    wait_for(lambda: list((tmp_path / "results").glob("*/*/checkpoints/checkpoint_000006")))
    killed.kill()
    killed.communicate()
    folder = only_run(tmp_path)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = sorted((folder / "checkpoints").glob("checkpoint_*"))[-1]
    saved = json.loads((last / "state.json").read_text())
    end = saved["training_iteration"] + 10
    resumed = start(tmp_path, "--resume", str(folder), "--trust", "--stop", f"training_iteration={end}")
    _, errors = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, errors
    assert "could not be rebuilt" not in errors
    after = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["training_iteration"] for line in after] == list(range(1, end + 1))
    assert [line["timesteps_total"] for line in after] == sorted(line["timesteps_total"] for line in after)
    assert after[-1]["learner"]["updates"] > saved["learner"]["updates"]
    known = saved["training_iteration"]
    assert (folder / "metrics.jsonl").read_text().splitlines()[:known] == lines[:known]
