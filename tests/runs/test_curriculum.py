"""Runs with a curriculum: stop conditions, best checkpoints, config.yaml, resuming."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from outplay import CheckpointError, ConfigError
from outplay.runs.experiments import experiment
from outplay.runs.run import Run
from outplay.runs.stopping import StopConditions
from tests.algorithms.test_curriculum import curriculum
from tests.cli.common import exit_code, only_run
from tests.runs.common import lines, make, until, weights

LADDER = "tests.algorithms.test_curriculum:Ladder"
LEVELS = curriculum([1.0, 2.0, 3.0], {"episode_return_mean": 0.5})


def test_a_return_stops_a_run_on_the_last_level_only(tmp_path: Path) -> None:
    run = make(tmp_path, env=LADDER, stop={"episode_return_mean": 0.8, "training_iteration": 50}, config=LEVELS)
    assert run.train() == "episode_return_mean reached 0.8"
    last = lines(run)[-1]
    assert last["curriculum_level"] == 2
    assert last["episode_return_mean"] == 3.0


def test_a_level_is_a_stop_condition(tmp_path: Path) -> None:
    run = make(tmp_path, env=LADDER, stop={"curriculum_level": 1}, config=LEVELS)
    assert run.train() == "curriculum_level reached 1"
    assert [line["curriculum_level"] for line in lines(run)][-2:] == [0, 1]
    with pytest.raises(ConfigError, match=r"stop.curriculum_level must be more than 0, not 0"):
        make(tmp_path, env=LADDER, stop={"curriculum_level": 0}, config=LEVELS)


def test_progress_goes_through_the_levels() -> None:
    stop = StopConditions(experiment({"env": "CartPole-v1", "stop": {"episode_return_mean": 10.0}}, "it"), last_level=3)
    assert stop.progress({"curriculum_level": 0, "episode_return_mean": 0.0}) == 0.0
    assert stop.progress({"curriculum_level": 2, "episode_return_mean": 5.0}) == 0.625
    assert not stop.reason({"curriculum_level": 2, "episode_return_mean": 10.0})
    assert stop.progress({"curriculum_level": 3, "episode_return_mean": 5.0}) == 0.5
    assert stop.reason({"curriculum_level": 3, "episode_return_mean": 10.0})


def test_an_evaluation_stops_a_run_if_it_is_one_of_the_last_level() -> None:
    body = {"env": "CartPole-v1", "stop": {"evaluation/episode_return_mean": 10.0}}
    stop = StopConditions(experiment(body, "it"), last_level=1)
    for level, of_evaluation, stops in ((0, 0, False), (1, 0, False), (1, 1, True)):
        evaluation = {"episode_return_mean": 10.0, "curriculum_level": of_evaluation}
        assert bool(stop.reason({"curriculum_level": level, "evaluation": evaluation})) == stops


def test_the_best_checkpoint_is_one_of_the_hardest_level(tmp_path: Path) -> None:
    falling = curriculum([9.0, 2.0, 1.0], {"episode_return_mean": 0.5})
    body = {"env": LADDER, "checkpoint_freq": 1, "keep_checkpoints": 1}
    run = make(tmp_path, **body, stop={"training_iteration": 12}, config=falling)
    run.train()
    assert lines(run)[-1]["curriculum_level"] == 2
    assert [path.name for path in run.folder.checkpoints()] == ["checkpoint_000012"]  # as good as those before


FUNCTION = """
def longer(train_results, task_settable_env, env_ctx):
    return float(train_results["training_iteration"] // 2)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module `mytasks`, not on the path of imports."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "mytasks.py").write_text(FUNCTION)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    return folder


def forget(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delitem(sys.modules, "mytasks", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])


def test_a_function_in_an_experiment_file_survives_a_resume(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"num_envs": 4, "num_workers": 0, "train_batch_size": 40, "env_task_fn": "mytasks:longer"}
    body: dict[str, Any] = {"env": LADDER, "stop": {"training_iteration": 6}, "config": config}
    (tasks / "it.yml").write_text(yaml.safe_dump({"it": body}))
    assert exit_code(monkeypatch, "train", "-f", str(tasks / "it.yml")) == 0
    folder = only_run(tmp_path)
    expected = (folder / "checkpoints" / "checkpoint_000006" / "weights.safetensors").read_bytes()
    (recorded,) = yaml.safe_load((folder / "config.yaml").read_text()).values()
    assert recorded["config"]["env_task_fn"] == "mytasks:longer"
    assert str(tasks) in recorded["import_from"]

    body["stop"] = {"training_iteration": 3}
    (tasks / "it.yml").write_text(yaml.safe_dump({"other": body}))
    assert exit_code(monkeypatch, "train", "-f", str(tasks / "it.yml")) == 0
    (half,) = (tmp_path / "results" / "other").glob("*")
    forget(monkeypatch, tasks)
    capsys.readouterr()
    resume = ["train", "--resume", str(half), "--stop", "training_iteration=6"]
    assert exit_code(monkeypatch, *resume, "--env", LADDER) == 2
    assert "names env_task_fn 'mytasks:longer', which would be imported" in capsys.readouterr().err
    assert "mytasks" not in sys.modules
    assert exit_code(monkeypatch, *resume, "--trust") == 0
    assert (half / "checkpoints" / "checkpoint_000006" / "weights.safetensors").read_bytes() == expected
    tasks_of_lanes = json.loads((half / "checkpoints" / "checkpoint_000006" / "state.json").read_text())["groups"]
    assert tasks_of_lanes[0]["task"] == 3.0
    # An evaluation needs the task, but not the function.
    forget(monkeypatch, tasks)
    capsys.readouterr()
    assert exit_code(monkeypatch, "evaluate", str(half), "--env", LADDER, "--episodes", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["episode_return_mean"] == 3.0
    assert "mytasks" not in sys.modules


def test_a_function_can_be_repeated_or_dropped_at_a_resume(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(
        tmp_path, env=LADDER, import_from=[str(tasks)], config={"env_task_fn": "mytasks:longer"},
        stop={"training_iteration": 2},
    )  # fmt: skip
    run.train()
    with pytest.raises(CheckpointError, match="repeat it with --config env_task_fn=mytasks:longer, or add --trust"):
        Run.resume(run.folder, env=LADDER)
    for function in ("mytasks:longer", None):
        config = {**run.algorithm.get_config(), "env_task_fn": function}
        del config["env"]
        change = lambda recorded, config=config: recorded.model_copy(update={"config": config})  # noqa: E731
        with Run.resume(run.folder, change, env=LADDER) as again:
            assert again.algorithm.config.env_task_fn == function
            assert again.algorithm.task == 1.0


def test_a_curriculum_is_recorded_and_resumed(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", env=LADDER, stop={"training_iteration": 8}, config=LEVELS)
    whole.train()
    run = make(tmp_path / "half", env=LADDER, stop={"training_iteration": 3}, config=LEVELS)
    run.train()
    resumed = Run.resume(run.folder, until({"training_iteration": 8}), trust=True)
    resumed.train()
    assert weights(resumed) == weights(whole)
    assert [line["curriculum_level"] for line in lines(resumed)] == [line["curriculum_level"] for line in lines(whole)]
