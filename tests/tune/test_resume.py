"""A study that is killed at any moment is resumed: nothing is lost or run twice, and all decisions are the same."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outplay import tune
from outplay.errors import ConfigError, RunError
from outplay.tune import ExperimentAnalysis
from outplay.tune.folder import StudyFolder
from outplay.tune.schedulers import MedianStoppingRule

# Trials report checkpoints every second iteration; a scheduler stops the worse half at every second result. All follows
# from the config, so that a study that was killed can be compared with one that was not.
PROGRAM = """
import json, os, sys, tempfile, time
from pathlib import Path
from outplay import tune
from outplay.tune.schedulers import STOP, Scheduler

def train(config):
    checkpoint = tune.get_checkpoint()
    done = 0 if checkpoint is None else json.loads(Path(checkpoint.path, "s.json").read_text())
    with open(os.environ["STARTS"], "a") as file:
        file.write(f"{tune.get_context().get_trial_id()} {done} {os.getpid()}\\n")
    for i in range(done, 6):
        time.sleep(0.005)
        kept = None
        if i % 2:
            kept = tempfile.mkdtemp()
            Path(kept, "s.json").write_text(json.dumps(i + 1))
        tune.report({"score": config["x"] * (i + 1)}, checkpoint=kept)

class Halving(Scheduler):
    def setup(self, *given):
        super().setup(*given)
        self.seen = {}
    def on_result(self, trial, result):
        others = self.seen.setdefault(trial.iteration, [])
        others.append(result["score"])
        worse = sorted(others, reverse=True).index(result["score"]) > len(others) / 2
        return {trial.id: STOP} if worse and trial.iteration % 2 == 0 else {}

from outplay.tune.schedulers import ASHAScheduler, HyperBandForBOHB, HyperBandScheduler, MedianStoppingRule
from outplay.tune.search import OptunaSearch, TuneBOHB

