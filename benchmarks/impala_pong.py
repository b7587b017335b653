"""IMPALA and APPO on Pong beside RLlib's, with two workers: steps per second, and seconds until it is solved.

    python benchmarks/impala_pong.py [--run APPO] [--rounds 3] [--seconds 30]
    python benchmarks/impala_pong.py --solve [--run APPO] [--limit 600] [--seed 0]

Steps per second: both sides have 16 games in two workers, images of 84 × 84 × 4, the network of Mnih et al. 2015, and
batches of 512 steps; the first 10 seconds of steps are not counted. All else is each library's: RLlib's settings are
those that it publishes for Pong (impala_pong_rllib.py), Outplay's are its defaults, with float32 and with bfloat16.

Solved: the mean return of the last 20 episodes is at least 18; for Outplay also that of 10 evaluation episodes, whose
time counts. Outplay runs the recipes pong-impala and pong-appo, RLlib the settings that it publishes, until --limit.
Seconds are those since the start of the command for Outplay, and since the start of training for RLlib.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from others import install

HERE = Path(__file__).resolve().parent
WARM_UP, GOAL = 10.0, 18
STANDARD: dict[str, Any] = {
    "env_config": {"repeat_action_probability": 0.0},
    "num_workers": 2,
    "num_envs": 16,
    "train_batch_size": 512,
    "rollout_fragment_length": 32,
}


def rllib(run: str, seconds: float, *more: str) -> Iterator[dict[str, Any]]:
    """What RLlib's side prints: seconds, steps, return."""
    command = [
        str(install("rllib")),
        str(HERE / "impala_pong_rllib.py"),
        "--run",
        run,
        "--seconds",
        str(seconds),
        *more,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if program.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {program.returncode}")


def rllib_rate(run: str, seconds: float) -> float:
    found = [(r["seconds"], r["steps"]) for r in rllib(run, 2 * WARM_UP + seconds, "--standard") if r["steps"]]
    counted = [each for each in found if each[0] >= found[0][0] + WARM_UP]
    (begin, before), (end, after) = counted[0], counted[-1]
    return float((after - before) / (end - begin))


def outplay_rate(run: str, seconds: float, precision: str) -> float:
    """In a process of its own: `--side`."""
    command = [sys.executable, __file__, "--run", run, "--seconds", str(seconds), "--side", precision]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def own_rate(run: str, seconds: float, precision: str) -> float:
    from outplay.algorithms import find_algorithm

    settings = {**STANDARD, "model": {"precision": precision}}
    with find_algorithm(run)(env="ALE/Pong-v5", config=settings) as ours:
        begin = time.perf_counter()
        while time.perf_counter() < begin + WARM_UP:
            ours.train()
        before, begin = ours.timesteps, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            ours.train()
        return (ours.timesteps - before) / (time.perf_counter() - begin)


def rates(runs: list[str], rounds: int, seconds: float) -> None:
    print(f"{'':8}{'':20}{'steps/s':>9}{'ratio':>8}", flush=True)
    for run in runs:
        found: dict[str, list[float]] = {"RLlib": [], "Outplay": [], "Outplay, bfloat16": []}
        for _ in range(rounds):
            found["RLlib"].append(rllib_rate(run, seconds))
            found["Outplay"].append(outplay_rate(run, seconds, "float32"))
            found["Outplay, bfloat16"].append(outplay_rate(run, seconds, "bfloat16"))
        medians = {name: statistics.median(values) for name, values in found.items()}
        for name, rate in medians.items():
            print(f"{run:8}{name:20}{rate:>9,.0f}{rate / medians['RLlib']:>8.2f}", flush=True)


def solve(run: str, seed: int, limit: float) -> None:
    """Print when Outplay's recipe and RLlib have solved it."""
    begin, last, is_solved = time.perf_counter(), {}, True
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "outplay", "train", f"pong-{run.lower()}", "--json", "--seed", str(seed)]
        command += ["--results-dir", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for line in program.stdout:
                last, seconds = json.loads(line), time.perf_counter() - begin
                if seconds > limit and is_solved:
                    is_solved = False
                    program.terminate()  # it saves a checkpoint and ends
    if is_solved and program.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {program.returncode}")
    report(run, "Outplay", last["timesteps_total"], seconds, last["episode_return_mean"], is_solved)
    *_, last = rllib(run, limit, "--seed", str(seed))
    value = last["return"]
    report(run, "RLlib", last["steps"], last["seconds"], value, value is not None and value >= GOAL)


def report(run: str, name: str, steps: int, seconds: float, value: float | None, is_solved: bool) -> None:
    text = "solved" if is_solved else "not solved" if value is None else f"not solved, mean return {value:.1f}"
    print(f"{run:8}{name:10}{text} after {seconds:.0f} s, {steps:,} steps, {steps / seconds:,.0f} steps/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=["IMPALA", "APPO"], help="default: both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="of a measurement")
    parser.add_argument("--solve", action="store_true")
    parser.add_argument("--limit", type=float, default=600, help="seconds to solve it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=["float32", "bfloat16"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        print(own_rate(args.run, args.seconds, args.side))
        return
    load = os.getloadavg()[0]
    runs = ["IMPALA", "APPO"] if args.run is None else [args.run]
    if args.solve:
        for run in runs:
            solve(run, args.seed, args.limit)
    else:
        rates(runs, args.rounds, args.seconds)
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")


if __name__ == "__main__":
    main()
