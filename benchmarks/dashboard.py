"""The dashboard: a folder of many long runs, and what watching costs a run that trains.

    python benchmarks/dashboard.py [--runs 200] [--points 100000] [--rounds 5] [--steps 400000]
    python benchmarks/dashboard.py --only long | training

long: 200 runs of 100,000 results each. The lines are those of a real PPO run with other numbers, in 20 distinct files
that are linked ten times each, in a temporary folder. Measured at a server that has just started: the list, a chart of
20 runs by its first answer (from sampled lines), the time until all 20 curves are exact, the same chart then, a part of
it in full detail, and the server's peak memory.

training: environment steps per second of a PPO run on CartPole-v1 without a dashboard, and with one that a client
watches as a page does: it reads the events, and asks for six charts and the details of the run every two seconds. Both
in turn; the ratio is that of the medians. On a busy machine it says little; the CPU time of the dashboard, as a share
of one core while the run trained, says more: it bounds what training can lose.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

FILES = 20  # distinct ones
CHARTED = 20
METRICS = (
    "episode_return_mean",
    "episode_len_mean",
    "env_steps_per_s",
    "learner/entropy",
    "learner/kl",
    "learner/vf_loss",
)
TRAIN = ["--env", "CartPole-v1", "--run", "PPO", "--num-workers", "0"]


def train(results: Path, *arguments: str) -> Path:
    """Train a run in a process of its own. Returns its folder."""
    command = [sys.executable, "-m", "outplay", "train", *TRAIN, *arguments, "--results-dir", str(results)]
    before = set(results.glob("*/*"))
    subprocess.run(command, check=True, capture_output=True)
    (folder,) = set(results.glob("*/*")) - before
    return folder


@contextmanager
def dashboard(results: Path) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    command = [sys.executable, "-m", "outplay", "dashboard", "--results-dir", str(results), "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.search(r"http://\S+?(?=/ )", process.stderr.readline())
    assert found is not None
    try:
        with httpx.Client(base_url=found[0], trust_env=False, timeout=120) as client:
            yield client, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate()


# Long runs.


def write_long(template: list[dict[str, Any]], path: Path, points: int, seed: int) -> None:
    """A metrics.jsonl of `points` lines: those of a real run, with a learning curve of its own."""
    rng = np.random.default_rng(seed)
    returns = 500 / (1 + np.exp(-np.linspace(-4, 6, points))) + rng.normal(0, 25, points)
    tails = [json.dumps(result, separators=(",", ":"))[1:] for result in map(_without_head, template)]
    with path.open("w") as file:
        for start in range(0, points, 10_000):
            part = range(start, min(points, start + 10_000))
            file.write(
                "".join(
                    f'{{"training_iteration":{i + 1},"timesteps_total":{(i + 1) * 2048},"episodes_total":{(i + 1) * 9},'
                    f'"episode_return_mean":{float(returns[i])!r},"time_total_s":{(i + 1) * 0.28137512!r},'
                    f"{tails[i % len(tails)]}\n"
                    for i in part
                )
            )


def _without_head(result: dict[str, Any]) -> dict[str, Any]:
    head = ("training_iteration", "timesteps_total", "episodes_total", "episode_return_mean", "time_total_s")
    return {key: value for key, value in result.items() if key not in head}


def make_long(results: Path, runs: int, points: int) -> float:
    """Make the folder. Returns the megabytes of one metrics.jsonl."""
    with tempfile.TemporaryDirectory() as temporary:
        real = train(Path(temporary), "--stop", "training_iteration=40")
        lines = (real / "metrics.jsonl").read_text().splitlines()
        template = [json.loads(line) for line in lines[8:]]
        config, status = (real / "config.yaml").read_text(), json.loads((real / "status.json").read_text())
    status |= {"training_iteration": points, "timesteps_total": points * 2048}
    distinct: list[Path] = []
    for i in range(runs):
        folder = results / f"experiment-{i % 8}" / f"PPO_CartPole-v1_{i:06x}_2026-11-18_12-00-00"
        folder.mkdir(parents=True)
        learning_rate = 0.0001 * (i // 5 + 1)
        own = config.replace("seed: 0", f"seed: {i % 5}").replace("lr: 0.001\n", f"lr: {learning_rate:g}\n")
        (folder / "config.yaml").write_text(own)
        (folder / "status.json").write_text(json.dumps({**status, "episode_return_mean": 480.0 + i % 7}))
        if len(distinct) < FILES:
            write_long(template, folder / "metrics.jsonl", points, i)
            distinct.append(folder / "metrics.jsonl")
        else:
            (folder / "metrics.jsonl").hardlink_to(distinct[i % FILES])
    return distinct[0].stat().st_size / 1e6


def timed(client: httpx.Client, path: str, params: Any = None) -> tuple[float, Any]:
    started = time.perf_counter()
    answer = client.get(path, params=params)
    seconds = time.perf_counter() - started
    answer.raise_for_status()
    return seconds, answer.json()


def measure_long(runs: int, points: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        size = make_long(Path(temporary), runs, points)
        print(f"{runs} runs of {points:,} results, {size:.0f} MB each, {min(FILES, runs)} distinct files", flush=True)
        with dashboard(Path(temporary)) as (client, process):
            seconds, overview = timed(client, "/api/overview")
            assert len(overview["runs"]) == runs
            show("list, just started", seconds, 1.0)
            show("list, again", timed(client, "/api/overview")[0], 1.0)
            ids = [run["id"] for run in overview["runs"][:CHARTED]]
            chart = [("metric", METRICS[0]), ("points", "800"), *(("run", each) for each in ids)]
            seconds, answer = timed(client, "/api/series", chart)
            assert all(len(series["x"]) >= 300 for series in answer["series"])
            show(f"chart of {len(ids)} runs, first answer", seconds, 2.0)
            started = time.perf_counter()
            while not all(series["exact"] for series in answer["series"]):
                time.sleep(1)
                answer = timed(client, "/api/series", chart)[1]
            show("until all curves are exact", time.perf_counter() - started)
            assert all(series["total"] == points for series in answer["series"])
            show("the same chart, exact", timed(client, "/api/series", chart)[0], 2.0)
            show("another metric", timed(client, "/api/series", [("metric", METRICS[3]), *chart[1:]])[0], 2.0)
            zoom = [("from", str(points * 1000)), ("to", str(points * 1040)), *chart]
            show("2 % of the chart, in full detail", timed(client, "/api/series", zoom)[0])
            print(f"{'peak memory of the server':<40}{peak_memory(process):9.0f} MB", flush=True)


def show(what: str, seconds: float, aim: float | None = None) -> None:
    verdict = "" if aim is None else f"   aim {aim:g} s: {'reached' if seconds < aim else 'missed'}"
    print(f"{what:<40}{seconds:9.2f} s{verdict}", flush=True)


def peak_memory(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        assert found is not None
        return int(found[1]) / 1024
    return float(process.memory_info().rss / 2**20)


# Training.


class Page(threading.Thread):
    """A client that asks for what an open page asks for."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.done, self.answers = url, threading.Event(), 0

    def run(self) -> None:
        reading = threading.Thread(target=self.read_events, daemon=True)
        reading.start()
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60) as client:
            while not self.done.wait(2.0):
                runs = client.get("/api/overview").json()["runs"]
                for run in runs[-1:]:
                    client.get("/api/run", params={"run": run["id"]}).raise_for_status()
                    for metric in METRICS:
                        params = {"metric": metric, "run": run["id"], "points": "800"}
                        client.get("/api/series", params=params).raise_for_status()
                        self.answers += 1

    def read_events(self) -> None:
        with (
            httpx.Client(base_url=self.url, trust_env=False, timeout=60) as client,
            client.stream("GET", "/api/events") as events,
        ):
            for _ in events.iter_lines():
                if self.done.is_set():
                    return


