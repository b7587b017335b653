"""IMPALA and APPO: sampling of 16 workers beside the learner, and learning curves on CartPole-v1.

    python benchmarks/impala.py [--run APPO] [--workers 16] [--rounds 3]
    python benchmarks/impala.py --curves docs/algorithms/cartpole-impala.png [--seeds 3]

Sampling: each worker is a process with one environment that sleeps at random, 5 ms on average: 1 of 100 steps takes
200 ms, the others 3 ms, exponentially distributed. A round measures the steps per second of the workers alone (each
collects Fragments on its own, nothing is learned), of asynchronous training, and of synchronous training, where an
iteration waits for the slowest worker. It prints their ratios and the CPU time of the main process.

Curves: the recipes cartpole-impala and cartpole-appo (2 workers), until the mean return of the last 20 episodes is 475.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

from agents import SECONDS, Sleepy
from figures import label, panels

from outplay import Algorithm
from outplay.algorithms import find_algorithm
from outplay.runs.experiments import load_recipe

GOAL = 475


def trainer(kind: str, workers: int, **more: Any) -> Algorithm:
    settings = {"num_envs": workers, "num_env_groups": workers, "num_workers": workers}
    return find_algorithm(kind)(env=Sleepy, config={**settings, **more})


def alone(kind: str, workers: int) -> float:
    """Steps per second of workers that wait for nobody. The time is taken in the workers."""

    def collect(worker: Any) -> float:
        weights = worker.policy.snapshot(worker.policy.version)
        steps, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < SECONDS:
            steps += sum(fragment.steps for fragment in worker.collect(weights))
        return steps / seconds

    with trainer(kind, workers) as ours:
        ours.train()
        return float(sum(ours.workers.foreach_worker(collect)))


def training(kind: str, workers: int, is_async: bool) -> tuple[float, float, dict[str, float]]:
    """(steps per second, share of one core that the main process uses, learner metrics)."""
    with trainer(kind, workers, **{"async": is_async}) as ours:
        while ours.timesteps < 100 * workers:
            ours.train()
        before, started, used = ours.timesteps, time.perf_counter(), time.process_time()
        while (seconds := time.perf_counter() - started) < SECONDS:
            result = ours.train()
        return (ours.timesteps - before) / seconds, (time.process_time() - used) / seconds, result["learner"]


def sampling(kind: str, workers: int, rounds: int) -> None:
    load = os.getloadavg()[0]
    ratios: dict[str, list[float]] = {"asynchronous": [], "synchronous": []}
    for _ in range(rounds):
        can = alone(kind, workers)
        found, share, metrics = training(kind, workers, True)
        waiting, _, _ = training(kind, workers, False)
        ratios["asynchronous"].append(found / can)
        ratios["synchronous"].append(waiting / can)
        print(
            f"{kind}, {workers} workers: {can:,.0f} steps/s alone; {found:,.0f} asynchronous ({found / can:.1%}), "
            f"{waiting:,.0f} synchronous ({waiting / can:.1%}); main process {share:.0%} of a core; policy lag "
            f"{metrics['policy_lag']:.1f} updates, at most {metrics['policy_lag_max']:.0f}; discarded "
            f"{metrics['discarded_steps']:.0f} steps",
            flush=True,
        )
    print("medians: " + ", ".join(f"{name} {statistics.median(found):.1%}" for name, found in ratios.items()))
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")


def curve(recipe: str, seed: int) -> tuple[list[float], list[float]]:
    """(thousand steps, mean returns of the last 20 episodes), until it is solved."""
    experiment = load_recipe(recipe)
    steps, returns = [], []
    with find_algorithm(experiment.run)(env="CartPole-v1", config={**experiment.config, "seed": seed}) as ours:
        started = time.perf_counter()
        while ours.timesteps < experiment.stop["timesteps_total"]:
            result = ours.train()
            if result["episodes_total"]:
                steps.append(ours.timesteps / 1000)
                returns.append(result["episode_return_mean"])
                if returns[-1] >= GOAL:
                    break
        seconds = time.perf_counter() - started
    end = "solved" if returns[-1] >= GOAL else f"not solved ({returns[-1]:.0f})"
    print(f"{recipe}, seed {seed}: {end} after {ours.timesteps:,} steps, {seconds:.1f} s", flush=True)
    return steps, returns


def curves(path: Path, seeds: int) -> None:
    with panels(path, 2, 7, 2.6, sharey=True) as axes:
        for axis, recipe in zip(axes, ("cartpole-impala", "cartpole-appo"), strict=True):
            for seed in range(seeds):
                axis.plot(*curve(recipe, seed), linewidth=1)
            axis.set_title(recipe, fontsize=8)
            label(axis, GOAL, y="mean return of 20 episodes" if axis is axes[0] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=["IMPALA", "APPO"], default="IMPALA")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--curves", type=Path, help="train on CartPole-v1 instead, and draw the curves to this file")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.curves is not None:
        curves(args.curves, args.seeds)
    else:
        sampling(args.run, args.workers, args.rounds)


if __name__ == "__main__":
    main()
