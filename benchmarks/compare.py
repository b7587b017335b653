"""The speed of two checkouts of Outplay, on one machine, in one run: training, replay, recipes, the process engine.

    git worktree add ../before <commit>
    python benchmarks/compare.py ../before . --rounds 4

Each round measures both, alternately, in processes of their own. Each figure is the median over the rounds of the
median over iterations. Ratios are the second checkout's rate over the first one's: environment steps, transitions,
calls or transfers per second.
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
from pathlib import Path
from typing import Any

PPO: dict[str, Any] = {"num_workers": 0, "num_envs": 64, "num_env_groups": 1, "train_batch_size": 4096}
DQN: dict[str, Any] = {"num_workers": 0, "num_env_groups": 4, "learning_starts": 500}
# name: algorithm, environment, settings, iterations
CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "PPO, native vector": ("PPO", "CartPole-v1", {**PPO, "sgd_minibatch_size": 512}, 12),
    "PPO, Python environment": ("PPO", "Acrobot-v1", {"num_workers": 0}, 4),
    "PPO, 2 workers": ("PPO", "Acrobot-v1", {"num_workers": 2}, 6),
    "A2C": ("A2C", "CartPole-v1", {"num_workers": 0, "num_env_groups": 4}, 150),
    "DQN": ("DQN", "CartPole-v1", DQN, 25),
    "DQN, 1 EnvGroup": ("DQN", "CartPole-v1", {**DQN, "num_env_groups": 1}, 25),
    "DQN, prioritized, 3 steps": ("DQN", "CartPole-v1", {**DQN, "prioritized_replay": True, "n_step": 3}, 25),
    "DQN, async, 2 workers": ("DQN", "CartPole-v1", {"num_workers": 2, "async": True, "num_envs": 4}, 15),
}


def measure(only: str) -> dict[str, float]:
    """Steps per second of the case `only`, or of those whose name contains it, with the package that is imported."""
    import outplay

    found = {}
    for name, (algorithm, env, config, iterations) in CASES.items():
        if (only != name) if only in CASES else (only not in name):
            continue
        with getattr(outplay, algorithm)(env=env, config=config) as trainer:
            for _ in range(3):
                trainer.train()
            rates = []
            for _ in range(iterations):
                steps, started = trainer.timesteps, time.perf_counter()
                trainer.train()
                rates.append((trainer.timesteps - steps) / (time.perf_counter() - started))
            found[name] = statistics.median(rates)
    return found


def measure_replay(checkout: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for side in ("outplay", "prioritized"):
        for kind in ("vector", "atari"):
            rates = run_json(checkout, "benchmarks/replay.py", "--side", side, kind)
            found |= {f"replay, {side}, {kind}, {what}": rate for what, rate in rates.items()}
    return found


def measure_recipes(checkout: Path) -> dict[str, float]:
    found = {}
    for recipe in ("cartpole", "cartpole-dqn"):
        with tempfile.TemporaryDirectory() as results:
            last = run_json(checkout, "-m", "outplay", "train", recipe, "--json", "--results-dir", results)
        found[f"outplay train {recipe}"] = last["timesteps_total"] / last["time_total_s"]
    return found


def measure_engine(checkout: Path) -> dict[str, float]:
    figures = run_json(checkout, "benchmarks/engine.py", "--side", "process", "--program", "calls")
    microseconds = ("call of an actor, there and back", "task, there and back")
    milliseconds = ("put 5 MB and broadcast it to two actors", "return 5 MB from an actor")
    rates = ("calls of an actor, one after another sent", "tasks, one after another sent")
    return {
        **{name: 1e6 / figures[name] for name in microseconds},
        **{name: figures[name] for name in rates},
        **{name: 1e3 / figures[name] for name in milliseconds},
    }


# What the other benchmarks measure of Outplay alone, with the checkout's own programs.
PROGRAMS = {"replay": measure_replay, "recipes": measure_recipes, "engine": measure_engine}


def run_json(checkout: Path, *arguments: str) -> dict[str, float]:
    """The last line that a program prints, which is JSON."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=checkout).stdout
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, help="two folders")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--only", default="", help="training cases whose name contains this, or replay, recipes, engine"
    )
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.only)))
        return
    if len(args.checkouts) != 2:
        parser.error("name two checkouts")
    rounds: list[list[dict[str, float]]] = [[], []]
    for _ in range(args.rounds):
        for measured, checkout in zip(rounds, args.checkouts, strict=True):
            figures: dict[str, float] = {}
            if args.only not in PROGRAMS:
                figures |= run_json(checkout, str(Path(__file__).resolve()), "--measure", "--only", args.only)
            for name in PROGRAMS if not args.only else {args.only} & PROGRAMS.keys():
                figures |= PROGRAMS[name](checkout)
            measured.append(figures)
    print(f"{'per second':<46}{'first':>12}{'second':>12}   ratio")
    for name in rounds[0][0]:
        first, second = (statistics.median(one[name] for one in measured) for measured in rounds)
        print(f"{name:<46}{first:>12,.0f}{second:>12,.0f}{second / first:>8.2f}")


if __name__ == "__main__":
    main()
