"""Agents beside the learner: how much of what they can give, they do give.

    python benchmarks/agents.py [--agents 16] [--rounds 3]

Each agent is a process with one environment that sleeps at random, 5 ms on average: 1 of 100 steps takes 200 ms, the
others 3 ms, exponentially distributed. What agents can give is measured with nobody to wait for: each collects on its
own, all at once, for the machine's cores are what they share; also one alone, times their number. Then DQN with
`async: true` trains with all of them, and once more synchronously, where an iteration waits for the slowest. Each round
measures all of it; the medians of the rounds' ratios are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import gymnasium
import numpy as np

from outplay import DQN

SLOW, SHARE, MEAN = 0.2, 0.01, 0.005
SECONDS = 12.0  # that are measured


class Sleepy(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 8).astype(np.float32)

    def step(self, action: Any) -> Any:
        usual = (MEAN - SHARE * SLOW) / (1 - SHARE)
        slow = self.np_random.random() < SHARE
        time.sleep(SLOW if slow else float(self.np_random.exponential(usual)))
        self.steps += 1
        return self._observe(), float(action == 0), False, self.steps == 200, {}


def config(agents: int, **more: Any) -> dict[str, Any]:
    settings = {"num_envs": agents, "num_env_groups": agents, "num_workers": agents, "rollout_fragment_length": 32}
    learning = {"train_batch_size": 32 * agents, "training_intensity": 1 / 32, "learning_starts": 256}
    return {**settings, **learning, **more}


def freely(agents: int) -> float:
    """Steps per second of agents that nobody waits for or talks to; the time is taken where they step."""

    def collect(worker: Any) -> float:
        weights = worker.policy.snapshot(worker.policy.version)
        steps, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < SECONDS:
            steps += sum(fragment.steps for fragment in worker.collect(weights))
        return steps / seconds

    with DQN(env=Sleepy, config=config(agents)) as trainer:
        trainer.train()
        return float(sum(trainer.workers.foreach_worker(collect)))


def together(agents: int, beside: bool) -> tuple[float, dict[str, float]]:
    """Steps per second of all agents, with a learner."""
    with DQN(env=Sleepy, config=config(agents, **{"async": beside})) as trainer:
        while trainer.timesteps < 64 * agents:
            trainer.train()
        before, started = trainer.timesteps, time.perf_counter()
        while (seconds := time.perf_counter() - started) < SECONDS:
            result = trainer.train()
        return (trainer.timesteps - before) / seconds, result["learner"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    ratios: dict[str, list[float]] = {"async": [], "async, over one alone": [], "synchronous": []}
    for _ in range(args.rounds):
        alone, can = freely(1) * args.agents, freely(args.agents)
        gives, figures = together(args.agents, True)
        synchronous, _ = together(args.agents, False)
        for name, ratio in zip(ratios, (gives / can, gives / alone, synchronous / can), strict=True):
            ratios[name].append(ratio)
        print(
            f"{args.agents} agents can give {can:,.0f} steps/s ({args.agents} times one alone: {alone:,.0f}); beside "
            f"the learner they give {gives:,.0f} ({gives / can:.1%}), synchronously {synchronous:,.0f} "
            f"({synchronous / can:.1%}); policy lag {figures['policy_lag']:.1f} updates, at most "
            f"{figures['policy_lag_max']:.0f}; updates {figures['updates']:.0f}",
            flush=True,
        )
    print("medians: " + "; ".join(f"{name} {statistics.median(values):.1%}" for name, values in ratios.items()))
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")


if __name__ == "__main__":
    main()
