"""SAC, TD3 and DDPG: learning curves of their recipes on Pendulum-v1, and of discrete SAC on CartPole-v1.

    python benchmarks/continuous.py [--only pendulum-sac] [--seeds 3] [--parallel 2] [--plots docs/algorithms]

Every 1,000 steps, the policy is evaluated without exploration on 10 episodes, on seeds that training does not use; at
the end on 50. Runs are tasks of the process engine, `--parallel` at a time, so their times do not compare.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from figures import label, panels

import outplay
from outplay.algorithms import find_algorithm
from outplay.runs.experiments import load_recipe

GOALS = {
    "pendulum-sac": -200.0,
    "pendulum-crossq": -200.0,
    "pendulum-td3": -200.0,
    "pendulum-ddpg": -200.0,
    "cartpole-sac": 475.0,
}
EVERY, EPISODES, LAST_EPISODES = 1_000, 10, 50

Curve = tuple[list[float], list[float]]  # thousand steps, mean returns of evaluations


@outplay.remote
def curve(recipe: str, seed: int) -> tuple[Curve, float, int, float]:
    """(curve, return of the last evaluation, steps, seconds)."""
    experiment = load_recipe(recipe)
    steps, returns, stop = [], [], experiment.stop
    started = time.perf_counter()
    config = {**experiment.config, "seed": seed, "num_workers": 0}
    with find_algorithm(experiment.run)(env=experiment.env, config=config) as ours:
        is_over = False
        while not is_over:
            result = ours.train()
            goal = stop.get("episode_return_mean", float("inf"))
            is_over = result["timesteps_total"] >= stop["timesteps_total"] or result["episode_return_mean"] >= goal
            if ours.timesteps >= EVERY * (len(steps) + 1) or is_over:
                steps.append(ours.timesteps / 1000)
                returns.append(ours.evaluate(episodes=EPISODES)["episode_return_mean"])
        last = ours.evaluate(episodes=LAST_EPISODES)["episode_return_mean"]
        return (steps, returns), last, ours.timesteps, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(GOALS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--plots", type=Path, help="a folder: draw the curves of each recipe to RECIPE.png")
    args = parser.parse_args()
    outplay.init(num_cpus=args.parallel)
    recipes = [args.only] if args.only else list(GOALS)
    runs = {recipe: [curve.remote(recipe, seed) for seed in range(args.seeds)] for recipe in recipes}
    for recipe, refs in runs.items():
        found = []
        for seed, ref in enumerate(refs):
            points, last, steps, seconds = outplay.get(ref)
            found.append(points)
            print(f"{recipe}, seed {seed}: {last:.1f} after {steps:,} steps, {seconds:.0f} s", flush=True)
        if args.plots is not None:
            with panels(args.plots / f"{recipe}.png", 1, 4.5, 2.6) as (axis,):
                for points in found:
                    axis.plot(*points, linewidth=1)
                label(axis, GOALS[recipe], y=f"mean return of {EPISODES} episodes")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the end")


if __name__ == "__main__":
    main()
