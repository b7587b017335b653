"""Tune beside Ray Tune and plain Optuna: waiting time, overhead, memory, and how good the configurations are.

    python benchmarks/tune.py [--only grid overhead memory quality regret] [--rounds 3] [--seeds 9]

grid      25 trials that sleep for 1 s on 2 slots. That is 12.5 s, but 25 is odd: they cannot take less than 13 s.
overhead  trials that return at once: seconds per trial, without the start of the engine. Ray Tune runs fewer of them.
memory    resident memory of the driver after 4,000 trials that return at once. Ray Tune runs fewer of them.
quality   the best of 100 trials, one at a time, on test functions: TPE of Optuna, through Outplay and plain.
regret    ASHA, HyperBand and PBT on synthetic learning curves: how far the best trial is from the best possible one,
          and the iterations of all trials together.

Ray Tune starts a process for each trial, unless it is told to reuse them ("reuse_actors"). Optuna runs trials in
threads of the driver. Each side runs in processes of its own, in turn; figures are medians over rounds or seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from others import call, install
from tune_problems import CURVES, FUNCTIONS, GRID, MAX_T, PBT_T, POPULATION
from tune_sides import SLOTS, Figures

SIDES = Path(__file__).resolve().parent / "tune_sides.py"
TITLES = {
    "outplay": "Outplay",
    "ray": "Ray Tune",
    "reused": "  reuse_actors",
    "optuna": "Optuna",
    "sqlite": "Optuna, SQLite",
}
SLEEP_S = 1.0
TRIALS, MANY_TRIALS = 1_000, 4_000
RAY_TRIALS = 40  # a thousand would take half an hour
AIM_MS, AIM_RATIO = 5, 50


def figures(side: str, part: str, calls: Iterable[dict[str, Any]]) -> list[Figures]:
    """What a side measures, for each of these arguments, in one process."""
    python = str(install("raytune")) if side in ("ray", "reused") else sys.executable
    found: list[Figures] = json.loads(call([python, str(SIDES), side, part, json.dumps(list(calls))]).splitlines()[-1])
    return found


def medians(part: str, settings: dict[str, dict[str, Any]], rounds: int) -> dict[str, Figures]:
    """Of each side: all sides run in turn in each round."""
    taken: dict[str, list[Figures]] = {side: [] for side in settings}
    for _ in range(rounds):
        for side, given in settings.items():
            taken[side] += figures(side, part, [given])
    return {side: median(found) for side, found in taken.items()}


def median(found: list[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def grid(args: argparse.Namespace) -> None:
    trials = len(GRID) ** 2
    least = -(-trials // SLOTS) * SLEEP_S
    ideal = trials * SLEEP_S / SLOTS
    print(f"grid: {trials} trials of {SLEEP_S:g} s on {SLOTS} slots: {ideal:g} s; the last one runs alone: {least:g} s")
    sides = ("outplay", "ray", "reused", "optuna")
    taken = medians("grid", {side: {"seconds": SLEEP_S} for side in sides}, args.rounds)
    print(f"{'':16}{'seconds':>10}{'above ' + format(least, 'g') + ' s':>14}{'ratio':>10}")
    for side, found in taken.items():
        ratio = found["seconds"] / taken["outplay"]["seconds"]
        print(f"{TITLES[side]:16}{found['seconds']:>10.2f}{found['seconds'] - least:>14.2f}{ratio:>10.2f}")


def overhead(args: argparse.Namespace) -> None:
    trials = {"outplay": TRIALS, "ray": RAY_TRIALS, "reused": RAY_TRIALS, "optuna": TRIALS, "sqlite": TRIALS}
    taken = medians("overhead", {side: {"trials": number} for side, number in trials.items()}, args.rounds)
    ours = taken["outplay"]["per_trial"]
    print(f"overhead of trials that return at once\n{'':16}{'trials':>8}{'ms per trial':>14}{'ratio':>10}")
    for side, found in taken.items():
        print(f"{TITLES[side]:16}{trials[side]:>8,}{1e3 * found['per_trial']:>14.3f}{found['per_trial'] / ours:>10.2f}")
    ratio = taken["ray"]["per_trial"] / ours
    print(f"aims: below {AIM_MS} ms: {reached(1e3 * ours < AIM_MS)}")
    print(f"      {AIM_RATIO} times less than Ray Tune: {reached(ratio >= AIM_RATIO)}")


def reached(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def memory(args: argparse.Namespace) -> None:
    trials = {"outplay": MANY_TRIALS, "optuna": MANY_TRIALS, "ray": RAY_TRIALS}
    taken = medians("memory", {side: {"trials": number} for side, number in trials.items()}, args.rounds)
    print("memory of the driver, in MB")
    print(f"{'':16}{'trials':>8}{'before':>10}{'after':>10}{'peak':>10}{'kB per trial':>14}")
    for side, found in taken.items():
        grown = 1024 * (found["now"] - found["before"]) / trials[side]
        sizes = "".join(f"{found[name]:>10.1f}" for name in ("before", "now", "peak"))
        print(f"{TITLES[side]:16}{trials[side]:>8,}{sizes}{grown:>14.2f}")


def quality(args: argparse.Namespace) -> None:
    trials = 100
    print(f"quality: best of {trials} trials minus the minimum, TPE; median, and quartiles of {args.seeds} seeds")
    print(f"{'':16}{'Outplay':>34}{'Optuna':>34}")
    for function in FUNCTIONS:
        line = f"{function:16}"
        for side in ("outplay", "optuna"):
            calls = [{"function": function, "trials": trials, "seed": seed} for seed in range(args.seeds)]
            line += spread([found["best"] for found in figures(side, "quality", calls)])
        print(line)


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:>12.4g} ({low:.4g} to {high:.4g})".rjust(34)


def regret(args: argparse.Namespace) -> None:
    print(f"regret: {CURVES} curves of {MAX_T} iterations, for PBT {POPULATION} trials of {PBT_T}; {args.seeds} seeds")
    print(f"{'':24}{'regret (quartiles)':>34}{'iterations':>12}")
    titles = {"outplay": "Outplay", "reused": "Ray Tune"}  # it reuses its processes here, to take less time
    for scheduler in ("ASHA", "HyperBand", "PBT"):
        for side in titles:
            found = figures(side, "regret", [{"scheduler": scheduler, "seed": seed} for seed in range(args.seeds)])
            iterations = statistics.median(each["iterations"] for each in found)
            print(f"{scheduler:10}{titles[side]:14}{spread([each['regret'] for each in found])}{iterations:>12,.0f}")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "grid": grid,
    "overhead": overhead,
    "memory": memory,
    "quality": quality,
    "regret": regret,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=9)
    args = parser.parse_args()
    install("raytune")
    for name in args.only:
        load = os.getloadavg()[0]
        PARTS[name](args)
        print(
            f"{os.cpu_count()} cores, load {load:.2f} at the start, {os.getloadavg()[0]:.2f} at the end\n", flush=True
        )


if __name__ == "__main__":
    main()
