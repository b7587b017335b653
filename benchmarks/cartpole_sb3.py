"""CartPole-v1 by Stable-Baselines3 with its RL Zoo settings: one of the sides of cartpole.py, which runs it.

    python benchmarks/cartpole_sb3.py [--algorithm ppo|dqn] [--seed 0] [--threads 1]

Trains until the mean return of the last 20 finished episodes, looked at after every rollout, is 475, or for 200,000
steps (DQN: 50,000, as in the RL Zoo), and prints one line of JSON. PPO's schedules end at 100,000 steps, as in the RL
Zoo: a run that goes on from there only watches the policy that it has. PyTorch has one thread: the networks are so
small that a second one gains a few percent on an idle machine, and on a busy one the two wait for each other most of
the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

GOAL, WINDOW = 475, 20
MOST_STEPS = {"ppo": 200_000, "dqn": 50_000}
ENVS, STEPS_EACH, SCHEDULE_STEPS = 8, 32, 100_000


class UntilSolved(BaseCallback):
    """Stops the training at the end of the first rollout after which the goal is reached."""

    def __init__(self, steps_each: int) -> None:
        super().__init__()
        self.steps_each = steps_each
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.solved = False

    def _on_step(self) -> bool:
        self.returns.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
        rollout_ends = self.n_calls % self.steps_each == 0
        self.solved = rollout_ends and len(self.returns) == WINDOW and sum(self.returns) / WINDOW >= GOAL
        return not self.solved


def linear(start: float) -> Callable[[float], float]:
    """A schedule from `start` to 0. SB3 passes the part of the whole training that is left."""
    return lambda left: start * max(0.0, 1 - (1 - left) * MOST_STEPS["ppo"] / SCHEDULE_STEPS)


def ppo(seed: int) -> PPO:
    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVS, seed=seed),
        n_steps=STEPS_EACH,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=linear(0.001),
        clip_range=linear(0.2),
        ent_coef=0.0,
        seed=seed,
        device="cpu",
    )


def dqn(seed: int) -> DQN:
    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=1, seed=seed),
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=list(MOST_STEPS), default="ppo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = {"ppo": ppo, "dqn": dqn}[args.algorithm](args.seed)
    until_solved = UntilSolved(STEPS_EACH if args.algorithm == "ppo" else 256)
    begin = time.perf_counter()
    model.learn(MOST_STEPS[args.algorithm], callback=until_solved)
    taken = time.perf_counter() - begin
    steps = model.num_timesteps
    print(json.dumps({"solved": until_solved.solved, "steps": steps, "train_s": taken, "steps_per_s": steps / taken}))


if __name__ == "__main__":
    main()