def speed(folder: Path) -> float:
    """Steps per second of a run, without its first tenth: torch starts slowly."""
    results = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, last = results[len(results) // 10], results[-1]
    steps: float = last["timesteps_total"] - first["timesteps_total"]
    return steps / float(last["time_total_s"] - first["time_total_s"])


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_training(rounds: int, steps: int) -> None:
    found: dict[str, list[float]] = {"without": [], "with": []}
    shares: list[float] = []
    for i in range(rounds):
        for side in ("without", "with") if i % 2 == 0 else ("with", "without"):
            with tempfile.TemporaryDirectory() as temporary:
                results = Path(temporary)
                if side == "without":
                    folder = train(results, "--stop", f"timesteps_total={steps}")
                else:
                    with dashboard(results) as (client, process):
                        client.get("/api/overview").raise_for_status()
                        time.sleep(8)  # the defaults of settings are read once, by another process
                        page = Page(str(client.base_url))
                        page.start()
                        cpu, started = cpu_seconds(process), time.perf_counter()
                        folder = train(results, "--stop", f"timesteps_total={steps}")
                        shares.append((cpu_seconds(process) - cpu) / (time.perf_counter() - started))
                        page.done.set()
                        page.join()
                        assert page.answers
                found[side].append(speed(folder))
            print(f"round {i + 1}, {side:<8}{found[side][-1]:>12,.0f} steps/s", flush=True)
    medians = {side: statistics.median(values) for side, values in found.items()}
    ratio = medians["with"] / medians["without"]
    print(f"medians: {medians['without']:,.0f} without, {medians['with']:,.0f} with: {ratio:.3f}")
    print(f"CPU time of the dashboard: {statistics.median(shares):.1%} of one core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--only", choices=("long", "training"))
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if chosen.only != "training":
        measure_long(chosen.runs, chosen.points)
    if chosen.only != "long":
        measure_training(chosen.rounds, chosen.steps)


if __name__ == "__main__":
    main()
