"""The setting `output`: experience as Parquet files, exactly once, whatever happens to the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import outplay
from outplay import DQN, PG, PPO, SAC, Algorithm, ConfigError, EnvError, data
from outplay.algorithms.experience import EvaluationRecorder
from outplay.collect import EpisodeProgress
from outplay.data.columns import Rows
from outplay.data.recording import Recording
from outplay.data.transitions import run_number, space_from_json, space_to_json
from outplay.runs.run import Run
from outplay.testing import probes
from outplay.testing.algorithm import learned
from tests.cli.common import Outcome
from tests.runs.common import make

SMALL: dict[str, Any] = {"num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 60, "seed": 3}


def rows_of(folder: str | Path) -> Rows:
    return data.read_parquet(folder).to_arrays()


def check_episodes(rows: Rows, count: int) -> None:
    """Every episode is recorded once, step by step, and nothing follows its end."""
    assert len(rows["reward"]) == count
    order = np.lexsort((rows["step"], rows["episode_id"]))
    episode, step = rows["episode_id"][order], rows["step"][order]
    same = episode[1:] == episode[:-1]
    np.testing.assert_array_equal(step[1:], np.where(same, step[:-1] + 1, 0))
    assert step[0] == 0
    ended = (rows["terminated"] | rows["truncated"])[order]
    assert not (ended[:-1] & same).any()
    observation, following = rows["observation"][order], rows["next_observation"][order]
    np.testing.assert_array_equal(observation[1:][same], following[:-1][same])


@pytest.mark.parametrize(
    ("algorithm", "env", "config"),
    [
        (PPO, "CartPole-v1", {}),
        (PG, "CartPole-v1", {}),
        (DQN, "CartPole-v1", {"learning_starts": 32}),
        (SAC, "Pendulum-v1", {"max_episode_steps": 20, "training_intensity": 0.1}),
    ],
)
def test_recording_has_every_step_and_changes_nothing(
    tmp_path: Path, algorithm: type[Algorithm], env: str, config: dict[str, Any]
) -> None:
    trained = []
    for output in (None, str(tmp_path / "out")):
        with algorithm(env, {**SMALL, **config, "output": output}) as trainer:
            for _ in range(3):
                trainer.train()
            trained.append(learned(trainer))
    assert trained[0] == trained[1]
    dataset = data.read_parquet(tmp_path / "out")
    check_episodes(dataset.to_arrays(), trainer.timesteps)
    assert dataset.metadata["env"] == env
    space = space_from_json(json.loads(dataset.metadata["action_space"]))
    assert space == gymnasium.make(env).action_space
    assert ("action_logp" in dataset.columns) == (algorithm in (PPO, PG))


def test_truncated_episodes_end_with_their_final_observation(tmp_path: Path) -> None:
    with PPO("Pendulum-v1", {**SMALL, "max_episode_steps": 7, "output": str(tmp_path)}) as trainer:
        trainer.train()
    rows = rows_of(tmp_path)
    ends = rows["truncated"]
    assert ends.sum() == 4 * 2
    assert (rows["step"][ends] == 6).all()
    velocity = rows["next_observation"][ends][:, 2]
    assert (velocity != rows["observation"][ends][:, 2]).all(), "it is the observation after the last step"
    assert np.abs(rows["action"]).max() > 1, "actions are the environment's, from -2 to 2"


def test_log_probabilities_are_those_of_the_policy(tmp_path: Path) -> None:
    with PPO("CartPole-v1", {**SMALL, "output": str(tmp_path)}) as trainer:
        trainer.train()
    rows = rows_of(tmp_path)
    logits = rows["action_dist"].astype(np.float64)
    every = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    taken = every[np.arange(len(every)), rows["action"]]
    np.testing.assert_allclose(rows["action_logp"], taken, atol=1e-5)


def test_masks_are_recorded(tmp_path: Path) -> None:
    with PPO(probes.Forbidding, {**SMALL, "output": str(tmp_path)}) as trainer:
        trainer.train()
    rows = rows_of(tmp_path)
    assert rows["action_mask"][np.arange(len(rows["action"])), rows["action"]].all()
    assert rows["next_action_mask"].shape == rows["action_mask"].shape
    assert not rows["action_mask"].all()


@pytest.mark.slow
def test_asynchronous_experience_is_recorded_once(tmp_path: Path) -> None:
    config = {**SMALL, "async": True, "num_workers": 2, "learning_starts": 64, "output": str(tmp_path / "out")}
    config |= {"max_episode_steps": 9}
    outplay.shutdown()
    outplay.init("process", num_cpus=2)
    try:
        with DQN("CartPole-v1", config) as trainer:
            for _ in range(2):
                trainer.train()
            path = trainer.save(tmp_path)
            saved = trainer.timesteps
            for _ in range(2):
                trainer.train()
        check_episodes(rows_of(tmp_path / "out"), trainer.timesteps)
        with DQN("CartPole-v1", config) as second:
            second.restore(path)
            assert second.timesteps == saved
            second.train()
        check_episodes(rows_of(tmp_path / "out"), second.timesteps)
    finally:
        outplay.shutdown()


def test_a_restored_trainer_replaces_what_came_after_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outplay.data.recording.FILE_ROWS", 50)  # a file per iteration
    with PPO("CartPole-v1", {**SMALL, "output": str(tmp_path / "whole")}) as whole:
        for _ in range(6):
            whole.train()
    config = {**SMALL, "output": str(tmp_path / "out")}
    first = PPO("CartPole-v1", config)
    for _ in range(2):
        first.train()
    path = first.save(tmp_path)
    for _ in range(3):
        first.train()
    first.abandon()  # as if it were killed: it is not stopped
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 5
    with PPO("CartPole-v1", config) as second:
        second.restore(path)
        second.train()
        assert len(list((tmp_path / "out").rglob("*.parquet"))) == 3
        for _ in range(3):
            second.train()
    expected, found = rows_of(tmp_path / "whole"), rows_of(tmp_path / "out")
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name)


def test_a_failed_iteration_is_not_recorded(tmp_path: Path) -> None:
    with PPO(probes.Failing, {**SMALL, "output": str(tmp_path)}) as trainer:
        trainer.train()
        probes.Failing.countdown = 30
        with pytest.raises(EnvError, match="the step failed"):
            trainer.train()
        trainer.train()
    check_episodes(rows_of(tmp_path), trainer.timesteps)


def test_an_output_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output: .*file is not a folder"):
        PPO("CartPole-v1", {**SMALL, "output": str(tmp_path / "file" / "inside")})


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
def test_an_output_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output: /proc cannot be written: .*; name a folder"):
        PPO("CartPole-v1", {**SMALL, "output": "/proc/x"})
    with PPO("CartPole-v1", {**SMALL, "output": str(tmp_path)}):
        assert list(tmp_path.iterdir()) == []


def test_two_trainers_record_into_folders_of_their_own(tmp_path: Path) -> None:
    for _ in range(2):
        with PPO("CartPole-v1", {**SMALL, "output": str(tmp_path)}) as trainer:
            trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PPO_CartPole-v1", "PPO_CartPole-v1-2"]
    check_episodes(rows_of(tmp_path), 120)


def test_a_run_that_is_killed_before_its_first_checkpoint_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outplay.data.recording.FILE_ROWS", 1)
    run = make(tmp_path / "results", config={"output": str(tmp_path / "out")}, checkpoint_every_s=0)
    for _ in range(3):
        run.step()
    run.close()  # without a checkpoint
    resumed = Run.resume(run.folder.path)
    resumed.train()
    check_episodes(rows_of(tmp_path / "out"), resumed.algorithm.timesteps)


def test_a_trained_agent_is_recorded_by_evaluate(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    with PPO("CartPole-v1", SMALL) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    code, out, err = cli("evaluate", path, "--episodes", "12", "--output", "demos", "--max-episode-steps", "30")
    assert code == 0, err
    assert "recorded in demos" in out
    rows = rows_of(tmp_path / "demos")
    check_episodes(rows, len(rows["reward"]))
    assert len(np.unique(rows["episode_id"])) == 12
    assert f"12 episodes, {len(rows['reward'])} steps" in out
    assert rows["truncated"][rows["step"] == 29].all()
    terminated = rows["terminated"]
    assert (rows["next_observation"][terminated] != rows["observation"][terminated]).any()


def test_a_recorded_evaluation_has_the_rewards_of_the_evaluation(tmp_path: Path) -> None:
    """Python environments step in a vector that writes into the same arrays."""
    with PPO("Pendulum-v1", {**SMALL, "max_episode_steps": 20}) as trainer:
        recorder = EvaluationRecorder(trainer, tmp_path)
        metrics = trainer.evaluate(episodes=11, progress=EpisodeProgress(on_step=recorder.step))
        recorder.close()
    rows = rows_of(tmp_path)
    check_episodes(rows, 220)
    returns = np.bincount(np.unique(rows["episode_id"], return_inverse=True)[1], rows["reward"])
    assert returns.mean() == pytest.approx(metrics["episode_return_mean"], rel=1e-5)
    assert rows["truncated"].sum() == 11


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32)),
        gymnasium.spaces.MultiDiscrete([2, 3], start=[1, 0]),
        gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(3, start=1), "b": gymnasium.spaces.MultiBinary(4)}),
        gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)]),
    ],
)
def test_spaces_survive_json(space: gymnasium.Space[Any]) -> None:
    assert space_from_json(space_to_json(space)) == space


_KILLED = """
import sys
from outplay.runs.run import Run
import outplay.data.recording
outplay.data.recording.FILE_ROWS = 100
run = Run.create({"name": "it", "env": "CartPole-v1", "run": "PPO", "stop": {"training_iteration": 40},
    "checkpoint_freq": 3, "config": {"num_envs": 4, "num_workers": 0, "train_batch_size": 60, "output": sys.argv[2]}},
    sys.argv[1])
