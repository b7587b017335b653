"""The maze with a curriculum and without: how many steps until it is solved from the farthest start.

    python benchmarks/curriculum.py [--seeds 5] [--steps 250000] [--plot docs/curriculum.png]

Both sides are PPO with the same settings, apart from the curriculum. Every 5 iterations, 20 episodes are played from
the farthest start, with sampled actions. The maze is solved when 18 of them reach the goal. A run that does not solve
it counts with all its steps, so its figure, and the ratio, are lower bounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from figures import label, panels

import outplay
from outplay import PPO
from outplay.envs.examples import Maze

LEVELS = [*range(1, 37, 2), 37]  # steps from the goal; 37 is the farthest cell
CURRICULUM = {
    "levels": LEVELS,
    "promote_when": {"episode_return_mean": 0.9},
    "demote_when": {"episode_return_mean": 0.2},
}
SETTINGS = {"num_workers": 0, "num_envs": 16, "train_batch_size": 1024, "lr": 1e-3, "entropy_coeff": 0.01}
SIDES: dict[str, dict[str, Any]] = {"with the curriculum": {"curriculum": CURRICULUM}, "without": {}}
EPISODES, SOLVED, EVERY = 20, 0.9, 5

Curve = list[tuple[int, float]]  # steps, share of the episodes from the farthest start that reach the goal


def success(trainer: PPO) -> float:
    """The share of episodes from the farthest start that reach the goal."""
    mazes = [Maze() for _ in range(EPISODES)]
    observations = np.array([maze.reset(seed=seed)[0] for seed, maze in enumerate(mazes)])
    reached, playing = np.zeros(EPISODES, bool), np.ones(EPISODES, bool)
    while playing.any():
        actions, _ = trainer.predict(observations)
        for i in np.flatnonzero(playing):
            observations[i], _, reached[i], truncated, _ = mazes[i].step(actions[i])
            playing[i] = not (reached[i] or truncated)
    return float(reached.mean())


@outplay.remote
def curve(side: str, seed: int, steps: int) -> Curve:
    """Train until the maze is solved, or for this many steps."""
    points: Curve = []
    with PPO(Maze, {**SETTINGS, **SIDES[side], "seed": seed}) as trainer:
        while trainer.timesteps < steps and not (points and points[-1][1] >= SOLVED):
            result = trainer.train()
            if result["training_iteration"] % EVERY == 0:
                points.append((result["timesteps_total"], success(trainer)))
    return points


def plot(curves: dict[str, list[Curve]], path: Path) -> None:
    with panels(path, 1, 6, 2.8) as (axis,):
        for (side, runs), colour in zip(curves.items(), ("tab:blue", "tab:orange"), strict=True):
            for number, points in enumerate(runs):
                name = side if number == 0 else None
                axis.plot(
                    [p[0] / 1000 for p in points], [p[1] for p in points], color=colour, linewidth=1.2, label=name
                )
        label(axis, SOLVED, y="goal reached from the farthest start", legend=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--steps", type=int, default=250_000, help="of a run, at most")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    started = time.perf_counter()
    seeds = range(args.seeds)
    runs = {side: [curve.remote(side, seed, args.steps) for seed in seeds] for side in SIDES}
    curves: dict[str, list[Curve]] = {}
    print(f"{'steps to solved':<22}" + "".join(f"{f'seed {seed}':>12}" for seed in seeds) + f"{'median':>12}")
    for side in SIDES:
        curves[side] = outplay.get(runs[side])
        steps = [points[-1][0] for points in curves[side]]
        is_solved = [points[-1][1] >= SOLVED for points in curves[side]]
        figures = [f"{'' if ok else '> '}{count:,}" for count, ok in zip(steps, is_solved, strict=True)]
        bound = "" if statistics.median_high(sorted(zip(steps, is_solved, strict=True)))[1] else "> "
        figures.append(f"{bound}{statistics.median(steps):,.0f}")
        print(f"{side:<22}" + "".join(f"{figure:>12}" for figure in figures), flush=True)
    with_it, without = (statistics.median(points[-1][0] for points in curves[side]) for side in SIDES)
    is_bound = any(points[-1][1] < SOLVED for points in curves["without"])
    print(f"ratio of the medians: {'at least ' if is_bound else ''}{without / with_it:.1f}")
    print(f"{os.cpu_count()} cores, {time.perf_counter() - started:.0f} s")
    if args.plot is not None:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
