"""Evaluations beside training, in a run: when they are reported, what they stop, and how the last one is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay.runs.callbacks import Callback
from outplay.runs.run import Run
from tests.cli.common import SMALL, only_run, start, wait_for
from tests.runs.common import lines, make, until, weights

BESIDE = {"evaluation_interval": 2, "evaluation_duration": 3, "evaluation_num_workers": 1}
BESIDE["evaluation_parallel_to_training"] = True


@pytest.fixture(scope="module", autouse=True)
def _inline_engine() -> Iterator[None]:
    outplay.init("inline", num_cpus=2)
    yield
    outplay.shutdown()


class Notes(Callback):
    def __init__(self) -> None:
        self.evaluations: list[tuple[int, dict[str, Any]]] = []

    def on_evaluation(self, run: Run, evaluation: dict[str, Any]) -> None:
        self.evaluations.append((run.algorithm.iteration, dict(evaluation)))


def reported(run: Run) -> dict[int, dict[str, Any]]:
    return {line["training_iteration"]: line["evaluation"] for line in lines(run) if "evaluation" in line}


def test_the_last_evaluation_is_not_lost_when_the_run_ends(tmp_path: Path) -> None:
    """A callback and the status have it; a run that is continued reports it where it belongs."""
    notes = Notes()
    run = make(tmp_path, stop={"training_iteration": 5}, config=BESIDE)
    run.train(callbacks=[notes])
    assert [(at, evaluation["iteration"]) for at, evaluation in notes.evaluations] == [(4, 2), (5, 4)]
    last = notes.evaluations[-1][1]
    status = json.loads((run.folder.path / "status.json").read_text())
    assert status["evaluation"] == run.last_evaluation == last
    assert list(reported(run)) == [4]

    again = Run.resume(run.folder, until({"training_iteration": 6}))
    again.train()
    assert reported(again)[6] == last
    assert "evaluation" in json.loads((run.folder.path / "status.json").read_text())  # that of iteration 6
    whole = make(tmp_path / "whole", stop={"training_iteration": 6}, config=BESIDE)
    whole.train()
    assert reported(whole) == reported(again)
    assert weights(whole) == weights(again)


def test_a_stop_condition_on_it_is_reached_at_a_fixed_iteration(tmp_path: Path) -> None:
    stop = {"evaluation/episode_return_mean": 5, "training_iteration": 9}
    for name, more in {"one": {}, "two": {"evaluation_num_workers": 2, "num_workers": 2}}.items():
        run = make(tmp_path / name, stop=stop, config={**BESIDE, **more})
        assert run.train() == "evaluation/episode_return_mean reached 5"
        assert run.algorithm.iteration == 4


def test_a_confirmation_is_an_evaluation_of_the_weights_that_are_confirmed(tmp_path: Path) -> None:
    config = {**BESIDE, "train_batch_size": 400, "num_sgd_iter": 10, "metrics_num_episodes": 10}
    run = make(tmp_path, stop={"episode_return_mean": 20}, confirm=True, config=config)
    assert run.train() == "episode_return_mean reached 20"
    last = lines(run)[-1]
    assert last["training_iteration"] % 5 == 0
    assert "iteration" not in last["evaluation"]
    beside = {number: evaluation for number, evaluation in reported(run).items() if number % 5}
    assert [evaluation["iteration"] for evaluation in beside.values()] == [number - 2 for number in beside]


@pytest.mark.slow
def test_a_run_that_is_killed_reports_the_same_evaluations(tmp_path: Path) -> None:
    """kill -9 while an evaluation is under way, in processes."""
    arguments = ["--env", "tests.probes:Walk", *SMALL, "--stop", "training_iteration=20", "--checkpoint-freq", "3"]
    for key, value in BESIDE.items():
        arguments += ["--config", f"{key}={str(value).lower()}"]
    undisturbed = start(tmp_path, *arguments, "--results-dir", "undisturbed")
    _, errors = undisturbed.communicate(timeout=100)
    assert undisturbed.returncode == 0, errors
    (whole,) = (tmp_path / "undisturbed").glob("*/*")

    killed = start(tmp_path, *arguments)
    wait_for(lambda: list((tmp_path / "results").glob("*/*/checkpoints/checkpoint_000003")))
    killed.kill()
    killed.communicate()
    folder = only_run(tmp_path)
    resumed = start(tmp_path, "--resume", str(folder), "--trust")
    out, errors = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, errors
    assert "evaluation of iteration 20: return " in out
    found = [
        [json.loads(line).get("evaluation") for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (whole, folder)
    ]
    assert found[0] == found[1]
    assert [evaluation["iteration"] for evaluation in found[0] if evaluation] == list(range(2, 20, 2))
    states = [json.loads((run / "status.json").read_text())["evaluation"] for run in (whole, folder)]
    assert states[0] == states[1]
