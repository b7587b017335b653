"""SAC, TD3 and DQN: steps and updates per second of Outplay, Stable-Baselines3 and SBX, on one machine, in one run.

    python benchmarks/offpolicy.py [--only sac] [--rounds 3] [--steps 1500]

All sides have the same network, minibatch and updates per step, and train with their defaults otherwise: SAC and TD3 on
Pendulum-v1 with 2 × 256 units, minibatches of 256 and one update per step; DQN on CartPole-v1 with 2 × 256 units,
minibatches of 64 and one update per two steps. Learning starts after 300 steps, which are not timed, nor are the first
200 steps of learning: SBX compiles in them.

All sides may use all cores. Stable-Baselines3 and SBX alternate one step and one update in one environment; Outplay has
its default of 4 (DQN: 8) environments and makes the updates of an iteration in a row. The others compute in float32.
Outplay's SAC and TD3 compute hidden layers in bfloat16 on CPUs with instructions for it, their default, and are
measured in float32, too; DQN is in float32 by default, and is measured in bfloat16, too (`model: {precision: …}`).
Each figure is the median over the rounds; ratios are to the faster of the two others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UNITS = [256, 256]
STARTS, WARM_UP = 300, 200
ENVS = {"sac": "Pendulum-v1", "td3": "Pendulum-v1", "dqn": "CartPole-v1"}
MINIBATCH = {"sac": 256, "td3": 256, "dqn": 64}
UPDATES_PER_STEP = {"sac": 1.0, "td3": 1.0, "dqn": 0.5}
TITLES = {
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "outplay": "Outplay",
    "outplay-float32": "Outplay, float32",
    "outplay-bfloat16": "Outplay, bfloat16",
}


def outplay_rate(algorithm: str, steps: int, precision: str) -> float:
    import outplay

    settings: dict[str, Any] = {
        "num_workers": 0,
        "sgd_minibatch_size": MINIBATCH[algorithm],
        "training_intensity": UPDATES_PER_STEP[algorithm],
        "learning_starts": STARTS,
        "buffer_size": 100_000,
        "learner_threads": os.cpu_count(),
        "model": {"fcnet_hiddens": UNITS, "precision": precision},
    }
    if algorithm == "dqn":
        settings |= {"dueling": False}
    with getattr(outplay, algorithm.upper())(ENVS[algorithm], settings) as trainer:
        while trainer.timesteps < STARTS + WARM_UP:
            trainer.train()
        before, begin = trainer.timesteps, time.perf_counter()
        while trainer.timesteps < before + steps:
            trainer.train()
        return (trainer.timesteps - before) / (time.perf_counter() - begin)


def other_rate(library: str, algorithm: str, steps: int) -> float:
    import importlib

    module = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library])
    every = round(1 / UPDATES_PER_STEP[algorithm])
    model = getattr(module, algorithm.upper())(
        "MlpPolicy",
        ENVS[algorithm],
        batch_size=MINIBATCH[algorithm],
        learning_starts=STARTS,
        buffer_size=100_000,
        train_freq=every,
        gradient_steps=1,
        policy_kwargs={"net_arch": UNITS},
        seed=0,
        **({"device": "cpu"} if library == "sb3" else {}),
    )
    model.learn(STARTS + WARM_UP)
    begin = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - begin)


def side(python: Path | str, library: str, algorithm: str, steps: int) -> float:
    command = [str(python), __file__, "--side", library, "--only", algorithm, "--steps", str(steps)]
    return float(
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(ENVS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--side", choices=list(TITLES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        if args.side.startswith("outplay"):
            precision = args.side.removeprefix("outplay").removeprefix("-") or "auto"
            print(json.dumps(outplay_rate(args.only, args.steps, precision)))
        else:
            print(json.dumps(other_rate(args.side, args.only, args.steps)))
        return
    from others import install

    from outplay.machine import has_bfloat16

    other, own = install("sbx"), Path(sys.executable)
    pythons = {"sb3": other, "sbx": other, "outplay": own}
    print(f"{'':6}{'':20}{'steps/s':>10}{'updates/s':>11}{'ratio':>8}", flush=True)
    for algorithm in [args.only] if args.only else ENVS:
        sides = [*pythons, f"outplay-{'bfloat16' if algorithm == 'dqn' else 'float32'}"]
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name in sides:
                rates[name].append(side(pythons.get(name, own), name, algorithm, args.steps))
        medians = {name: statistics.median(found) for name, found in rates.items()}
        fastest = max(medians["sb3"], medians["sbx"])
        for name in sides:
            rate, updates = medians[name], medians[name] * UPDATES_PER_STEP[algorithm]
            print(
                f"{algorithm.upper():6}{TITLES[name]:20}{rate:>10,.0f}{updates:>11,.0f}{rate / fastest:>8.2f}",
                flush=True,
            )
    default = "bfloat16" if has_bfloat16() else "float32"
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the end; default of SAC and TD3 here: {default}")


if __name__ == "__main__":
    main()
