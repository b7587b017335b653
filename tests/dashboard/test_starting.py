"""Runs that are started from the page, and requests to runs: real processes that train."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from outplay.runs.folder import RunFolder
from tests.cli.common import start, wait_for
from tests.dashboard.common import get, post, refusal, serving

TEXT = """
# An experiment, as `outplay train -f` reads it.
from-the-page:
  env: CartPole-v1
  run: PPO
  stop: {training_iteration: 3}
  config: {num_workers: 0, num_envs: 4, train_batch_size: 80}
"""
ENDLESS = TEXT.replace("training_iteration: 3", "training_iteration: 1000000")
PATIENCE_S = 100


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def client(results: Path) -> Iterator[httpx.Client]:
    with serving(results) as found:
        yield found


def started(client: httpx.Client, process: str) -> dict[str, Any]:
    found = get(client, "/api/starts")["starts"]
    return dict(next(each for each in found if each["process"] == process))


@pytest.mark.slow
def test_a_run_from_text_trains(client: httpx.Client, results: Path) -> None:
    answer = post(client, "/api/start", {"text": TEXT})
    assert answer.status_code == 202, answer.text
    process = answer.json()["process"]
    assert "appears in the list" in answer.json()["message"]
    found = wait_for(lambda: (s := started(client, process))["state"] != "running" and s, PATIENCE_S)
    assert (found["state"], found["code"]) == ("ended", 0), found
    assert any("training_iteration reached 3" in text for text in found["output"])
    run = wait_for(lambda: started(client, process)["run"])
    assert run.startswith("from-the-page/PPO_CartPole-v1_")
    details = get(client, "/api/run", ("run", run))
    assert details["run"]["state"] == "finished"
    assert details["run"]["iteration"] == 3
    assert len(RunFolder(results / run).checkpoints()) == 1
    assert psutil.pid_exists(os.getpid())


def test_a_run_from_a_recipe_trains_and_is_stopped_from_the_page(client: httpx.Client, results: Path) -> None:
    """The recipe is stopped as soon as it trains: with a checkpoint of the iteration under way."""
    recipes = {recipe["name"]: recipe for recipe in get(client, "/api/recipes")["recipes"]}
    assert {"cartpole", "pong"} <= set(recipes)
    assert all(recipe["description"] and "env:" in recipe["text"] for recipe in recipes.values())
    answer = post(client, "/api/start", {"recipe": "pendulum-sac", "name": "my-own-name"})
    assert answer.status_code == 202, answer.text
    process = answer.json()["process"]
    run = wait_for(lambda: started(client, process)["run"], PATIENCE_S)
    assert run.startswith("my-own-name/SAC_Pendulum-v1_")
    folder = RunFolder(results / run)
    wait_for(lambda: folder.last_metrics(1, 10_000), PATIENCE_S)
    answer = post(client, "/api/control", {"run": run, "action": "stop"})
    assert answer.status_code == 200, answer.text
    assert "with a checkpoint" in answer.json()["done"]
    wait_for(lambda: started(client, process)["state"] == "ended", PATIENCE_S)
    assert wait_for(lambda: get(client, "/api/run", ("run", run))["run"]["state"]) == "stopped"
    assert len(get(client, "/api/run", ("run", run))["checkpoints"]) >= 1
    assert "does not train" in refusal(post(client, "/api/control", {"run": run, "action": "stop"}), 409)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected experiments"),
        ("a: [", "line 1"),
        ("a: 3", "must be settings"),
        ("a: {run: PPO}", "env is missing"),
        ("a: {env: NoSuchEnv-v7}", "NoSuchEnv"),
        ("a: {env: CartPole-v1, run: PPOO}", "PPO"),
        ("a: {env: CartPole-v1, config: {lrr: 1}}", "lr"),
        ("a: {env: CartPole-v1, stop: {nothing: 1}}", "no metric 'nothing'"),
    ],
)
def test_wrong_text_gets_the_sentence_of_the_command(client: httpx.Client, text: str, part: str) -> None:
    sentence = refusal(post(client, "/api/start", {"text": text}), 422)
    assert part in sentence
    assert "/" not in sentence.replace("`outplay", "").split(":")[0]  # no path of a temporary file


def test_wrong_requests(client: httpx.Client) -> None:
    assert "cartpole" in refusal(post(client, "/api/start", {"recipe": "cartpol"}), 422)
    assert "either" in refusal(post(client, "/api/start", {}), 422)
    assert "either" in refusal(post(client, "/api/start", {"recipe": "cartpole", "text": TEXT}), 422)
    assert "unknown key" in refusal(post(client, "/api/start", {"recipe": "cartpole", "command": "x"}), 422)
    assert "longer" in refusal(post(client, "/api/start", {"text": "#" * 300_000}), 422)
    for name in ("../up", "/absolute", ".hidden", "~"):
        assert refusal(post(client, "/api/start", {"text": TEXT, "name": name}), 422)


@pytest.mark.slow
def test_a_run_survives_the_dashboard_and_has_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPLAY_TOKEN", "secret-token")
    results = tmp_path / "results"
    headers = {"authorization": "Bearer secret-token"}
    with serving(results, token="secret-token") as client:
        client.headers.update(headers)
        answer = post(client, "/api/start", {"text": ENDLESS})
        assert answer.status_code == 202, answer.text
        process = answer.json()["process"]
        run = wait_for(lambda: started(client, process)["run"], PATIENCE_S)
        trainer = psutil.Process(started(client, process)["pid"])
    try:
        folder = RunFolder(results / run)
        before = wait_for(lambda: folder.last_metrics(1, 10_000), PATIENCE_S)[0]["training_iteration"]
        wait_for(lambda: folder.last_metrics(1, 10_000)[0]["training_iteration"] > before, PATIENCE_S)
        assert trainer.is_running()
        assert "OUTPLAY_TOKEN" not in trainer.environ()
        assert os.getpgid(trainer.pid) == trainer.pid  # Ctrl-C at the dashboard does not reach it
        folder.request("stop")
        wait_for(lambda: (s := folder.status()) and s["state"] == "stopped", PATIENCE_S)
    finally:
        if trainer.is_running():
            trainer.send_signal(signal.SIGTERM)
            psutil.wait_procs([trainer], timeout=60)


def test_requests_to_a_run_of_the_command_line(tmp_path: Path) -> None:
    """checkpoint, evaluate and stop, sent over HTTP to a process that trains."""
    small = ["--config", "num_envs=4", "--config", "train_batch_size=80", "--num-workers", "0"]
    running = start(tmp_path, "--env", "CartPole-v1", *small, "--stop", "training_iteration=1000000")
    results = tmp_path / "results"
    try:
        with serving(results) as client:
            (run,) = wait_for(lambda: get(client, "/api/overview")["runs"], PATIENCE_S)
            wait_for(lambda: get(client, "/api/run", ("run", run["id"]))["run"]["state"] == "running", PATIENCE_S)

            def details() -> Any:
                return get(client, "/api/run", ("run", run["id"]))

            assert post(client, "/api/control", {"run": run["id"], "action": "checkpoint"}).status_code == 200
            wait_for(lambda: details()["checkpoints"], PATIENCE_S)
            assert post(client, "/api/control", {"run": run["id"], "action": "evaluate"}).status_code == 200
            wait_for(lambda: "evaluation/episode_return_mean" in details()["metrics"], PATIENCE_S)
            assert post(client, "/api/control", {"run": run["id"], "action": "stop"}).status_code == 200
            running.communicate(timeout=PATIENCE_S)
            wait_for(lambda: details()["run"]["state"] == "stopped", PATIENCE_S)
            last = details()["checkpoints"][-1]
            assert last["iteration"] == details()["run"]["iteration"]
    finally:
        running.kill()
        running.communicate()
