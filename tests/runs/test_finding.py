"""Runs are found by what `outplay runs` prints, and by the start of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outplay.errors import CheckpointError
from outplay.runs.experiments import Experiment, experiment
from outplay.runs.finding import find_run, find_runs
from outplay.runs.folder import runs_in
from outplay.runs.loading import find_weights
from outplay.runs.results import folder_name, new_run_folder
from outplay.runs.run import Run
from tests.runs.common import CONFIG, make

NAMES = {
    "a": "PPO_CartPole-v1_3fa9c1_2026-11-15_12-00-00",
    "b": "PPO_CartPole-v1_3f0000_2026-11-15_13-00-00",
    "c": "DQN_CartPole-v1_aa0001_2026-11-15_14-00-00",
}


def run_folder(results: Path, experiment: str, name: str, age: float = 0, checkpoint: bool = True) -> Path:
    """A folder that looks like a run that last changed `age` seconds ago."""
    folder = results / experiment / name
    (folder / "checkpoints").mkdir(parents=True)
    if checkpoint:
        (folder / "checkpoints" / "checkpoint_000001").mkdir()
    for file in ("config.yaml", "metrics.jsonl", "checkpoints"):
        path = folder / file
        if file != "checkpoints":
            path.write_text("")
        os.utime(path, (10**9 - age, 10**9 - age))
    return folder


def refusal(name: str, results: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        find_run(name, results)
    return str(caught.value)


def test_a_run_is_found_by_each_of_its_names(tmp_path: Path) -> None:
    a, b, c = (run_folder(tmp_path, "poles", name) for name in NAMES.values())
    other = run_folder(tmp_path, "pong", "PPO_ALE-Pong-v5_bb0002_2026-11-15_15-00-00")
    for folder in (a, b, c, other):
        full = f"{folder.parent.name}/{folder.name}"
        for name in (folder, str(folder), full, full + "/", folder.name, folder.name.split("_")[-3], full[:-10]):
            assert find_run(name, tmp_path) == folder
    assert find_runs("poles", tmp_path) == sorted(find_runs("poles/", tmp_path)) == sorted([a, b, c])
    assert find_runs(tmp_path / "poles", tmp_path) == sorted([a, b, c])
    assert find_runs("3fa", tmp_path) == [a]
    assert find_run("3fa", tmp_path) == a
    assert find_run("b", tmp_path) == other
    assert find_run("pon", tmp_path) == other
    assert find_run("poles/D", tmp_path) == find_run("DQN", tmp_path) == c


def test_the_newest_run_with_a_checkpoint_is_meant(tmp_path: Path) -> None:
    old = run_folder(tmp_path, "poles", NAMES["a"], age=300)
    new = run_folder(tmp_path, "poles", NAMES["b"], age=200)
    empty = run_folder(tmp_path, "poles", NAMES["c"], age=100, checkpoint=False)
    for name in ("poles", "po", tmp_path / "poles", "PPO_CartPole"):
        assert find_run(name, tmp_path) == new
    assert find_run("DQN", tmp_path) == empty
    os.utime(old / "metrics.jsonl")  # it was resumed
    assert find_run("poles", tmp_path) == old


def test_without_any_checkpoint_the_newest_run_is_resumed_and_evaluating_is_refused(tmp_path: Path) -> None:
    run_folder(tmp_path, "poles", NAMES["a"], age=300, checkpoint=False)
    new = run_folder(tmp_path, "poles", NAMES["b"], age=200, checkpoint=False)
    assert find_run("poles", tmp_path) == new
    for name in ("poles", new, f"poles/{NAMES['b']}"):
        with pytest.raises(CheckpointError, match=rf"the run {new} has no checkpoint yet"):
            find_weights(name, tmp_path)


def test_a_name_of_several_unrelated_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    for experiment_name in ("poles", "pong", "pong-2"):
        for name in NAMES.values():
            run_folder(tmp_path, experiment_name, name.replace("_3", f"_{len(experiment_name)}"))
    assert refusal("po", tmp_path) == "'po' may mean poles, pong, pong-2; give more of the name"
    said = refusal("PPO", tmp_path)
    assert said.startswith(f"'PPO' may mean poles/{NAMES['b'].replace('_3', '_5')}, poles/PPO_CartPole-v1_5fa9c1_")
    assert said.endswith(" and 1 more; give more of the name")
    assert find_run("pong", tmp_path).parent.name == "pong"  # a complete name, though pong-2 starts with it
    # The start of a hash means one run, also within an experiment.
    assert refusal("5f", tmp_path).startswith("'5f' may mean poles/PPO_CartPole-v1_5f0000_2026-11-15_13-00-00, poles/")
    assert find_run("5fa", tmp_path).name == NAMES["a"].replace("_3", "_5")


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    run_folder(tmp_path, "cartpole", NAMES["a"])
    assert refusal("cartpol3", tmp_path) == "there is no run at cartpol3. Did you mean 'cartpole'?"
    assert refusal("CartPole", tmp_path) == "there is no run at CartPole. Did you mean 'cartpole'?"
    assert refusal("xyzzy", tmp_path) == "there is no run at xyzzy; `outplay runs` lists all runs"
    assert "Did you mean '3fa9c1'?" in refusal("3fa9c2", tmp_path)


def test_a_folder_of_the_same_name_does_not_hide_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "results", stop={"training_iteration": 1})
    run.train()
    (tmp_path / "it" / "src").mkdir(parents=True)
    (tmp_path / "config.yaml").touch()  # of a project, not of a run
    monkeypatch.chdir(tmp_path)
    assert find_run("it", tmp_path / "results") == run.folder.path
    assert find_weights("it", tmp_path / "results").parents[1] == run.folder.path
    with pytest.raises(CheckpointError, match="src is not a checkpoint and contains none"):
        find_weights("it/src", tmp_path / "results")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=8), st.text(st.sampled_from("Pong-v1/: ~[*."), min_size=1, max_size=9)),
        min_size=1,
        max_size=5,
    ),
)
def test_every_name_that_is_printed_is_found(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, str]]
) -> None:
    results = tmp_path_factory.mktemp("results")
    for name, env in drawn:
        try:
            checked = experiment({"name": name, "env": env}, "it").name
        except ValueError:  # not a name for a folder
            checked = experiment({"env": env}, "it").name
        (new_run_folder(results, checked, "PPO", env) / "config.yaml").touch()
    for run in runs_in(results):
        printed = str(run.path.relative_to(results))
        assert find_run(printed, results) == find_run(printed.partition("/")[2], results) == run.path
        assert find_run(printed.partition("/")[0], results).parent == run.path.parent


def test_the_name_of_an_environment_as_a_folder() -> None:
    assert folder_name("ALE/Pong-v5") == "ALE-Pong-v5"
    assert folder_name("package.module:Maze") == "package.module.Maze"
    assert folder_name("../etc") == "etc"
    assert folder_name("/") == "env"
    assert experiment({"config": {"env": "ALE/Pong-v5"}}, "it").name == "ALE-Pong-v5"
    assert experiment({"env": make}, "it").name == "tests.runs.common.make"


def test_a_run_from_an_experiment_without_a_name(tmp_path: Path) -> None:
    with Run.create(Experiment(env="CartPole-v1", config=CONFIG), tmp_path) as run:
        assert run.folder.path.parent == tmp_path / "CartPole-v1"
        assert run.experiment.name == "CartPole-v1"


def test_an_old_run_that_is_named_default(tmp_path: Path) -> None:
    run = make(tmp_path, name="default", stop={"training_iteration": 1})
    run.train()
    assert find_run("default", tmp_path) == run.folder.path
    assert run.folder.experiment().name == "default"
    assert json.loads((run.folder.path / "status.json").read_text())["state"] == "finished"
