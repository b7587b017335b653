"""Studies: their list, trials and figures, from real searches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import outplay
from outplay import tune
from outplay.runs.lock import FolderLock
from outplay.tune import ExperimentAnalysis
from outplay.tune.reporting import ranked
from tests.cli.common import wait_for
from tests.dashboard.common import get, refusal, serving
from tests.tune.test_report import Copying, Counter

EVIL = "<script>alert('x')</script>"
SMALL = {"num_workers": 0, "num_envs": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2}


def quadratic(config: dict[str, Any]) -> None:
    if config["lr"] < 1e-4:
        raise ValueError(f"{EVIL} & more")
    for i in range(3):
        tune.report(score=-((math.log10(config["lr"]) + 2) ** 2) * (i + 1))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("results")
    outplay.init("inline")
    options = {"storage_path": folder, "mode": "max", "verbose": 0, "raise_on_failed_trial": False}
    space = {"lr": tune.loguniform(1e-5, 1e-1), "layers": tune.choice([[64], [64, 64]]), EVIL: tune.choice(["a", EVIL])}
    tune.run(quadratic, config=space, name="function", num_samples=20, metric="score", **options)
    config = {"env": "CartPole-v1", **SMALL, "lr": tune.grid_search([1e-3, 1e-2])}
    stop = {"training_iteration": 2}
    tune.run("PPO", config=config, name="algorithm", stop=stop, metric="episode_return_mean", **options)
    rates = {"rate": tune.grid_search([10.0, 1.0])}
    stop = {"training_iteration": 5}
    tune.run(Counter, config=rates, name="copies", scheduler=Copying(), stop=stop, metric="score", **options)
    yield folder
    outplay.shutdown()


@pytest.fixture(scope="module")
def client(results: Path) -> Iterator[httpx.Client]:
    with serving(results) as found:
        yield found


def test_studies_are_listed_with_their_trials(client: httpx.Client, results: Path) -> None:
    overview = get(client, "/api/overview")
    studies = {study["id"]: study for study in overview["studies"]}
    assert set(studies) == {"function", "algorithm", "copies"}
    analysis = ExperimentAnalysis(results / "function")
    found = studies["function"]
    failed = len(analysis.errors)
    assert failed > 0
    assert (found["name"], found["metric"], found["mode"], found["state"]) == ("function", "score", "max", "finished")
    counts = (found["trials"], found["running"], found["finished"], found["failed"])
    assert counts == (20, 0, 20 - failed, failed)
    assert found["best"] == analysis.best_result["score"]
    assert found["error"] is None
    runs = {run["id"]: run for run in overview["runs"]}
    assert set(runs) == {"algorithm/trial_00000", "algorithm/trial_00001"}
    assert all(run["study"] == "algorithm" for run in runs.values())


def test_one_study(client: httpx.Client, results: Path) -> None:
    found = get(client, "/api/study", ("study", "function"))
    analysis = ExperimentAnalysis(results / "function")
    assert [trial["id"] for trial in found["trials"]] == [trial.id for trial in ranked(analysis)]
    assert set(found["variables"]) == {"lr", "layers", EVIL}
    best, last = found["trials"][0], found["trials"][-1]
    assert best["value"] == analysis.best_result["score"]
    assert best["config"]["lr"] == analysis.best_config["lr"]
    assert best["config"]["layers"] in ([64], [64, 64])
    assert (best["state"], best["iterations"], best["run"], best["error"]) == ("done", 3, None, None)
    assert last["state"] == "failed"
    assert last["value"] is None
    assert "ValueError" in last["error"]
    figures = {figure["id"]: figure for figure in found["figures"]}
    assert {"history", "parallel-coordinates", "importances", "slices", "learning-curves"} <= set(figures)
    for figure in figures.values():
        assert figure["html"].startswith("<figure><svg ")
        assert EVIL not in figure["html"] + figure["note"]


def test_trials_of_an_algorithm_lead_to_their_runs(client: httpx.Client) -> None:
    found = get(client, "/api/study", ("study", "algorithm"))
    assert {trial["run"] for trial in found["trials"]} == {"algorithm/trial_00000", "algorithm/trial_00001"}
    run = get(client, "/api/run", ("run", found["trials"][0]["run"]))
    assert run["config"]["config"]["lr"] == found["trials"][0]["config"]["lr"]


def test_why_importances_are_missing_is_told(client: httpx.Client) -> None:
    figures = {figure["id"]: figure for figure in get(client, "/api/study", ("study", "algorithm"))["figures"]}
    assert figures["history"]["html"].startswith("<figure><svg ")
    assert figures["importances"]["html"] == ""  # two trials are too few
    assert figures["importances"]["note"].startswith("Not shown: ")


def test_copies_have_a_lineage(client: httpx.Client) -> None:
    found = get(client, "/api/study", ("study", "copies"))
    assert "lineage" in {figure["id"] for figure in found["figures"]}


def test_a_study_that_runs_and_one_that_is_unknown(client: httpx.Client, results: Path) -> None:
    def state() -> str:
        return str(get(client, "/api/study", ("study", "function"))["study"]["state"])

    lock = FolderLock(results / "function")
    lock.acquire()
    try:
        wait_for(lambda: state() == "running")
    finally:
        lock.release()
    wait_for(lambda: state() == "finished")
    assert "no study" in refusal(client.get("/api/study", params={"study": "nothing"}), 404)
    journal = results / "function" / "journal.jsonl"
    kept = journal.read_bytes()
    journal.write_bytes(b"damaged\n")
    wait_for(lambda: state() == "unknown")
    assert "damaged" in get(client, "/api/study", ("study", "function"))["study"]["error"]
    journal.write_bytes(kept)
    wait_for(lambda: state() == "finished")
