"""Runs that were started from Python: a trainer with a run folder, as the command line sees it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay import PPO, Algorithm, Callback, ConfigError, EnvError, Run, RunError
from outplay.runs.folder import RunFolder, runs_in
from outplay.runs.lock import is_locked
from tests import probes
from tests.cli.common import Outcome
from tests.cli.conftest import CUSTOM, cli
from tests.runs.common import CONFIG

__all__ = ["cli"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def folder_of(trainer: Algorithm) -> RunFolder:
    assert trainer.run is not None
    return trainer.run.folder


def iterations(trainer: Algorithm) -> list[int]:
    return [result["training_iteration"] for result in folder_of(trainer).metrics().results]


def checkpoints(trainer: Algorithm) -> list[int]:
    return [int(path.name.rpartition("_")[2]) for path in folder_of(trainer).checkpoints()]


def state(trainer: Algorithm) -> Any:
    return (folder_of(trainer).status() or {})["state"]


def test_every_iteration_is_recorded(results: Path) -> None:
    with PPO("CartPole-v1", CONFIG, run="poles") as trainer:
        assert trainer.train() == trainer.last_result
        trainer.learn(80)
        folder = folder_of(trainer)
        assert folder.path.parent == results / "poles"
        assert (iterations(trainer), checkpoints(trainer), state(trainer)) == ([1, 2, 3], [3], "finished")
        trainer.train()
        assert state(trainer) == "running"
        assert Path(trainer.save()) == folder.checkpoints()[-1]
        trainer.train()
    assert (iterations(trainer), checkpoints(trainer), state(trainer)) == ([1, 2, 3, 4, 5], [3, 4, 5], "paused")
    assert [run.path for run in runs_in(results)] == [folder.path]


def test_a_run_has_the_settings_of_experiment_files(results: Path) -> None:
    class Best(Callback):
        def on_result(self, run: Run, result: dict[str, Any]) -> None:
            result["best"] = 5.0

    settings = {"name": "x", "loggers": ["csv"], "checkpoint_freq": 2, "keep_checkpoints": 1, "callbacks": [Best()]}
    with PPO("CartPole-v1", CONFIG, run=settings) as trainer:
        for _ in range(5):
            trainer.train()
        rows = list(csv.DictReader((folder_of(trainer).path / "progress.csv").read_text().splitlines()))
        assert [row["training_iteration"] for row in rows] == ["1", "2", "3", "4", "5"]
        assert rows[0]["best"] == "5.0"
        assert len(checkpoints(trainer)) <= 2  # the newest, and the best


def test_stopping_unlocks_the_run_and_the_trainer_continues_exactly(results: Path) -> None:
    whole = PPO("CartPole-v1", CONFIG).learn(160)
    trainer = PPO("CartPole-v1", CONFIG, run="poles")
    trainer.learn(80)
    trainer.stop()
    trainer.stop()
    assert is_locked(folder_of(trainer).path) is False
    with trainer:
        trainer.learn(80)
    assert trainer.policy.flat.equal(whole.policy.flat)
    assert iterations(trainer) == [1, 2, 3, 4]


def test_a_trainer_notices_that_its_run_was_resumed_elsewhere(results: Path) -> None:
    trainer = PPO("CartPole-v1", CONFIG, run="poles").learn(80)
    with Run.resume(folder_of(trainer).path) as other:
        other.step()
    with pytest.raises(RunError, match="was opened by process"):
        trainer.train()
    assert trainer.iteration == 2


def test_after_a_restore_the_next_iteration_removes_what_came_later(results: Path) -> None:
    settings = {"name": "poles", "checkpoint_freq": 1}
    with PPO("CartPole-v1", CONFIG, run=settings) as trainer:
        trainer.learn(160)
        expected = trainer.policy.flat.clone()
        trainer.restore(folder_of(trainer).checkpoints()[1])
        assert trainer.iteration == 2
        with pytest.raises(RunError, match="there is no result yet"):
            _ = trainer.last_result
        assert checkpoints(trainer) == [1, 2, 3, 4]  # until it trains again
        trainer.train()
        assert (iterations(trainer), checkpoints(trainer)) == ([1, 2, 3], [1, 2, 3])
        trainer.train()
        assert trainer.policy.flat.equal(expected)


def test_a_restore_to_look_at_an_earlier_policy_removes_nothing(results: Path) -> None:
    with PPO("CartPole-v1", CONFIG, run={"name": "poles", "checkpoint_freq": 1}) as trainer:
        trainer.learn(120)
        trainer.restore(folder_of(trainer).checkpoints()[0])
        trainer.evaluate(episodes=1)
    assert (iterations(trainer), checkpoints(trainer), state(trainer)) == ([1, 2, 3], [1, 2, 3], "finished")


def test_a_trainer_from_a_checkpoint_records_a_run_of_its_own(results: Path, tmp_path: Path) -> None:
    with PPO("CartPole-v1", CONFIG) as first:
        path = first.learn(80).save(tmp_path / "saved")
    with PPO.from_checkpoint(path, run="again", config={"lr": 1e-5}) as trainer:
        trainer.train()
    assert iterations(trainer) == [3]
    assert checkpoints(trainer) == [3]


def test_a_failure_saves_the_run_and_its_trainer_goes_on(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PPO(probes.Walk, CONFIG).learn(160)
    trainer = PPO(probes.Failing, CONFIG, run="failing")
    monkeypatch.setattr(probes.Failing, "countdown", 100)
    with pytest.raises(EnvError, match="the step failed"):
        trainer.learn(160)
    assert (state(trainer), checkpoints(trainer), trainer.iteration) == ("failed", [2], 2)
    trainer.learn(80)
    assert (state(trainer), iterations(trainer)) == ("finished", [1, 2, 3, 4])
    assert trainer.policy.flat.equal(whole.policy.flat)


def test_an_exception_in_the_with_block_unlocks_the_run(results: Path) -> None:
    trainer = PPO("CartPole-v1", CONFIG, run="poles")

    def failing() -> None:
        with trainer:
            trainer.train()
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert is_locked(folder_of(trainer).path) is False


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (3, "run: a name, or settings as {'name': …, 'loggers': …}, are needed, not 3"),
        ("a/b", "run: the name 'a/b' cannot be used for a folder"),
        ({"name": "x", "logger": ["csv"]}, "run: unknown setting 'logger'. Did you mean 'loggers'"),
        ({"name": "x", "env": "CartPole-v1"}, "run: env is an argument of the trainer itself, not of its run"),
        ({"name": "x", "stop": {"evaluation/episode_return_mean": 1}}, "needs evaluation_interval"),
        ({"name": "x", "callbacks": ["nowhere:X"]}, "no module 'nowhere' for callbacks"),
    ],
)
def test_a_wrong_run_is_one_sentence_and_leaves_no_folder(results: Path, run: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PPO("CartPole-v1", CONFIG, run=run)
    assert sentence in str(caught.value)
    assert not results.exists()


def test_a_trainers_run_is_not_reconfigured(results: Path) -> None:
    with PPO("CartPole-v1", CONFIG, run="poles") as trainer:
        assert trainer.run is not None
        with pytest.raises(RunError, match=r"make another trainer, .*PPO.from_checkpoint\(trainer.save\(\)"):
            trainer.run.reconfigure({"lr": 1e-4})


# The command line.


def test_the_command_line_lists_resumes_and_evaluates_it(cli: Callable[..., Outcome]) -> None:
    whole = PPO("CartPole-v1", CONFIG).learn(160)
    with PPO("CartPole-v1", CONFIG, run={"name": "poles", "loggers": ["csv"]}) as trainer:
        trainer.learn(80)
    assert "poles" in cli("runs")[1]
    assert "already reached its stop condition" in cli("train", "--resume", "poles")[2]
    code, _, err = cli("train", "--resume", "poles", "--stop", "timesteps_total=160")
    assert (code, "resumed from iteration 2" in err) == (0, True), err
    assert iterations(trainer) == [1, 2, 3, 4]
    assert len((folder_of(trainer).path / "progress.csv").read_text().splitlines()) == 5
    with PPO.from_checkpoint(folder_of(trainer).checkpoints()[-1]) as again:
        assert again.policy.flat.equal(whole.policy.flat)
    code, out, _ = cli("evaluate", "poles", "--episodes", "2", "--json")
    assert code == 0
    assert json.loads(out)["episodes"] == 2


def test_a_class_of_a_module_is_imported_by_the_command_line(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "custom_env.py").write_text(CUSTOM)
    sys.modules.pop("custom_env", None)
    sys.path.insert(0, str(tmp_path))
    from custom_env import CustomEnv  # type: ignore[import-not-found, unused-ignore]

    with PPO(CustomEnv, CONFIG, run="mine") as trainer:
        trainer.learn(40)
    more = ["--stop", "training_iteration=2"]
    code, _, err = cli("train", "--resume", "mine", *more)
    assert (code, "--env custom_env:CustomEnv, or add --trust" in err) == (2, True), err
    code, _, err = cli("train", "--resume", "mine", "--env", "custom_env:CustomEnv", *more)
    assert code == 0, err
    assert iterations(trainer) == [1, 2]


@pytest.mark.parametrize("arguments", [[], ["--trust"]])
def test_a_lambda_cannot_be_resumed_elsewhere_and_the_message_says_so(
    cli: Callable[..., Outcome], arguments: list[str]
) -> None:
    env = lambda: probes.Walk()  # noqa: E731 - that it has no name is the point
    with PPO(env, CONFIG, run="mine") as trainer:
        trainer.learn(40)
    for command in (["train", "--resume", "mine", "--stop", "training_iteration=2"], ["evaluate", "mine"]):
        code, _, err = cli(*command, *arguments)
        assert code == 2
        assert "is a lambda, which has no name, so that no other program can import it; give it again in Python" in err
        assert "Traceback" not in err
    with Run.resume(folder_of(trainer).path, env=env) as run:
        assert run.step()["training_iteration"] == 2