search, scheduler = {
    "halving": lambda: (None, Halving()),
    "asha": lambda: (OptunaSearch(), ASHAScheduler(max_t=6, grace_period=1, reduction_factor=2)),
    "hyperband": lambda: (OptunaSearch(sampler="cmaes"), HyperBandScheduler(max_t=6, reduction_factor=2)),
    "bohb": lambda: (TuneBOHB(), HyperBandForBOHB(max_t=6, reduction_factor=2)),
    "median": lambda: (OptunaSearch(sampler="qmc"), MedianStoppingRule("training_iteration", grace_period=2)),
}[sys.argv[3]]()
tune.run(
    train, config={"x": tune.uniform(0, 1)}, num_samples=12, metric="score", mode="max", search_alg=search,
    scheduler=scheduler, name="study", storage_path=sys.argv[1], resume="AUTO",
    max_concurrent_trials=int(sys.argv[2]), verbose=0,
)
"""


def program(tmp_path: Path, folder: Path, slots: int, kind: str = "halving") -> subprocess.Popen[bytes]:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "STARTS": str(folder / "starts.txt")}
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(tmp_path / "program.py"), str(folder), str(slots), kind]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(process: subprocess.Popen[bytes]) -> None:
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output.decode()


def decisions(folder: Path) -> dict[str, Any]:
    """What was decided, by trial and iteration; without times and restarts."""
    return {
        f"{entry['trial']} {entry['metrics']['training_iteration']}": entry.get("decisions", {})
        for entry in StudyFolder(folder / "study").entries()
        if entry["event"] == "result"
    }


def outcome(folder: Path) -> list[Any]:
    trials = ExperimentAnalysis(folder / "study").trials
    return [(t.id, str(t.status), t.values, t.last_result["score"], t.iteration) for t in trials]


def kill_after(process: subprocess.Popen[bytes], journal: Path, lines: int) -> bool:
    """Kill the driver when the journal has this many lines. Returns whether it was still running."""
    while process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") >= lines:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)
            return True
        time.sleep(0.001)
    process.communicate(timeout=30)
    return False


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("halving", [3, 17, 40]),
        ("asha", [1, 11, 29, 55]),
        pytest.param("halving", [1, 11, 29, 55], marks=pytest.mark.slow),
        pytest.param("asha", [2, 19, 37, 48], marks=pytest.mark.slow),
        pytest.param("hyperband", [9, 33, 61], marks=pytest.mark.slow),
        pytest.param("bohb", [9, 33, 61], marks=pytest.mark.slow),
        pytest.param("median", [9, 33, 61], marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_moment(tmp_path: Path, kind: str, steps: list[int]) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    journal = killed / "study" / "journal.jsonl"
    finished(program(tmp_path, undisturbed, 1, kind))
    kills = [kill_after(program(tmp_path, killed, 1, kind), journal, lines) for lines in steps]
    assert any(kills)
    finished(program(tmp_path, killed, 1, kind))
    assert decisions(killed) == decisions(undisturbed)
    assert outcome(killed) == outcome(undisturbed)
    entries = [e for e in StudyFolder(killed / "study").entries() if e["event"] == "result"]
    counted = Counter((entry["trial"], entry["metrics"]["training_iteration"]) for entry in entries)
    assert set(counted.values()) == {1}, "no result is recorded twice"
    # A trial starts again only because it was running at a kill, or because it was paused in both studies.
    restarts = starts(killed) - starts(undisturbed)
    assert sum(restarts.values()) <= sum(kills)


def starts(folder: Path) -> Counter[str]:
    """How often each trial was started."""
    return Counter(line.split()[0] for line in (folder / "starts.txt").read_text().splitlines())


def test_two_at_a_time_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    for lines in (5, 20, 45):
        kill_after(program(tmp_path, folder, 2), folder / "study" / "journal.jsonl", lines)
    finished(program(tmp_path, folder, 2))
    trials = ExperimentAnalysis(folder / "study").trials
    assert len(trials) == 12
    assert all(trial.status == "TERMINATED" for trial in trials)
    entries = [e for e in StudyFolder(folder / "study").entries() if e["event"] == "result"]
    counted = Counter((entry["trial"], entry["metrics"]["training_iteration"]) for entry in entries)
    assert set(counted.values()) == {1}


def failing(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = 0 if checkpoint is None else int(Path(checkpoint.path, "i").read_text())
    for i in range(start, 4):
        folder = Path(config["folder"], f"{config['x']}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "i").write_text(str(i + 1))
        tune.report(i=i, start=start, checkpoint=str(folder))
        if i == 1 and config["x"] == 1 and Path(config["folder"], "fails").exists():
            raise RuntimeError("failed")


@pytest.mark.parametrize(("resume", "start"), [("AUTO+ERRORED", 2), ("LOCAL+RESTART_ERRORED", 0)])
def test_failed_trials_are_tried_again(tmp_path: Path, resume: str, start: int) -> None:
    settings: dict[str, Any] = {
        "config": {"x": tune.grid_search([0, 1]), "folder": str(tmp_path)}, "name": "s", "storage_path": tmp_path,
        "verbose": 0, "raise_on_failed_trial": False,
    }  # fmt: skip
    (tmp_path / "fails").touch()
    assert list(tune.run(failing, **settings).errors) == ["00001"]
    assert list(tune.run(failing, **settings, resume=True).errors) == ["00001"], "failed trials have ended"
    (tmp_path / "fails").unlink()
    again = tune.run(failing, **settings, resume=resume)
    assert not again.errors
    assert [trial.last_result["i"] for trial in again.trials] == [3, 3]
    assert again.trials[1].last_result["start"] == start
    assert again.trials[0].last_result["start"] == 0


def test_a_finished_study_runs_nothing_again(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        with (tmp_path / "calls").open("a") as file:
            file.write("x")
        tune.report(v=config["x"])

    settings: dict[str, Any] = {"config": {"x": tune.grid_search([1, 2, 3])}, "name": "s", "storage_path": tmp_path}
    tune.run(train, **settings, verbose=0)
    result = tune.run(train, **settings, resume=True, verbose=0)
    assert (tmp_path / "calls").read_text() == "xxx"
    assert result.get_best_config("v", "max") == {"x": 3}


def test_resuming_with_more_samples(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report(v=config["x"])

    config = {"x": tune.uniform(0, 1)}
    first = tune.run(train, config=config, num_samples=3, name="s", storage_path=tmp_path, verbose=0)
    more = tune.run(train, config=config, num_samples=5, name="s", storage_path=tmp_path, verbose=0, resume=True)
    assert len(more) == 5
    assert [t.values for t in more.trials[:3]] == [t.values for t in first.trials]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"config": {"x": tune.uniform(5, 6)}},
            r"started with config/x/uniform \[0, 1\], not \[5, 6\]; resume it with",
        ),
        ({"config": {"y": tune.uniform(0, 1)}}, "started with config/x .*, not None"),
        ({"metric": "q"}, "started with metric .*'v'.*, not .*'q'"),
        ({"mode": "min"}, "started with mode"),
        ({"seed": 1}, "started with seed 0, not 1"),
        ({"seeds": 2}, "started with seeds"),
        ({"scheduler": MedianStoppingRule()}, "started with scheduler 'Scheduler', not 'MedianStoppingRule'"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "config": {"x": tune.uniform(0, 1)}, "metric": "v", "mode": "max", "name": "s", "storage_path": tmp_path
    }  # fmt: skip
    tune.run(lambda config: {"v": 1}, **settings, verbose=0)
    with pytest.raises(ConfigError, match=message):
        tune.run(lambda config: {"v": 1}, **{**settings, **change}, resume=True, verbose=0)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no study to resume in .*; resume='AUTO' starts a new one"):
        tune.run(failing, name="s", storage_path=tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_study_that_runs_is_not_resumed_by_another_process(tmp_path: Path) -> None:
    tune.run(lambda config: {"x": 1}, name="s", storage_path=tmp_path, verbose=0)
    folder = StudyFolder(tmp_path / "s")
    folder.open()
    try:
        call = f"tune.run(lambda config: None, name='s', storage_path={str(tmp_path)!r}, resume=True)"
        script = f"from outplay import tune; {call}"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    finally:
        folder.close()
    assert done.returncode != 0
    assert "process" in done.stderr.splitlines()[-1]


def test_half_a_line_is_dropped_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report(v=1)

    settings: dict[str, Any] = {"num_samples": 2, "name": "s", "storage_path": tmp_path, "verbose": 0}
    tune.run(train, **settings)
    journal = tmp_path / "s" / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-7])
    assert len(tune.run(train, **settings, resume=True)) == 2
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"{nonsense\n", *lines[1:]]))
    with pytest.raises(RunError, match=r"journal.jsonl, line 2: damaged"):
        tune.run(train, **settings, resume=True)
    (tmp_path / "s" / "study.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(RunError, match=r"study.json is damaged, or from another version"):
        ExperimentAnalysis(tmp_path / "s")


def test_ctrl_c_ends_the_study_and_it_can_be_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = program(tmp_path, folder, 2)
    journal = folder / "study" / "journal.jsonl"
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 12):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    finished(program(tmp_path, folder, 2))
    assert len(ExperimentAnalysis(folder / "study").trials) == 12


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_of_the_driver_and_of_trials(tmp_path: Path, seed: int) -> None:
    """At random moments, the driver or a process of a trial is killed. All decisions are as if nothing had happened."""
    rng = random.Random(seed)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    finished(program(tmp_path, undisturbed, 1, "asha"))
    journal, kills = killed / "study" / "journal.jsonl", []
    process = program(tmp_path, killed, 1, "asha")
    while len(kills) < 8 and process.poll() is None:
        wait_for_growth(process, journal)
        time.sleep(rng.uniform(0, 0.15))
        if kills.count("trial") < 3 and rng.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # the trial has ended meanwhile
                os.kill(int((killed / "starts.txt").read_text().split()[-1]), signal.SIGKILL)
                kills.append("trial")
        else:
            process.kill()  # nothing happens if it has just ended
            process.communicate(timeout=60)
            kills.append("driver")
            process = program(tmp_path, killed, 1, "asha")
    finished(process)
    assert "driver" in kills
    assert decisions(killed) == decisions(undisturbed)
    assert outcome(killed) == outcome(undisturbed)


def wait_for_growth(process: subprocess.Popen[bytes], journal: Path) -> None:
    before = journal.stat().st_size if journal.exists() else 0
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > before + 100):
        time.sleep(0.002)
