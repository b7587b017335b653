"""What intrinsic rewards find: PPO with random network distillation (RND) and without, in a maze with sparse rewards.

    python benchmarks/exploration.py [--seeds 5] [--steps 250000] [--plot docs/exploration.png]

The maze has its only reward, 1, at the goal, 37 steps from the start; an episode has 70 steps at most. All sides have
the same settings, apart from `intrinsic_reward`, and from a higher entropy bonus of the last one, which is the usual
way to explore more without RND. The maze is solved when the mean return of the last 100 episodes is 0.9; then the run
stops. A run that does not solve it counts with all its steps, so its figure, and the ratio, are lower bounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

from outplay import PPO

MAZE: dict[str, Any] = {"env": "outplay.envs.examples:Maze", "env_config": {"max_steps": 70}}
SETTINGS: dict[str, Any] = {"num_workers": 0, "num_envs": 16, "train_batch_size": 2048, "lr": 1e-3}
SIDES: dict[str, dict[str, Any]] = {
    "PPO with RND": {"intrinsic_reward": {"type": "RND"}},
    "PPO": {},
    "PPO, entropy_coeff 0.05": {"entropy_coeff": 0.05},
}
SOLVED = 0.9

Curve = list[tuple[int, float]]  # steps, mean return of the last 100 episodes


def curve(side: str, seed: int, steps: int) -> Curve:
    """Train until the maze is solved, or for this many steps."""
    points: Curve = []
    with PPO(config={**MAZE, **SETTINGS, **SIDES[side], "seed": seed}) as trainer:
        while trainer.timesteps < steps and not is_solved(points):
            result = trainer.train()
            points.append((result["timesteps_total"], result["episode_return_mean"]))
    return points


def is_solved(points: Curve) -> bool:
    return bool(points) and points[-1][1] >= SOLVED


def report(side: str, curves: list[Curve]) -> None:
    ends = [(points[-1][0], is_solved(points)) for points in curves]
    figures = [f"{'' if solved else '> '}{steps:,}" for steps, solved in ends]
    bound = "" if statistics.median_high(sorted(ends, key=lambda end: (not end[1], end[0])))[1] else "> "
    solved = sum(solved for _, solved in ends)
    figures += [f"{bound}{statistics.median(steps for steps, _ in ends):,.0f}", f"{solved} of {len(ends)}"]
    print(f"{side:<24}" + "".join(f"{figure:>11}" for figure in figures), flush=True)


def plot(curves: dict[str, list[Curve]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 2.8))
    for number, (side, runs) in enumerate(curves.items()):
        for i, points in enumerate(runs):
            thousands, means = [steps / 1000 for steps, _ in points], [mean for _, mean in points]
            axis.plot(thousands, means, color=f"C{number}", linewidth=1.2, label=side if i == 0 else None)
    axis.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel("thousand steps", fontsize=8)
    axis.set_ylabel("mean return, last 100 episodes", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--steps", type=int, default=250_000, help="of a run, at most")
    parser.add_argument("--plot", type=Path, help="draw the curves into this file")
    args = parser.parse_args()
    started = time.perf_counter()
    heads = [*(f"seed {seed}" for seed in range(args.seeds)), "median", "solved"]
    print(f"{'steps to solved':<24}" + "".join(f"{head:>11}" for head in heads), flush=True)
    curves: dict[str, list[Curve]] = {}
    for side in SIDES:
        curves[side] = [curve(side, seed, args.steps) for seed in range(args.seeds)]
        report(side, curves[side])
    with_it, *without = (statistics.median(points[-1][0] for points in runs) for runs in curves.values())
    is_bound = not all(is_solved(points) for runs in curves.values() for points in runs)
    print(f"ratio of the medians, RND against the better of the others: {'at least ' if is_bound else ''}", end="")
    print(f"{min(without) / with_it:.1f}")
    print(f"{os.cpu_count()} cores, {time.perf_counter() - started:.0f} s")
    if args.plot is not None:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
