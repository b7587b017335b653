"""Data-parallel learners: updates per second of one learner and of several, in one run.

    python benchmarks/learners.py [--learners 1 2] [--rounds 3] [--hidden 512] [--gpus 0]

PPO (minibatches of 512 steps) and DQN (minibatches of 256 transitions) on CartPole-v1, with two hidden layers of
`--hidden` units, and one thread for each learner. Only the time of learning counts: gradients, their exchange, and what
is computed before a batch is split. A round measures every number of learners once; the median of the rounds is
printed, and its ratio to one learner. With N learners, N cores (or GPUs) should be free.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from outplay import DQN, PPO, Algorithm

ITERATIONS = 4  # that are measured, after one that is not

CASES: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "PPO": (PPO, {"num_envs": 16, "train_batch_size": 4096, "sgd_minibatch_size": 512, "num_sgd_iter": 4}),
    "DQN": (
        DQN,
        {
            "num_envs": 16, "train_batch_size": 512, "sgd_minibatch_size": 256, "training_intensity": 0.25,
            "learning_starts": 512,
        },
    ),
}  # fmt: skip


def updates_per_iteration(name: str, config: dict[str, Any]) -> float:
    if name == "PPO":
        return float(config["num_sgd_iter"] * config["train_batch_size"] / config["sgd_minibatch_size"])
    return float(config["train_batch_size"] * config["training_intensity"])


def measured(name: str, learners: int, hidden: int, gpus: float) -> float:
    """Updates per second of learning."""
    algorithm, settings = CASES[name]
    more = {"num_gpus_per_learner": gpus} if gpus else {}
    config = {"num_workers": 0, "learner_threads": 1, "model": {"fcnet_hiddens": [hidden, hidden]}, **settings, **more}
    with algorithm("CartPole-v1", {**config, "num_learners": learners}) as trainer:
        for _ in range(2):  # DQN learns from the second iteration on; other learners start with the first update
            trainer.train()
        seconds = sum(trainer.train()["stages_s"]["learn"] for _ in range(ITERATIONS))
    return ITERATIONS * updates_per_iteration(name, settings) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--gpus", type=float, default=0, help="of each learner")
    arguments = parser.parse_args()
    for name in CASES:
        found: dict[int, list[float]] = {number: [] for number in arguments.learners}
        for _ in range(arguments.rounds):
            for number in arguments.learners:
                found[number].append(measured(name, number, arguments.hidden, arguments.gpus))
        base = statistics.median(found[arguments.learners[0]])
        for number, rates in found.items():
            rate = statistics.median(rates)
            print(f"{name}, {number} learners: {rate:.1f} updates/s ({rate / base:.2f}×)", flush=True)


if __name__ == "__main__":
    main()
