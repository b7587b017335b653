"""Evaluation beside training: seconds of training without evaluations, with them in between, and with them beside it.

    python benchmarks/evaluation.py [--rounds 5]

PPO, 40 iterations, an evaluation of 10 episodes after every fifth, in one evaluation worker. Two environments:
CartPole-v1 (512 steps per iteration), where evaluation and training compete for the cores; and one whose step waits
1 ms (128 steps per iteration), as a simulator in another process does. All three sides run in turn in each round;
figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import outplay
from outplay import PPO
from outplay.testing.probes import Walk

ITERATIONS = 40
INTERVAL = 5
SIDES: dict[str, dict[str, Any]] = {
    "no evaluation": {},
    "in between": {"evaluation_interval": INTERVAL, "evaluation_num_workers": 1},
    "beside": {"evaluation_interval": INTERVAL, "evaluation_num_workers": 1, "evaluation_parallel_to_training": True},
}
ENVS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", {"train_batch_size": 512}),
    "waiting 1 ms": (Walk, {"train_batch_size": 128, "env_config": {"sleep": 0.001}}),
}


def seconds(env: Any, config: dict[str, Any]) -> float:
    """Seconds of the iterations after the first ten, in which the worker starts and evaluates once."""
    settings = {"num_workers": 0, "num_envs": 8, "sgd_minibatch_size": 128, "num_sgd_iter": 4}
    with PPO(env=env, config={**settings, "evaluation_duration": 10, **config}) as trainer:
        for _ in range(2 * INTERVAL):
            trainer.train()
        started = time.perf_counter()
        for _ in range(ITERATIONS):
            trainer.train()
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    load = os.getloadavg()[0]
    outplay.init("process")
    print(f"{'':>14}{''.join(f'{side:>16}' for side in SIDES)}{'in between/beside':>20}{'beside/none':>14}")
    for name, (env, more) in ENVS.items():
        taken: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side, config in SIDES.items():
                taken[side].append(seconds(env, {**more, **config}))
        none, between, beside = (statistics.median(taken[side]) for side in SIDES)
        figures = "".join(f"{value:>14.2f} s" for value in (none, between, beside))
        print(f"{name:>14}{figures}{between / beside:>20.2f}{beside / none:>14.2f}")
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")
    outplay.shutdown()


if __name__ == "__main__":
    main()