print(run.folder.path, flush=True)
run.train(lambda result: print(result["training_iteration"], flush=True))
"""


@pytest.mark.slow
def test_kill_9_leaves_neither_duplicates_nor_gaps(tmp_path: Path) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _KILLED, str(tmp_path / name), str(tmp_path / f"{name}-out")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with start("whole") as whole:
        whole.communicate()
    assert whole.returncode == 0
    with start("killed") as killed:
        assert killed.stdout is not None
        folder = killed.stdout.readline().strip()
        while killed.stdout.readline().strip() != "20":
            pass
        os.kill(killed.pid, signal.SIGKILL)
    Run.resume(folder).train()
    expected, found = rows_of(tmp_path / "whole-out"), rows_of(tmp_path / "killed-out")
    for name in set(expected) - {"episode_id"}:
        np.testing.assert_array_equal(found[name], expected[name], name)


def test_numbers_of_many_runs_differ() -> None:
    numbers = np.array([run_number(f"PPO_CartPole-v1-{i}") for i in range(20_000)])
    assert len(np.unique(numbers)) == len(numbers)
    assert numbers.min() >= 0
    assert numbers.max() < 2**62  # the sum with the numbers of its episodes is an int64


def test_a_resumed_recording_keeps_its_numbers(tmp_path: Path) -> None:
    def episodes(number: int) -> dict[str, np.ndarray]:
        return {"episode_id": np.arange(number), "step": np.zeros(number, np.int64)}

    recording = Recording(tmp_path, "run", {})
    recording.add(episodes(3))
    recording.flush()
    state = recording.state()
    before = {name: value for name, value in state.items() if name != "numbering"}  # of older checkpoints
    for saved, first in ((state, run_number("run")), (before, run_number("run", 1))):
        resumed = Recording(tmp_path, "run", {})
        resumed.load(saved)
        resumed.add(episodes(2))
        resumed.flush()
        assert rows_of(tmp_path)["episode_id"][3:].tolist() == [first, first + 1]
        assert resumed.state()["numbering"] == saved.get("numbering", 1)
    with pytest.raises(ValueError, match="does not know numbering 3"):
        recording.load({**state, "numbering": 3})
