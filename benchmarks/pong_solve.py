"""The recipe pong, or pong-dqn, until it is solved: steps, seconds, and the curve.

    python benchmarks/pong_solve.py [--recipe pong] [--seeds 3] [--plot docs/pong.png] [--config num_gpus=1]

Runs `outplay train RECIPE` for each seed, one after the other, and reads what it prints. Solved is what the recipe
stops at: the mean return of the last 20 training episodes is at least 18, and so is that of 10 fresh ones. "Solved"
counts from the start of the command to the confirmed evaluation, imports and evaluations included; "whole" goes on to
the end of the command, with checkpoint and video.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from figures import label, panels


@dataclass
class Solved:
    seed: int
    steps: int
    seconds: float
    whole: float
    evaluation: float
    rate: float  # steps per second of training
    curve: list[tuple[float, int, float]]  # seconds since the command was given, steps, mean return


def solve(recipe: str, seed: int, config: list[str]) -> Solved:
    settings = [part for setting in config for part in ("--config", setting)]
    curve, last, seconds = [], {}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "outplay", "train", recipe, "--json", "--seed", str(seed), *settings]
        started = time.perf_counter()
        with subprocess.Popen([*command, "--results-dir", folder], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for line in program.stdout:
                last, seconds = json.loads(line), time.perf_counter() - started
                if last["episode_return_mean"] is not None:
                    curve.append((seconds, last["timesteps_total"], last["episode_return_mean"]))
        whole = time.perf_counter() - started
        if program.returncode:
            sys.exit(f"{' '.join(command)} failed with exit code {program.returncode}")
    steps = last["timesteps_total"]
    evaluation = last["evaluation"]["episode_return_mean"]
    return Solved(seed, steps, seconds, whole, evaluation, steps / last["time_total_s"], curve)


def plot(runs: list[Solved], path: Path) -> None:
    with panels(path, 2, 9, 3, sharey=True) as (by_steps, by_time):
        for run in runs:
            values = [value for _, _, value in run.curve]
            by_steps.plot([steps / 1000 for _, steps, _ in run.curve], values, linewidth=1.2, label=f"seed {run.seed}")
            by_time.plot([seconds for seconds, _, _ in run.curve], values, linewidth=1.2)
        label(by_steps, 18, y="mean return, last 20 episodes", legend=True)
        label(by_time, 18, x="seconds since the command")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="pong")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--config", action="append", default=[], help="KEY=VALUE: a setting of the recipe; repeatable")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    runs = []
    print(f"{'seed':>6}{'steps':>10}{'steps/s':>10}{'solved':>10}{'whole':>10}{'evaluation':>12}")
    for seed in range(args.seeds):
        run = solve(args.recipe, seed, args.config)
        runs.append(run)
        figures = f"{seed:>6}{run.steps:>10,}{run.rate:>10,.0f}{run.seconds:>8.0f} s{run.whole:>8.0f} s"
        print(f"{figures}{run.evaluation:>12.1f}", flush=True)
    seconds = statistics.median(run.seconds for run in runs)
    steps = statistics.median(run.steps for run in runs)
    print(f"median: solved after {seconds:.0f} s, {steps:,.0f} steps")
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")
    if args.plot is not None:
        plot(runs, args.plot)


if __name__ == "__main__":
    main()
