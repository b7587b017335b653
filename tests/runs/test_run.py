"""Runs: their folder, their metrics, how they end."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from outplay import ConfigError
from outplay.runs.history import as_json, flattened
from outplay.runs.results import results_folder
from tests import probes
from tests.runs.common import lines, make


def test_a_run_folder_holds_what_it_should(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_freq=2)
    assert run.train() == "training_iteration reached 4"
    assert run.folder.path.parent == tmp_path / "it"
    assert run.folder.path.name.startswith("PPO_CartPole-v1_")
    assert sorted(path.name for path in run.folder.path.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "control", "metrics.jsonl", "status.json",
    ]  # fmt: skip
    assert [path.name for path in run.folder.checkpoints()] == ["checkpoint_000002", "checkpoint_000004"]
    assert sorted(path.name for path in run.folder.checkpoints()[0].iterdir()) == [
        "envs.safetensors", "manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors",
    ]  # fmt: skip
    status = json.loads((run.folder.path / "status.json").read_text())
    assert (status["state"], status["training_iteration"], status["progress"]) == ("finished", 4, 1.0)


def test_every_line_has_the_figures(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    for number, line in enumerate(lines(run), 1):
        assert line["training_iteration"] == number
        assert line["timesteps_total"] == 40 * number
        for key in ("episodes_total", "episode_return_mean", "episode_return_min", "episode_return_max",
                    "episode_len_mean", "time_total_s", "env_steps_per_s", "learner", "stages_s"):  # fmt: skip
            assert key in line
        assert {"collect", "collect/act", "collect/step", "learn"} <= set(line["stages_s"])
        assert {"policy_loss", "vf_loss", "entropy", "kl"} <= set(line["learner"])
    seconds = [line["time_total_s"] for line in lines(run)]
    assert seconds == sorted(seconds)


def test_steps_and_returns_are_those_of_agents(tmp_path: Path) -> None:
    """CartPole gives 1 per step: over all episodes, return and length are the same, and none is lost."""
    run = make(tmp_path, stop={"timesteps_total": 2000}, config={"metrics_num_episodes": 7})
    run.train()
    for line in lines(run):
        if line["episodes_total"]:
            assert line["episode_return_mean"] == line["episode_len_mean"]
    assert len(run.algorithm.episodes.returns) == 7


def test_before_the_first_episode_has_ended_figures_are_null(tmp_path: Path) -> None:
    run = make(tmp_path, env="Pendulum-v1", stop={"training_iteration": 1})
    run.train()
    assert lines(run)[0]["episode_return_mean"] is None
    assert as_json({"a": math.nan, "b": {"c": math.inf, "d": 1.5}}) == '{"a":null,"b":{"c":null,"d":1.5}}'


@pytest.mark.parametrize(
    "stop", [{"timesteps_total": 100}, {"episodes_total": 3, "training_iteration": 99}, {"learner/entropy": 0.0}]
)
def test_any_condition_stops_the_run(tmp_path: Path, stop: dict[str, float]) -> None:
    run = make(tmp_path, stop=stop)
    run.train()
    figures = flattened(lines(run)[-1])
    assert any(figures[name] >= value for name, value in stop.items())
    for earlier in lines(run)[:-1]:
        assert all(flattened(earlier)[name] < value for name, value in stop.items())


def test_an_unknown_nested_metric_is_named_after_the_first_iteration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no metric 'learner/entropie'. Did you mean 'learner/entropy'"):
        make(tmp_path, stop={"learner/entropie": 1.0}).train()


def test_evaluation_is_in_the_metrics_and_can_stop_the_run(tmp_path: Path) -> None:
    config = {"evaluation_interval": 2, "evaluation_duration": 3}
    run = make(tmp_path, stop={"evaluation/episode_return_mean": 5, "training_iteration": 9}, config=config)
    assert run.train() == "evaluation/episode_return_mean reached 5"
    first, second = lines(run)
    assert "evaluation" not in first
    assert second["evaluation"]["episodes"] == 3


def test_a_return_that_is_to_be_confirmed(tmp_path: Path) -> None:
    """Training has reached it long before an evaluation says so: it is asked every fifth iteration, and counts then."""
    config = {"evaluation_duration": 3, "train_batch_size": 400, "num_sgd_iter": 10, "metrics_num_episodes": 10}
    run = make(tmp_path, stop={"episode_return_mean": 30}, confirm=True, video_at_end=True, config=config)
    assert run.train() == "episode_return_mean reached 30"
    found = lines(run)
    assert found[-1]["training_iteration"] % 5 == 0
    assert min(found[-1]["episode_return_mean"], found[-1]["evaluation"]["episode_return_mean"]) >= 30
    for line in found[:-1]:
        asked = line["training_iteration"] % 5 == 0 and (line["episode_return_mean"] or 0) >= 30
        assert ("evaluation" in line) == asked
    assert run.video is not None
    assert run.video.stat().st_size > 1000


def test_a_limit_on_time_says_so_where_iterations_are_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = {"env": probes.Walk, "config": {"env_config": {"sleep": 0.03}}}
    run = make(tmp_path, stop={"time_total_s": 0.5}, **body)
    assert run.train() == "time_total_s reached 0.5"
    assert len(lines(run)) == 1
    assert "runs stop only between iterations: time_total_s may exceed its limit of 0.5" in caplog.text


def test_evaluations_beside_an_iteration_count_as_time(tmp_path: Path) -> None:
    body = {"env": probes.Walk, "config": {"env_config": {"sleep": 0.001}, "evaluation_duration": 10}}
    run = make(tmp_path, stop={"training_iteration": 2}, **body)
    (run.folder.path / "control" / "evaluate").touch()
    run.train()
    first, second = lines(run)
    evaluated = second["time_total_s"] - first["time_this_iter_s"] - second["time_this_iter_s"]
    assert evaluated >= second["stages_s"]["evaluate"] > 0


def test_csv_and_tensorboard(tmp_path: Path) -> None:
    run = make(tmp_path, loggers=["csv", "tensorboard"], config={"evaluation_interval": 3, "evaluation_duration": 1})
    run.train()
    with (run.folder.path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["training_iteration"]) for row in rows] == [1, 2, 3, 4]
    assert float(rows[0]["learner/entropy"]) == lines(run)[0]["learner"]["entropy"]
    assert [row["evaluation/episodes"] for row in rows] == ["", "", "1", ""]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder.path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("episodes_total")] == [40, 80, 120, 160]


def test_requests_are_obeyed(tmp_path: Path) -> None:
    run = make(tmp_path, stop={"training_iteration": 50})
    asked = {3: "checkpoint", 5: "evaluate", 8: "stop"}

    def ask(result: dict[str, Any]) -> None:
        if (request := asked.get(result["training_iteration"])) is not None:
            (run.folder.path / "control" / request).touch()

    assert run.train(ask) == "stopped by a request in control/"
    assert [path.name for path in run.folder.checkpoints()] == ["checkpoint_000004", "checkpoint_000009"]
    assert json.loads((run.folder.path / "status.json").read_text())["state"] == "stopped"
    assert "evaluation" in lines(run)[5]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"stop": {"evaluation/episode_return_mean": 1}}, "needs evaluation_interval; otherwise it is never reached"),
        ({"config": {"env_config": {"table": {1: 5}}}}, "env_config.table: keys must be strings, and 1 is an int"),
        ({"config": {"env_config": {"thing": object()}}}, "env_config.thing is an object, which cannot be saved"),
        ({"stop": {"curriculum_level": 1}}, "stop: a condition on curriculum_level needs a curriculum; otherwise"),
        (
            {
                "stop": {"curriculum_level": 5},
                "env": "outplay.envs.examples:Maze",
                "config": {"curriculum": {"levels": [3, 4], "promote_when": {"episode_return_mean": 1}}},
            },
            "stop: curriculum_level 5 is never reached: the curriculum has 2 levels, 0 to 1",
        ),
        ({"stop": {"evaluation/nothing": 1}}, "there is no metric 'evaluation/nothing'"),
        ({"name": "../x"}, "the name '../x' cannot be used for a folder"),
    ],
)
def test_what_could_never_work_is_refused_at_once(tmp_path: Path, body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, **body)
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_results_go_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTPLAY_RESULTS", raising=False)
    assert results_folder(None) == Path("~/outplay_results").expanduser()
    monkeypatch.setenv("OUTPLAY_RESULTS", "/elsewhere")
    assert results_folder(None) == Path("/elsewhere")
    assert results_folder("/here") == Path("/here")
