"""What intrinsic rewards find: PPO with random network distillation (RND) and without, where rewards are sparse.

    python benchmarks/exploration.py [--seeds 5] [--only maze,mountaincar] [--plot docs/exploration.png]

The maze has its only reward, 1, at the goal, 37 steps from the start. MountainCar-v0 gives −1 per step until the goal,
for 200 steps at most. All sides have the same settings, apart from `intrinsic_reward`, and from a higher entropy bonus
of the second one. A run has solved its environment when the mean return of the last 100 episodes reaches the goal
below; then it stops. A run that does not solve it counts with all its steps, so its figure is a lower bound.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outplay import PPO

SHARED: dict[str, Any] = {"num_workers": 0, "num_envs": 16, "train_batch_size": 2048, "lr": 1e-3}


@dataclass(frozen=True)
class Task:
    env: str
    goal: float  # mean return
    steps: int  # at most
    coefficient: float  # of intrinsic rewards: of the order of the returns


TASKS = {
    "maze": Task("outplay.envs.examples:Maze", 0.9, 250_000, 1.0),
    "mountaincar": Task("MountainCar-v0", -130.0, 250_000, 100.0),
}

Curve = list[tuple[int, float]]  # steps, mean return of the last 100 episodes


def sides(task: Task) -> dict[str, dict[str, Any]]:
    return {
        "PPO": {},
        "PPO, entropy_coeff 0.05": {"entropy_coeff": 0.05},
        "PPO with RND": {"intrinsic_reward": {"type": "RND", "coefficient": task.coefficient}},
    }


def curve(task: Task, settings: dict[str, Any], seed: int) -> Curve:
    """Train until the goal is reached, or for all steps."""
    points: Curve = []
    with PPO(task.env, {**SHARED, **settings, "seed": seed}) as trainer:
        while trainer.timesteps < task.steps and not (points and points[-1][1] >= task.goal):
            result = trainer.train()
            if result["episode_return_mean"] is not None:
                points.append((result["timesteps_total"], result["episode_return_mean"]))
    return points


def report(side: str, curves: list[Curve], goal: float) -> None:
    steps = [points[-1][0] for points in curves]
    is_solved = [points[-1][1] >= goal for points in curves]
    figures = [f"{'' if ok else '> '}{count:,}" for count, ok in zip(steps, is_solved, strict=True)]
    bound = "" if statistics.median_high(sorted(zip(steps, is_solved, strict=True)))[1] else "> "
    best = statistics.median(max(mean for _, mean in points) for points in curves)
    figures += [f"{bound}{statistics.median(steps):,.0f}", f"{sum(is_solved)} of {len(curves)}", f"{best:.2f}"]
    print(f"  {side:<24}" + "".join(f"{figure:>11}" for figure in figures), flush=True)


def plot(curves: dict[str, dict[str, list[Curve]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 2.8), squeeze=False)
    for axis, (name, by_side) in zip(axes[0], curves.items(), strict=True):
        for number, (side, runs) in enumerate(by_side.items()):
            for i, points in enumerate(runs):
                thousands, means = [steps / 1000 for steps, _ in points], [mean for _, mean in points]
                axis.plot(thousands, means, color=f"C{number}", linewidth=1.1, label=side if i == 0 else None)
        axis.axhline(TASKS[name].goal, color="grey", linewidth=0.8, linestyle="--")
        axis.set_title(TASKS[name].env.split(":")[-1], fontsize=9)
        axis.set_xlabel("thousand steps", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0][0].set_ylabel("mean return, last 100 episodes", fontsize=8)
    axes[0][-1].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--only", default=",".join(TASKS), help="which environments, with commas between")
    parser.add_argument("--plot", type=Path, help="draw the curves into this file")
    args = parser.parse_args()
    started = time.perf_counter()
    curves: dict[str, dict[str, list[Curve]]] = {}
    for name in args.only.split(","):
        task = TASKS[name]
        print(f"{task.env}: steps until the mean return is {task.goal:g}")
        heads = [*(f"seed {seed}" for seed in range(args.seeds)), "median", "solved", "best mean"]
        print(" " * 26 + "".join(f"{head:>11}" for head in heads))
        for side, settings in sides(task).items():
            found = [curve(task, settings, seed) for seed in range(args.seeds)]
            curves.setdefault(name, {})[side] = found
            report(side, found, task.goal)
    print(f"{time.perf_counter() - started:.0f} s")
    if args.plot is not None:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
