"""PPO with an LSTM: steps per second of Outplay and of sb3-contrib's RecurrentPPO, on one machine, in one run.

    python benchmarks/recurrent.py [--rounds 3] [--iterations 6]

Both train on CartPole without velocities, with the same network (an LSTM of 64 units on the observation, shared by
policy and value, linear heads) and the same amount of learning: 16 environments, 128 steps each per iteration, 10
epochs in minibatches of 256 steps. RecurrentPPO backpropagates through whole episodes within its 128 steps; Outplay
does the same with max_seq_len 128, and is also measured with its default of 20. PyTorch has one thread. The first
iteration is left out. Each figure is the median over the rounds of the median over iterations.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ENVS, STEPS, EPOCHS, MINIBATCH, UNITS = 16, 128, 10, 256, 64


class Hidden(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole without velocities, with the same code on both sides."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        box: Any = self.env.observation_space
        self.observation_space = gymnasium.spaces.Box(box.low[[0, 2]], box.high[[0, 2]])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def outplay_seconds(iterations: int, length: int) -> list[float]:
    from outplay import PPO

    settings = {
        "num_workers": 0,
        "num_envs": ENVS,
        "num_env_groups": 1,
        "train_batch_size": ENVS * STEPS,
        "num_sgd_iter": EPOCHS,
        "sgd_minibatch_size": MINIBATCH,
        "model": {"use_lstm": True, "lstm_cell_size": UNITS, "fcnet_hiddens": [], "max_seq_len": length},
    }
    found = []
    with PPO(Hidden, settings) as trainer:
        for _ in range(iterations + 1):
            begin = time.perf_counter()
            trainer.train()
            found.append(time.perf_counter() - begin)
    return found[1:]


def sb3_seconds(iterations: int) -> list[float]:
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    begins: list[float] = []

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            begins.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    network = {
        "lstm_hidden_size": UNITS,
        "net_arch": {"pi": [], "vf": []},
        "shared_lstm": True,
        "enable_critic_lstm": False,
    }
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env(Hidden, n_envs=ENVS),
        n_steps=STEPS,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        policy_kwargs=network,
        device="cpu",
    )
    model.learn(ENVS * STEPS * (iterations + 2), callback=Clock())
    return [b - a for a, b in itertools.pairwise(begins[1:])]


def side(python: Path | str, name: str, iterations: int) -> float:
    command = [str(python), __file__, "--side", name, "--iterations", str(iterations)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds: list[float] = json.loads(output.splitlines()[-1])
    return ENVS * STEPS / statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--side", choices=["sb3", "outplay-128", "outplay-20"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        lengths = {"outplay-128": 128, "outplay-20": 20}
        found = (
            outplay_seconds(args.iterations, lengths[args.side])
            if args.side in lengths
            else sb3_seconds(args.iterations)
        )
        print(json.dumps(found))
        return
    from others import install

    pythons = {"sb3": install("sb3-contrib"), "outplay-128": sys.executable, "outplay-20": sys.executable}
    rates: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(args.rounds):
        for name, python in pythons.items():
            rates[name].append(side(python, name, args.iterations))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    titles = {
        "sb3": "sb3-contrib, RecurrentPPO",
        "outplay-128": "Outplay, max_seq_len 128",
        "outplay-20": "Outplay, max_seq_len 20",
    }
    print(f"{'':28}{'steps/s':>10}{'ratio':>8}")
    for name, title in titles.items():
        print(f"{title:28}{medians[name]:>10,.0f}{medians[name] / medians['sb3']:>8.1f}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the end")


if __name__ == "__main__":
    main()
