"""What needs memory: PPO with an LSTM, a GRU, attention and without any, on three environments.

    python benchmarks/memory.py [--seeds 3] [--only repeat,cartpole,tmaze] [--plot docs/memory.png]

RepeatAfterMe (repeat what was shown 2 steps ago; the best return is 98, guessing gives 0), CartPole without velocities
(solved at 475) and a T-maze of length 20 (the best return is 1, guessing gives 0). Each run stops when the mean return
of the last 20 episodes reaches its goal, or after the steps below. Printed: steps until then, and the highest mean.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from figures import label, panels

from outplay import PPO

CORES: dict[str, dict[str, Any]] = {
    "LSTM": {"use_lstm": True, "lstm_cell_size": 64},
    "GRU": {"use_gru": True, "lstm_cell_size": 64},
    "attention": {"use_attention": True},
    "none": {"use_lstm": False},
}
SHARED: dict[str, Any] = {"num_workers": 0, "metrics_num_episodes": 20}
CARTPOLE = {"lr_schedule": [[0, 1e-3], [400_000, 0.0]]}
MEMORY = {"repeat": 8, "cartpole": 8, "tmaze": 24}  # steps that attention looks back
# environment, goal, most steps, settings
TASKS: dict[str, tuple[str, float, int, dict[str, Any]]] = {
    "repeat": ("RepeatAfterMe", 90, 100_000, {"env_config": {"repeat_delay": 2}, "gamma": 0.9, "num_envs": 20}),
    "cartpole": ("CartPoleWithoutVelocities", 475, 400_000, CARTPOLE),
    "tmaze": ("TMaze", 0.95, 200_000, {"env_config": {"length": 20}, "lr": 1e-3}),
}


def run(task: str, core: str, seed: int) -> tuple[list[int], list[float]]:
    """(steps, mean return of the last 20 episodes) after each iteration, until the goal is reached."""
    env, goal, most, settings = TASKS[task]
    model = {**CORES[core], "max_seq_len": 32, "attention_memory_inference": MEMORY[task]}
    steps, returns = [], []
    with PPO(f"outplay.envs.examples:{env}", {**SHARED, **settings, "model": model, "seed": seed}) as trainer:
        while trainer.timesteps < most and not (len(trainer.episodes.returns) >= 20 and returns[-1] >= goal):
            result = trainer.train()
            steps.append(result["timesteps_total"])
            returns.append(result["episode_return_mean"])
    return steps, returns


def plot(curves: dict[str, dict[str, list[tuple[list[int], list[float]]]]], path: Path) -> None:
    with panels(path, len(curves), 3.6 * len(curves), 2.8) as axes:
        for axis, (task, cores) in zip(axes, curves.items(), strict=True):
            for number, (core, runs) in enumerate(cores.items()):
                for i, (steps, returns) in enumerate(runs):
                    thousands = [step / 1000 for step in steps]
                    axis.plot(thousands, returns, color=f"C{number}", linewidth=1.1, label=core if i == 0 else None)
            axis.set_title(TASKS[task][0], fontsize=9)
            is_first = axis is axes[0]
            label(axis, TASKS[task][1], y="mean return, last 20 episodes" if is_first else "", legend=is_first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--only", default=",".join(TASKS), help="which environments, with commas between")
    parser.add_argument("--plot", type=Path, help="draw the curves into this file")
    args = parser.parse_args()
    curves: dict[str, dict[str, list[tuple[list[int], list[float]]]]] = {}
    for task in args.only.split(","):
        env, goal, most, _ = TASKS[task]
        print(f"{env}, goal {goal:g}, at most {most:,} steps")
        for core in CORES:
            found = curves.setdefault(task, {})[core] = [run(task, core, seed) for seed in range(args.seeds)]
            ends = [steps[-1] if returns[-1] >= goal else None for steps, returns in found]
            solved = sum(end is not None for end in ends)
            middle = statistics.median(end if end is not None else most for end in ends)
            best = statistics.median(max(returns) for _, returns in found)
            bound = "" if solved > args.seeds / 2 else ">="
            row = f"{core:10} solved {solved} of {args.seeds}, median steps {bound}{middle:,.0f}, best {best:.2f}"
            print(f"  {row}", flush=True)
    if args.plot:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
