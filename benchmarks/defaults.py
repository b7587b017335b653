"""PPO or A2C with its defaults, untouched, on four environments: how many steps and seconds until each is solved.

    python benchmarks/defaults.py --seeds 3 --plot docs/ppo-defaults.png
    python benchmarks/defaults.py --run A2C

An environment is solved when the mean return over the last 100 episodes reaches the score below.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

from figures import label, panels

from outplay import A2C, PPO, Algorithm

# Environment: (solved at, steps to train with PPO, with A2C). The scores are Gymnasium's reward thresholds where it has
# one: CartPole-v1 475, Acrobot-v1 −100, LunarLander-v3 200; Pendulum-v1 has none: at −200 it is upright after the first
# second or two.
TASKS: dict[str, tuple[float, dict[type[Algorithm], int]]] = {
    "CartPole-v1": (475.0, {PPO: 80_000, A2C: 150_000}),
    "Acrobot-v1": (-100.0, {PPO: 100_000, A2C: 100_000}),
    "Pendulum-v1": (-200.0, {PPO: 150_000, A2C: 300_000}),
    "LunarLander-v3": (200.0, {PPO: 400_000, A2C: 400_000}),
}


def curve(algorithm: type[Algorithm], env: str, steps: int, seed: int) -> list[tuple[int, float, float]]:
    """(steps, seconds, mean return) after each iteration."""
    points = []
    with algorithm(env=env, config={"seed": seed}) as trainer:
        while trainer.timesteps < steps:
            result = trainer.train()
            points.append((result["timesteps_total"], result["time_total_s"], result["episode_return_mean"]))
    return points


def solved_at(points: list[tuple[int, float, float]], score: float) -> tuple[int, float] | None:
    return next(((steps, seconds) for steps, seconds, value in points if value >= score), None)


def plot(curves: dict[str, list[list[tuple[int, float, float]]]], path: Path) -> None:
    with panels(path, len(curves), 3.2 * len(curves), 2.8) as axes:
        for axis, (env, runs) in zip(axes, curves.items(), strict=True):
            for points in runs:
                axis.plot([p[0] / 1000 for p in points], [p[2] for p in points], linewidth=1.2)
            axis.set_title(env, fontsize=10)
            label(axis, TASKS[env][0], y="mean return, last 100 episodes" if axis is axes[0] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", choices=["PPO", "A2C"], default="PPO")
    parser.add_argument("--only", default="", help="environments whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    algorithm: type[Algorithm] = {"PPO": PPO, "A2C": A2C}[arguments.run]
    curves: dict[str, list[Any]] = {}
    print(f"{'environment':<16}{'solved at':>10}{'solved':>8}{'steps':>10}{'seconds':>9}{'best':>10}{'last':>10}")
    for env, (score, steps) in TASKS.items():
        if arguments.only not in env:
            continue
        started = time.perf_counter()
        runs = curves[env] = [curve(algorithm, env, steps[algorithm], seed) for seed in range(arguments.seeds)]
        found = [at for points in runs if (at := solved_at(points, score)) is not None]
        median = [f"{statistics.median(values):,.0f}" for values in zip(*found, strict=True)] or ["–", "–"]
        best = statistics.median(max(value for _, _, value in points if not math.isnan(value)) for points in runs)
        last = statistics.median(points[-1][2] for points in runs)
        print(
            f"{env:<16}{score:>10g}{f'{len(found)}/{len(runs)}':>8}{median[0]:>10}{median[1]:>9}{best:>10.1f}{last:>10.1f}"
            f"   ({time.perf_counter() - started:.0f} s)",
            flush=True,
        )
    if arguments.plot is not None:
        plot(curves, arguments.plot)


if __name__ == "__main__":
    main()
