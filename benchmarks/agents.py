"""Agents beside the learner: how much of what they can give, they do give.

    python benchmarks/agents.py [--agents 16] [--rounds 3]

Each agent is a process with one environment that sleeps at random, 5 ms on average: 1 of 100 steps takes 200 ms, the
others 3 ms, exponentially distributed. What an agent can give is measured with one agent alone, which collects without
anybody to wait for. Then DQN with `async: true` trains with all of them, and once more synchronously, where an
iteration waits for the slowest. Each round measures all three; the median of the rounds' ratios is printed.
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
STEPS = 12_000  # of all agents, that are measured


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
    settings = {"num_envs": agents, "num_env_groups": agents, "num_workers": agents, "rollout_fragment_length": 16}
    learning = {"train_batch_size": 16 * agents, "training_intensity": 0.05, "learning_starts": 256}
    return {**settings, **learning, **more}


def alone() -> float:
    """Steps per second of one agent that nobody else disturbs: the time is taken where it steps."""
    with DQN(env=Sleepy, config=config(1, learning_starts=50_000)) as trainer:
        trainer.train()

        def collect(worker: Any) -> float:
            weights = worker.policy.snapshot(worker.policy.version)
            started = time.perf_counter()
            steps = sum(f.steps for _ in range(STEPS // 16 // 16) for f in worker.collect(weights))
            return steps / (time.perf_counter() - started)

        return float(trainer.workers.foreach_worker(collect)[0])


def together(agents: int, beside: bool, steps: int) -> tuple[float, dict[str, float]]:
    """Steps per second of all agents, with a learner."""
    with DQN(env=Sleepy, config=config(agents, **{"async": beside})) as trainer:
        while trainer.timesteps < 32 * agents:
            trainer.train()
        before, started = trainer.timesteps, time.perf_counter()
        while trainer.timesteps - before < steps:
            result = trainer.train()
        return (trainer.timesteps - before) / (time.perf_counter() - started), result["learner"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    ratios, waiting = [], []
    for _ in range(args.rounds):
        can = alone() * args.agents
        gives, figures = together(args.agents, True, STEPS)
        synchronous, _ = together(args.agents, False, STEPS // 4)
        ratios.append(gives / can)
        waiting.append(synchronous / can)
        print(
            f"{args.agents} agents can give {can:,.0f} steps/s; side by side with the learner {gives:,.0f} "
            f"({gives / can:.1%}, policy lag {figures['policy_lag']:.1f} updates, at most "
            f"{figures['policy_lag_max']:.0f}), synchronously {synchronous:,.0f} ({synchronous / can:.1%})",
            flush=True,
        )
    print(f"median: async {statistics.median(ratios):.1%}, synchronous {statistics.median(waiting):.1%}")
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")


if __name__ == "__main__":
    main()
