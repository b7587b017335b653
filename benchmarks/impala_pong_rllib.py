"""IMPALA or APPO on Pong by RLlib: one of the sides of impala_pong.py, which runs it.

    python benchmarks/impala_pong_rllib.py --run APPO --seconds 60 [--standard]

The settings are those that RLlib publishes for Pong (`tuned_examples` of its repository: pong_impala.py, pong_appo.py),
with two environment runners. With `--standard`, images and network are those of Mnih et al. 2015, without padding, and
each runner has 8 environments. After each result, it prints a line of JSON: seconds since training began, environment
steps, and the mean return of the last 20 episodes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import warnings
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
warnings.filterwarnings("ignore")

import ale_py  # noqa: E402 (Ray reads the environment when it is imported)
import gymnasium  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from ray.rllib.algorithms.appo import APPOConfig  # noqa: E402
from ray.rllib.algorithms.impala import IMPALAConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402

WORKERS, WINDOW, GOAL = 2, 20, 18
GAME = {"frameskip": 1, "full_action_space": False, "repeat_action_probability": 0.0}
SMALL = {"conv_filters": [[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]], "head_fcnet_hiddens": [256]}
STANDARD: dict[str, Any] = {
    "conv_filters": [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"]],
    "head_fcnet_hiddens": [512],
}


def settings(run: str, is_standard: bool, seed: int) -> Any:
    size = 84 if is_standard else 64

    def make(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
        gymnasium.register_envs(ale_py)
        game = gymnasium.make("ALE/Pong-v5", render_mode="rgb_array", **config)
        return wrap_atari_for_new_api_stack(game, dim=size, framestack=4)

    register_env("pong", make)
    if run == "IMPALA":
        config: Any = IMPALAConfig().training(lr=0.007, vf_loss_coeff=0.5, entropy_coeff=0.008, grad_clip=40.0)
        envs = 5
    else:
        config = APPOConfig().training(
            lr=0.0005,
            vf_loss_coeff=1.0,
            entropy_coeff=[[0, 0.01], [3_000_000, 0.0]],
            target_network_update_freq=2,
            circular_buffer_num_batches=4,
            circular_buffer_iterations_per_batch=2,
        )
        envs = 2
    model = DefaultModelConfig(vf_share_layers=True, conv_activation="relu", **(STANDARD if is_standard else SMALL))
    return (
        config.environment("pong", env_config=GAME, clip_rewards=True)
        .env_runners(num_env_runners=WORKERS, num_envs_per_env_runner=8 if is_standard else envs)
        .training(train_batch_size_per_learner=512 if is_standard else 500, broadcast_interval=5)
        .learners(num_aggregator_actors_per_learner=1)
        .rl_module(model_config=model)
        .reporting(metrics_num_episodes_for_smoothing=WINDOW, min_time_s_per_iteration=2)
        .debugging(seed=seed, log_level="ERROR")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=["IMPALA", "APPO"], required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training, at most")
    parser.add_argument("--standard", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level="error", log_to_driver=False)
    algorithm = settings(args.run, args.standard, args.seed).build_algo()
    begin = time.perf_counter()
    seconds, value = 0.0, None
    while seconds < args.seconds and not (value is not None and value >= GOAL):
        played = algorithm.train().get("env_runners", {})
        seconds = time.perf_counter() - begin
        value = played.get("episode_return_mean")
        steps = int(played.get("num_env_steps_sampled_lifetime", 0))
        print(json.dumps({"seconds": seconds, "steps": steps, "return": value}), flush=True)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
