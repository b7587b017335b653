"""The recipe pong, pong-gpu or pong-dqn, until it is solved: steps, seconds, and the curve.

    python benchmarks/pong_solve.py [--recipe pong] [--seeds 3] [--plot docs/pong.png] [--config lr=0.001]

Runs `outplay train RECIPE` for each seed, one after the other, and reads what it prints. Solved is what the recipe
stops at: the mean return of the last 20 training episodes is at least 18, and so is that of 10 fresh ones. "Solved"
counts from the start of the command to the confirmed evaluation, imports and evaluations included; "whole" goes on to
the end of the command, with checkpoint and video. "Solved" consists of "start" (until the first iteration begins),
"training" (iterations, and what is written between them) and "evaluated" (all confirming evaluations).
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
from typing import Any

from figures import label, panels


@dataclass
class Solved:
    seed: int
    steps: int
    seconds: float
    start: float  # of the seconds: before the first iteration
    evaluated: float  # of the seconds: in evaluations
    whole: float
    evaluation: float
    rate: float  # steps per second of training
    curve: list[tuple[float, int, float]]  # seconds since the command was given, steps, mean return


def solve(recipe: str, seed: int, config: list[str]) -> Solved:
    settings = [part for setting in config for part in ("--config", setting)]
    curve: list[tuple[float, int, float]] = []
    last: dict[str, Any] = {}
    seconds = start = evaluated = 0.0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "outplay", "train", recipe, "--json", "--seed", str(seed), *settings]
        started = time.perf_counter()
        with subprocess.Popen([*command, "--results-dir", folder], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for line in program.stdout:
                before, last, seconds = last, json.loads(line), time.perf_counter() - started
                if not before:
                    start = seconds - last["time_total_s"]
                if "evaluation" in last:
                    evaluated += last["time_total_s"] - before.get("time_total_s", 0.0) - last["time_this_iter_s"]
                if last["episode_return_mean"] is not None:
                    curve.append((seconds, last["timesteps_total"], last["episode_return_mean"]))
        whole = time.perf_counter() - started
        if program.returncode:
            sys.exit(f"{' '.join(command)} failed with exit code {program.returncode}")
    steps = last["timesteps_total"]
    evaluation = last["evaluation"]["episode_return_mean"]
    rate = steps / (last["time_total_s"] - evaluated)
    return Solved(seed, steps, seconds, start, evaluated, whole, evaluation, rate, curve)


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
    titles = ("steps", "steps/s", "start", "training", "evaluated", "solved", "whole", "evaluation")
    print(f"{'seed':>6}" + "".join(f"{title:>11}" for title in titles))
    for seed in range(args.seeds):
        run = solve(args.recipe, seed, args.config)
        runs.append(run)
        training = run.seconds - run.start - run.evaluated
        times = (run.start, training, run.evaluated, run.seconds, run.whole)
        figures = f"{seed:>6}{run.steps:>11,}{run.rate:>11,.0f}" + "".join(f"{time:>9.1f} s" for time in times)
        print(f"{figures}{run.evaluation:>11.1f}", flush=True)
    seconds = statistics.median(run.seconds for run in runs)
    steps = statistics.median(run.steps for run in runs)
    print(f"median: solved after {seconds:.1f} s, {steps:,.0f} steps")
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")
    if args.plot is not None:
        plot(runs, args.plot)


if __name__ == "__main__":
    main()
