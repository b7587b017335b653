"""The list of runs, one run in detail, comparisons, and events: of real runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outplay.dashboard import usage
from outplay.dashboard.usage import Machine, gpus_of
from outplay.runs.folder import RunFolder
from outplay.runs.run import Run
from tests.cli.common import wait_for
from tests.dashboard.common import events, get, post, refusal, run_id, series, serving, trained
from tests.runs.common import make

RUN_KEYS = {
    *("id", "name", "experiment", "study", "algorithm", "env", "seed", "state", "error", "progress", "iteration"),
    *("timesteps", "return", "steps_per_s", "seconds", "started", "updated", "spark", "settings", "has_workers"),
    "group",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def runs(results: Path) -> list[Run]:
    """Two seeds of one configuration, and another learning rate."""
    return [
        trained(results, config={"seed": 0}),
        trained(results, config={"seed": 1}),
        trained(results, iterations=3, name="other", config={"seed": 0, "lr": 0.01, "model": {"use_lstm": True}}),
    ]


@pytest.fixture(scope="module")
def client(results: Path, runs: list[Run]) -> Iterator[httpx.Client]:
    with serving(results) as found:
        yield found


def test_the_list_has_all_runs(client: httpx.Client, runs: list[Run], results: Path) -> None:
    overview = get(client, "/api/overview")
    assert overview["results"] == str(results)
    found = {run["id"]: run for run in overview["runs"]}
    assert set(found) == set(map(run_id, runs))
    first = found[run_id(runs[0])]
    assert set(first) == RUN_KEYS
    assert (first["algorithm"], first["env"], first["experiment"], first["seed"]) == ("PPO", "CartPole-v1", "it", 0)
    assert (first["state"], first["progress"], first["iteration"]) == ("finished", 1.0, 4)
    assert first["timesteps"] == runs[0].algorithm.timesteps
    values = [result["episode_return_mean"] for result in runs[0].folder.metrics().results]
    assert first["spark"] == values
    assert first["return"] == values[-1]
    machine = overview["machine"]
    assert machine["memory_total_bytes"] > machine["memory_used_bytes"] > 0
    assert machine["cpus"] >= 1


def test_runs_that_differ_in_the_seed_are_a_group(client: httpx.Client, runs: list[Run]) -> None:
    groups = {run["id"]: run["group"] for run in get(client, "/api/overview")["runs"]}
    one, same, other = (groups[run_id(run)] for run in runs)
    assert one == same != other
    wanted = [("metric", "episode_return_mean"), ("x", "training_iteration")]
    (found,) = get(client, "/api/groups", *wanted, ("group", one))["groups"]
    assert set(found["runs"]) == {run_id(runs[0]), run_id(runs[1])}
    assert found["x"] == [1, 2, 3, 4]
    assert found["exact"] is True
    values = [[result["episode_return_mean"] for result in run.folder.metrics().results] for run in runs[:2]]
    means = [sum(pair) / 2 for pair in zip(*values, strict=True)]
    assert found["iqm"] == pytest.approx(means)
    for low, mean, high in zip(found["low"], found["iqm"], found["high"], strict=True):
        assert low <= mean <= high
    custom = [("group", "custom"), *(("run", run_id(run)) for run in runs)]
    (found,) = get(client, "/api/groups", *wanted, *custom)["groups"]
    assert found["x"] == [1, 2, 3]  # where every run has data
    assert len(found["runs"]) == 3
    query = {"metric": "episode_return_mean", "group": "nothing"}
    assert "no group" in refusal(client.get("/api/groups", params=query), 404)
    assert "group=custom" in refusal(client.get("/api/groups", params={**query, "group": "custom"}), 422)


def test_only_settings_that_differ_from_the_defaults_are_listed(client: httpx.Client, runs: list[Run]) -> None:
    """The defaults of algorithms are read by another process: until then, shared settings are known."""

    def settings() -> dict[str, Any]:
        listed = get(client, "/api/overview")["runs"]
        return dict(next(run["settings"] for run in listed if run["id"] == run_id(runs[2])))

    wait_for(lambda: "num_sgd_iter" in settings(), 120)
    found = settings()
    assert found["lr"] == 0.01
    assert found["model.use_lstm"] is True
    assert found["num_sgd_iter"] == 2
    assert found["checkpoint_freq"] == 1
    assert found["stop.training_iteration"] == 3
    assert not {"gamma", "clip_param", "env", "seed", "model.lstm_cell_size"} & set(found)


def test_one_run_in_detail(client: httpx.Client, runs: list[Run]) -> None:
    run = runs[0]
    found = get(client, "/api/run", ("run", run_id(run)))
    assert found["run"]["id"] == run_id(run)
    assert found["status"]["state"] == "finished"
    assert found["config"]["config"]["train_batch_size"] == 200
    assert [checkpoint["iteration"] for checkpoint in found["checkpoints"]] == [1, 2, 3, 4]
    results = run.folder.metrics().results
    assert [c["return"] for c in found["checkpoints"]] == [result["episode_return_mean"] for result in results]
    assert [c["timesteps"] for c in found["checkpoints"]] == [result["timesteps_total"] for result in results]
    best = max(range(4), key=lambda i: results[i]["episode_return_mean"])
    assert [c["is_best"] for c in found["checkpoints"]].index(True) == best
    assert all(checkpoint["bytes"] > 1000 for checkpoint in found["checkpoints"])
    names = {stage["name"] for stage in found["stages"]}
    assert {"collect", "learn"} <= names
    assert all(0 <= stage["share"] <= 1 and stage["seconds"] >= 0 for stage in found["stages"])
    assert "learner/kl" in found["metrics"]
    assert found["last"]["training_iteration"] == 4
    assert found["last"]["learner/kl"] == results[-1]["learner"]["kl"]
    assert found["is_here"] is True
    assert found["host"] == os.uname().nodename
    assert found["videos"] == []
    assert found["curriculum"] is None
    assert found["evaluation"] is None


def test_the_newest_evaluation_is_found(tmp_path: Path) -> None:
    run = trained(tmp_path, iterations=5, config={"evaluation_interval": 2, "evaluation_duration": 3})
    evaluation = run.folder.results_of([4])[4]["evaluation"]
    with serving(tmp_path) as client:
        found = get(client, "/api/run", ("run", run_id(run)))["evaluation"]
        assert found == {
            "iteration": 4,
            "episodes": 3,
            "return": evaluation["episode_return_mean"],
            "low": evaluation["episode_return_min"],
            "high": evaluation["episode_return_max"],
        }
        beside = {"iteration": 5, "episode_return_mean": 7.5}  # one beside training that no iteration has reported
        run.folder.write_status({**(run.folder.status() or {}), "evaluation": beside})
        found = get(client, "/api/run", ("run", run_id(run)))["evaluation"]
        assert (found["iteration"], found["return"], found["low"]) == (5, 7.5, None)


def test_metrics_and_differences(client: httpx.Client, runs: list[Run]) -> None:
    metrics = get(client, "/api/metrics", *(("run", run_id(run)) for run in runs))["metrics"]
    assert {"episode_return_mean", "learner/entropy", "timesteps_total", "stages_s/learn"} <= set(metrics)
    found = get(client, "/api/diff", ("run", run_id(runs[0])), ("run", run_id(runs[2])))
    values = {setting["name"]: setting["values"] for setting in found["settings"]}
    assert values["lr"] == [runs[0].algorithm.config.lr, 0.01]
    assert values["model.use_lstm"] == [False, True]
    assert values["stop.training_iteration"] == [4, 3]
    assert "seed" not in values
    assert found["same"] > 50
    assert "two runs" in refusal(client.get("/api/diff", params={"run": run_id(runs[0])}), 422)


def test_the_page_and_its_files(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    for path in ("nothing.js", "../server.py", "%2e%2e/server.py", "..%2fserver.py", "/etc/passwd", ""):
        assert refusal(client.get(f"/static/{path}"), 404)
    assert "nothing at this path" in refusal(client.get("/api/nothing"), 404)
    assert "GET" in refusal(client.post("/api/overview", json={}), 405)


def test_a_run_that_trains_is_seen_growing(results: Path, runs: list[Run], client: httpx.Client) -> None:
    overview = get(client, "/api/overview")
    run = make(results, name="live", stop={"training_iteration": 50})
    try:
        with events(client, overview["at"]) as stream:
            run.step()
            run.step()
            seen: dict[str, Any] = {}
            while seen.get("iteration", 0) < 1 or seen["state"] != "running":
                event = stream.next()
                assert set(event) == {"runs", "removed", "studies", "machine"}
                assert all(run["id"] == run_id_of(results, "live") for run in event["runs"])  # only what has changed
                seen = next((each for each in event["runs"]), seen)
            assert series(client, seen["id"], "time_total_s")["total"] == 2
            run.step()
            assert series(client, seen["id"], "time_total_s")["total"] == 3
            run.pause()
            while seen["state"] != "paused":
                seen = next((each for each in stream.next()["runs"]), seen)
            assert seen["iteration"] == 3
            shutil.rmtree(run.folder.path)
            while seen["id"] not in stream.next()["removed"]:
                pass
        assert "no run" in refusal(client.get("/api/run", params={"run": seen["id"]}), 404)
    finally:
        run.close()


def run_id_of(results: Path, experiment: str) -> str:
    (folder,) = (results / experiment).iterdir()
    return f"{experiment}/{folder.name}"


def test_events_without_a_mark_begin_with_everything(client: httpx.Client, runs: list[Run]) -> None:
    for mark in ("", "nonsense", "00000000-7", "x-y-z"):
        with events(client, mark) as stream:
            assert {run["id"] for run in stream.next()["runs"]} >= set(map(run_id, runs))


@pytest.mark.slow
def test_a_run_that_was_killed_is_not_running(results: Path, runs: list[Run], client: httpx.Client) -> None:
    folder = results / "killed" / "PPO_x"
    shutil.copytree(runs[0].folder.path, folder)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "running"}))

    def state() -> str:
        listed = get(client, "/api/overview")["runs"]
        return next((run["state"] for run in listed if run["id"] == "killed/PPO_x"), "")

    wait_for(lambda: state() == "killed")
    lock = RunFolder(folder)
    lock.lock()
    (folder / "status.json").write_text(json.dumps({**status, "state": "running", "progress": 0.5}))
    wait_for(lambda: state() == "running")
    lock.unlock()
    wait_for(lambda: state() == "killed")
    other = {**status, "state": "running", "host": "another-machine", "updated": "2020-01-01T00:00:00+00:00"}
    (folder / "status.json").write_text(json.dumps(other))
    wait_for(lambda: state() == "unknown")  # a copy from another machine, silent for long
    answer = post(client, "/api/control", {"run": "killed/PPO_x", "action": "stop"})
    assert "does not train" in refusal(answer, 409)
    shutil.rmtree(folder.parent)


def test_a_change_that_a_request_has_seen_is_told_to_all_pages(tmp_path: Path) -> None:
    run = trained(tmp_path, iterations=1)
    with serving(tmp_path) as client, events(client) as stream:
        assert stream.next()["runs"]
        status = run.folder.status()
        assert status is not None
        run.folder.write_status({**status, "error": "a new error"})
        assert get(client, "/api/run", ("run", run_id(run)))["run"]["error"] == "a new error"
        while not any(run["error"] == "a new error" for run in stream.next()["runs"]):
            pass


def test_gpus_of_the_machine() -> None:
    text = "0, NVIDIA H200, 37, 1024, 143771\n1, NVIDIA H200, [N/A], [N/A], 143771\nsomething else\n"
    first, second = gpus_of(text)
    assert first["name"] == "NVIDIA H200"
    assert (first["percent"], first["memory_used_bytes"]) == (37.0, 2**30)
    assert (second["index"], second["percent"], second["memory_used_bytes"]) == ("1", None, None)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program nvidia-smi that does what its text says, and adds a line to the file `asked`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(usage, "INTERVAL_S", 0.0)
    found = tmp_path / "nvidia-smi"
    (tmp_path / "asked").touch()
    found.touch(0o755)
    return found


def behave(program: Path, text: str) -> None:
    """Replaced at once: it may be started meanwhile."""
    new = program.with_suffix(".new")
    new.write_text(f"#!/bin/sh\necho >> {program.parent}/asked\n{text}\n")
    new.chmod(0o755)
    new.replace(program)


def test_nobody_waits_for_the_gpus(program: Path) -> None:
    gate = program.parent / "gate"
    behave(program, f"while [ ! -e {gate} ]; do sleep 0.05; done\necho 0, NVIDIA H200, 97, 71234, 143771")
    machine = Machine(program.parent)
    for _ in range(3):
        assert machine.sample()["gpus"] == []
    assert (program.parent / "asked").read_text().count("\n") <= 1  # it is asked once at a time
    gate.touch()
    wait_for(lambda: machine.sample()["gpus"])
    (gpu,) = machine.sample()["gpus"]
    assert (gpu["percent"], gpu["memory_used_bytes"]) == (97.0, 71234 * 2**20)


def test_gpus_are_given_up_after_three_failures(program: Path) -> None:
    asked = program.parent / "asked"
    behave(program, "echo 0, NVIDIA H200, 97, 71234, 143771")
    machine = Machine(program.parent)
    wait_for(lambda: machine.sample()["gpus"])
    behave(program, "exit 9")
    wait_for(lambda: not machine.sample()["gpus"])
    behave(program, "echo 0, NVIDIA H200, 97, 71234, 143771")
    before = asked.read_text()
    assert machine.sample()["gpus"] == machine.sample()["gpus"] == []
    assert asked.read_text() == before


def test_a_single_failure_hides_no_gpu(program: Path) -> None:
    asked = program.parent / "asked"
    failing = f"[ $(wc -l < {asked}) -gt 2 ] || exit 9\necho 0, NVIDIA H200, 97, 71234, 143771"
    behave(program, failing)
    machine = Machine(program.parent)
    wait_for(lambda: machine.sample()["gpus"])
    assert asked.read_text().count("\n") >= 3


def test_the_server_does_not_import_torch() -> None:
    code = (
        "import sys, outplay.dashboard.server, outplay.dashboard.studies, outplay.cli.dashboard\n"
        "print([name for name in ('torch', 'gymnasium', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
