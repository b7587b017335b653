"""PPO on Pong by Stable-Baselines3 with its RL Zoo settings for Atari: one of the sides of pong.py, which runs it.

    python benchmarks/pong_sb3.py [--updates 4] [--processes]

8 environments, 128 steps each per update, 4 epochs of 4 minibatches, the network of Mnih et al. 2015. PyTorch has as
many threads as there are cores. Prints one line of JSON: the seconds of each update, the first one left out.
"""

from __future__ import annotations

import argparse
import json
import time

import ale_py
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)  # here, so that processes that are started from here have it too

ENVS, STEPS, EPOCHS, MINIBATCH = 8, 128, 4, 256


class Clock(BaseCallback):
    """Notes when each rollout begins: an update is from one beginning to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())

    def _on_training_end(self) -> None:
        self.times.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--processes", action="store_true", help="each environment in a process of its own")
    args = parser.parse_args()
    envs = make_atari_env(
        "ALE/Pong-v5",
        n_envs=ENVS,
        seed=0,
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
        vec_env_cls=SubprocVecEnv if args.processes else DummyVecEnv,
    )
    model = PPO(
        "CnnPolicy",
        VecFrameStack(envs, n_stack=4),
        n_steps=STEPS,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        device="cpu",
    )
    clock = Clock()
    model.learn(ENVS * STEPS * (args.updates + 1), callback=clock)
    seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    print(json.dumps({"seconds": seconds[1:], "steps": ENVS * STEPS}))


if __name__ == "__main__":
    main()
