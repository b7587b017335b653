"""A long study needs no more files, threads and processes than a short one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest

from outplay import tune

Usage = dict[str, int]
TRIALS = 300
PART = 50  # trials at the beginning and at the end that are compared
SPARE = 3  # a thread that is just ending, a file that is just being read; a leak would be a hundred


def own_usage() -> Usage:
    return {"files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}


def train(config: dict[str, Any]) -> dict[str, Any] | None:
    """One of: returns a result, ends after a result, is stopped at its second result, fails."""
    kind = config["number"] % 4
    result = {"pid": os.getpid(), **own_usage()}
    if kind == 0:
        return result
    tune.report(result)
    if kind == 2:
        tune.report(result)
        raise AssertionError("it was not stopped")
    if kind == 3:
        raise ValueError("as it should")
    return None


class Watch(tune.Callback):
    """Measures the driver whenever a trial starts."""

    def __init__(self) -> None:
        self.seen: list[Usage] = []

    def on_trial_start(self, iteration: int, trials: Sequence[tune.Trial], trial: tune.Trial, **info: Any) -> None:
        self.seen.append({**own_usage(), "processes": processes()})


def processes() -> int:
    return len(psutil.Process().children(recursive=True))


def most(seen: Sequence[Usage]) -> Usage:
    return {name: max(usage[name] for usage in seen) for name in seen[0]}


def assert_not_grown(seen: Sequence[Usage]) -> None:
    first, last = most(seen[:PART]), most(seen[-PART:])
    assert {name: value for name, value in last.items() if value > first[name] + SPARE} == {}, (first, last)


@pytest.mark.usefixtures("process_engine")
def test_files_threads_and_processes_do_not_grow(run: Callable[..., tune.ExperimentAnalysis]) -> None:
    run(train, config={"number": 0})  # whatever stays once is there now
    before, watch = {**own_usage(), "processes": processes()}, Watch()
    study = run(
        train,
        config={"number": tune.grid_search(list(range(TRIALS)))},
        stop={"training_iteration": 2},
        callbacks=[watch],
        raise_on_failed_trial=False,
    )
    assert len(study.errors) == TRIALS // 4
    assert_not_grown(watch.seen)
    in_trials: dict[int, list[Usage]] = {}
    for trial in study.trials:
        usage = dict(trial.last_result)
        in_trials.setdefault(usage["pid"], []).append({name: usage[name] for name in ("files", "threads")})
    assert len(in_trials) <= 2  # processes are reused
    for seen in in_trials.values():
        assert_not_grown(seen)
    deadline = time.monotonic() + 60
    while (left := {**own_usage(), "processes": processes()}) != before and time.monotonic() < deadline:
        time.sleep(0.05)  # killed processes need some time to end
    assert {name: value for name, value in left.items() if value > before[name]} == {}
