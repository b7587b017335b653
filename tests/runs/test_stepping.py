"""step(), pause(), reconfigure(), clone_from(): what population-based training and loops of one's own need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import CheckpointError, ConfigError, RunError
from outplay.runs.experiments import experiment
from outplay.runs.run import Run
from tests.runs.common import lines, make, weights

DQN = {
    "run": "DQN",
    "config": {
        "num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 32, "learning_starts": 50,
        "buffer_size": 1000,
    },
}  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {"config": {"normalize_observations": True}},
    "DQN": DQN,
}


def make_one(results: Path, name: str, **body: Any) -> Run:
    """A run of 6 iterations."""
    chosen = {**ALGORITHMS[name], **body}
    config = {**ALGORITHMS[name]["config"], **body.get("config", {})}
    if name == "PPO":
        return make(results, **{"stop": {"training_iteration": 6}, **chosen, "config": config})
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 6}, **chosen, "config": config}
    return Run.create(experiment(data, "the test"), results)


def saved(run: Run) -> dict[str, bytes]:
    """All files of the newest checkpoint but those that hold times."""
    newest = run.folder.checkpoints()[-1]
    return {
        str(path.relative_to(newest)): path.read_bytes()
        for path in newest.rglob("*")
        if path.is_file() and path.name not in ("state.json", "manifest.json")
    }


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if not key.endswith("_s")}


@pytest.fixture(scope="module", params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(name: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_one(tmp_path_factory.mktemp("trained"), name)
    run.train()
    return run


def test_steps_are_what_training_is_made_of(tmp_path: Path, name: str, trained: Run) -> None:
    run = make_one(tmp_path, name, checkpoint_freq=2)
    results = []
    while not run.reason_to_stop:
        results.append(run.step())
        assert run.folder.metrics().results[-1]["training_iteration"] == len(results)
        status = run.folder.status()
        assert status is not None
        assert status["state"] == "running"
    run.end(run.reason_to_stop)
    assert saved(run) == saved(trained)
    assert [untimed(line) for line in lines(run)] == [untimed(line) for line in lines(trained)]
    assert [path.name[-1] for path in run.folder.checkpoints()] == ["2", "4", "6"]
    status = run.folder.status()
    assert status is not None
    assert status["state"] == "finished"


def test_a_pause_changes_nothing(tmp_path: Path, name: str, trained: Run) -> None:
    run = make_one(tmp_path, name, loggers=["csv"])
    for pause_after in (0, 1, 4):
        while run.algorithm.iteration < pause_after:
            run.step()
        path = run.pause()
        assert path == run.folder.checkpoints()[-1]
        assert path.name == f"checkpoint_{pause_after:06d}"
        with run.folder.locked():  # it is free
            pass
        status = run.folder.status()
        assert (status is None) if pause_after == 0 else (status is not None and status["state"] == "paused")
    assert run.train() == "training_iteration reached 6"
    assert saved(run) == saved(trained)
    assert [untimed(line) for line in lines(run)] == [untimed(line) for line in lines(trained)]
    assert len((run.folder.path / "progress.csv").read_text().splitlines()) == 7


@pytest.fixture
def engine() -> Any:
    outplay.init("process", num_cpus=2)
    yield
    outplay.shutdown()


def test_a_paused_run_has_no_workers(tmp_path: Path, engine: None) -> None:
    whole = make(tmp_path / "whole", stop={"training_iteration": 3})
    whole.train()
    run = make(tmp_path, stop={"training_iteration": 3}, config={"num_workers": 2})
    run.step()
    assert run.algorithm.worker_restarts == [0, 0]
    run.pause()
    assert run.algorithm.worker_restarts == []
    run.train()
    assert weights(run) == weights(whole)


def test_a_run_that_another_process_continued_is_not_stepped_here(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.step()
    run.pause()
    other = Run.resume(run.folder)
    with pytest.raises(RunError, match="is already open in this process"):
        run.step()
    other.step()
    other.pause()
    for use in (run.step, run.train, lambda: run.clone_from(other), lambda: run.reconfigure({"lr": 1.0})):
        with pytest.raises(RunError, match=r"was opened by process \d+ after this process paused it"):
            use()
    assert len(lines(other)) == 2
    again = Run.resume(run.folder)
    assert again.resumed_from == 2
    again.close()


def test_used_as_a_context_manager_it_is_saved(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.step()
    assert [path.name for path in run.folder.checkpoints()] == ["checkpoint_000001"]
    run.step()
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0
    again = Run.resume(run.folder)  # it was unlocked
    assert again.resumed_from == 1
    again.close()


def test_after_a_failure_it_can_be_stepped_again(tmp_path: Path, trained: Run, name: str) -> None:
    run = make_one(tmp_path, name)
    run.step()
    (run.folder.path / "metrics.jsonl").rename(tmp_path / "away")
    with pytest.raises(RunError, match="was deleted or moved during training"):
        run.step()
    status = run.folder.status()
    assert status is not None
    assert status["state"] == "failed"
    (tmp_path / "away").rename(run.folder.path / "metrics.jsonl")
    run.train()
    assert saved(run) == saved(trained)


# Changed settings


def test_a_run_with_changed_settings_is_one_that_was_resumed_with_them(tmp_path: Path, name: str) -> None:
    runs = []
    for results in (tmp_path / "one", tmp_path / "other"):
        run = make_one(results, name)
        run.step()
        run.step()
        runs.append(run)
    one, other = runs
    one.reconfigure({"lr": 1e-2})
    other.pause()
    other = Run.resume(other.folder, lambda old: old.model_copy(update={"config": {**old.config, "lr": 1e-2}}))
    for run in (one, other):
        assert run.algorithm.config.lr == 1e-2
        run.train()
    assert saved(one) == saved(other)
    assert [line["training_iteration"] for line in lines(one)] == [1, 2, 3, 4, 5, 6]
    assert one.folder.experiment().config["lr"] == 1e-2  # so that it is resumed with them


def test_settings_inside_of_others(tmp_path: Path) -> None:
    run = make(tmp_path, config={"model": {"fcnet_hiddens": [8]}})
    run.step()
    run.reconfigure({"model.fcnet_activation": "relu"})
    assert run.algorithm.config.model.fcnet_hiddens == [8]
    assert run.algorithm.config.model.fcnet_activation == "relu"
    run.close()


def test_a_function_among_the_settings_stays(tmp_path: Path) -> None:
    def next_task(result: dict[str, Any], env: Any, context: Any) -> None:
        return None

    run = make(tmp_path, env="tests.probes:Walk", config={"env_task_fn": next_task})
    run.step()
    run.reconfigure({"lr": 1e-2})
    assert run.algorithm.config.env_task_fn is next_task
    run.close()


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"lrr": 1e-2}, ConfigError, "unknown setting 'lrr'"),
        ({"lr": "fast"}, ConfigError, "lr must be a number"),
        ({"model.fcnet_hiddens": [7]}, CheckpointError, "of another network"),
    ],
)
def test_settings_that_do_not_fit_change_nothing(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    whole = make(tmp_path / "whole")
    whole.train()
    run = make(tmp_path)
    run.step()
    before = (run.folder.path / "config.yaml").read_bytes()
    with pytest.raises(error, match=sentence):
        run.reconfigure(settings)
    assert (run.folder.path / "config.yaml").read_bytes() == before
    run.train()
    assert weights(run) == weights(whole)


# Clones


def test_a_clone_continues_as_the_other_would(tmp_path: Path, name: str, trained: Run) -> None:
    """Three iterations with another learning rate; then all of the other is taken, but its folder and its history."""
    donor = make_one(tmp_path / "donor", name)
    run = make_one(tmp_path / "clone", name, config={"lr": 1e-5})
    for _ in range(3):
        donor.step()
        run.step()
    history = lines(run)
    assert saved_after(run) != saved_after(donor)
    run.clone_from(donor)
    assert saved(run) == saved(donor)
    assert run.algorithm.config.lr == 1e-5
    run.reconfigure({"lr": donor.algorithm.config.lr})
    run.train()
    assert saved(run) == saved(trained)
    assert lines(run)[:3] == history
    assert [line["training_iteration"] for line in lines(run)] == [1, 2, 3, 4, 5, 6]
    donor.close()


def saved_after(run: Run) -> dict[str, bytes]:
    run.save()
    return saved(run)


def test_a_clone_keeps_its_counters_and_survives_a_kill(tmp_path: Path, name: str) -> None:
    """The donor is ahead; the clone is resumed from what it saved, and is the same as one that was not."""
    donor = make_one(tmp_path / "donor", name)
    donor.train()
    ends = []
    for results in ("one", "other"):
        run = make_one(tmp_path / results, name)
        run.step()
        before = run.algorithm.timesteps, run.algorithm.seconds, run.algorithm.episodes.total
        run.clone_from(donor.folder if results == "one" else donor.folder.checkpoints()[-1])
        assert run.algorithm.iteration == 1
        assert (run.algorithm.timesteps, run.algorithm.seconds, run.algorithm.episodes.total) == before
        assert saved(run) == saved(donor)
        if results == "other":
            run.close()
            run = Run.resume(run.folder)
            assert run.resumed_from == 1
        run.train()
        assert [line["training_iteration"] for line in lines(run)] == [1, 2, 3, 4, 5, 6]
        steps = [line["timesteps_total"] for line in lines(run)]
        assert steps == sorted(steps)
        ends.append(saved(run))
    assert ends[0] == ends[1]


def test_what_cannot_be_cloned_changes_nothing(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    whole.train()
    other = make(tmp_path / "other", env="Acrobot-v1", stop={"training_iteration": 1})
    other.train()
    run = make(tmp_path)
    run.step()
    with pytest.raises(CheckpointError, match="the checkpoint belongs to another environment"):
        run.clone_from(other)
    with pytest.raises(CheckpointError, match="there is no checkpoint and no run at"):
        run.clone_from(tmp_path / "nowhere")
    run.train()
    assert weights(run) == weights(whole)


def test_a_run_from_plain_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user of the Python API writes it."""
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path))
    config = {"num_envs": 4, "train_batch_size": 40}
    run = outplay.Run.create({"env": "CartPole-v1", "stop": {"training_iteration": 2}, "config": config})
    assert run.train() == "training_iteration reached 2"
    assert run.folder.path.parent == tmp_path / "CartPole-v1"
    again = outplay.Run.resume(str(run.folder))
    assert again.is_finished
    again.close()
    with pytest.raises(ConfigError, match=r"Run.create\(\): unknown setting 'stopp'"):
        outplay.Run.create({"env": "CartPole-v1", "stopp": {}})
    assert json.loads((run.folder.path / "status.json").read_text())["state"] == "finished"
