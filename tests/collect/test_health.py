"""What status.json says of each worker, and of the machine."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

from outplay.collect import AsyncCollector
from outplay.collect.health import MAX_LISTED, WorkerHealth, report
from outplay.errors import RunError
from outplay.machine import MachineUsage, gpu_usage
from outplay.runs.recorder import status_of
from outplay.runs.run import Run
from tests import probes
from tests.runs.common import make

KEYS = {"index", "state", "heartbeat", "steps_per_s", "restarts", "policy_lag", "error"}


def workers(run: Run) -> list[dict[str, Any]]:
    status = status_of("running", run.algorithm, {}, 0.0)
    assert status["workers"]["number"] == len(status["workers"]["each"])
    assert status["workers"]["replaced"] == sum(worker["restarts"] for worker in status["workers"]["each"])
    each: list[dict[str, Any]] = status["workers"]["each"]
    return each


def test_a_worker_that_dies_is_reported_with_the_reason(process_engine: None, tmp_path: Path) -> None:
    started = datetime.now().astimezone().replace(microsecond=0)
    with make(tmp_path, env=probes.Walk, config={"num_workers": 2}) as run:
        assert workers(run) == []  # they start with the first iteration
        run.step()
        each = workers(run)
        assert [set(worker) for worker in each] == [KEYS, KEYS]
        assert [(w["index"], w["state"], w["restarts"], w["policy_lag"], w["error"]) for w in each] == [
            (0, "running", 0, 0, None),
            (1, "running", 0, 0, None),
        ]
        for worker in each:
            assert datetime.fromisoformat(worker["heartbeat"]) >= started
            assert worker["steps_per_s"] > 0
        speeds = [worker["steps_per_s"] for worker in each]
        assert [worker["steps_per_s"] for worker in workers(run)] == speeds  # nothing new: the last figures stay
        victim = run.algorithm.workers.foreach_worker(lambda worker: worker.process())[1][1]
        os.kill(victim, signal.SIGKILL)
        run.step()
        first, second = workers(run)
        assert (first["restarts"], first["error"]) == (0, None)
        assert (second["restarts"], second["state"]) == (1, "running")
        assert "\n" not in second["error"]
        assert len(second["error"]) > 10
    status = run.folder.status()
    assert status is not None
    assert status["workers"]["number"] == 2
    assert status["workers"]["each"][1]["error"] == second["error"]


def test_the_policy_lag_of_each_worker(process_engine: None, tmp_path: Path) -> None:
    config = {"num_workers": 2, "num_envs": 2, "train_batch_size": 8, "rollout_fragment_length": 4}
    data = {"name": "it", "env": probes.Walk, "run": "IMPALA", "stop": {"training_iteration": 5}, "config": config}
    with Run.create(data, tmp_path) as run:
        run.step()
        assert [worker["policy_lag"] >= 0 for worker in workers(run)] == [True, True]
        collector = run.algorithm.collector
        assert isinstance(collector, AsyncCollector)
        fragments = collector.drain()  # each worker was asked for more Fragments than it has delivered
        last = {fragment.group % 2: fragment.updates for fragment in fragments}
        collector.record_lag(fragments, 1000)
        lags = {worker["index"]: worker["policy_lag"] for worker in workers(run)}
        assert fragments
        assert {worker: lags[worker] for worker in last} == {worker: 1000 - updates for worker, updates in last.items()}


def test_without_worker_processes_the_list_is_empty_and_the_machine_is_measured(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    status = run.folder.status()
    assert status is not None
    assert status["workers"] == {"number": 0, "replaced": 0, "each": []}
    machine = status["machine"]
    assert set(machine) == {
        *("cpus", "cpu_percent", "memory_used_bytes", "memory_total_bytes"),
        *("run_cpu_percent", "run_memory_bytes", "gpus"),
    }
    assert 0 <= machine["cpu_percent"] <= 100
    assert 0 < machine["run_memory_bytes"] < machine["memory_total_bytes"]
    assert machine["gpus"] == gpu_usage() == []  # CUDA is not in use


def test_the_list_is_bounded_and_so_is_an_error() -> None:
    many = [WorkerHealth() for _ in range(MAX_LISTED + 10)]
    many[0].replaced(RunError("x" * 1000 + "\nsecond line"))
    many[1].replaced(RunError())
    listed = report(many)
    assert len(listed) == MAX_LISTED
    assert listed[0]["error"] == "x" * 299 + "…"
    assert listed[0]["state"] == "starting"
    assert listed[1]["error"] == "RunError"
    assert listed[2]["heartbeat"] is listed[2]["steps_per_s"] is listed[2]["error"] is None


def test_the_cpu_share_of_the_machine_is_a_percentage() -> None:
    usage = MachineUsage()
    for _ in range(3):
        sample = usage.sample()
        assert 0 <= sample["cpu_percent"] <= 100
        assert 0 < sample["memory_used_bytes"] < sample["memory_total_bytes"]
        assert sample["cpus"] >= 1
