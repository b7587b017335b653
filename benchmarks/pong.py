"""Pong: seconds per update of the policy gradient, four ways; and steps per second of PPO beside Stable-Baselines3.

    python benchmarks/pong.py [--batches 1,10,60,300] [--rounds 1] [--only pg,ppo] [--json FILE]

The policy gradient is that of "Pong from Pixels": an update is one gradient from each game of a batch. The four ways:
(a) a plain loop, one game after the other; (b) actors on Ray, with the same maths; (c) examples/pong_actors.py on
processes; (d) the recipe pong-pg. Actors are ten at most and take turns with the games: 300 emulators in as many
processes do not fit a small machine. The policy is an untrained one in all of them, so games are equally long; (c) does
not tell its steps, and is given the mean of the others'.

PPO has the network of Mnih et al. 2015, 8 environments, 128 steps each per update, 4 epochs of 4 minibatches.

Each way runs in a process of its own, one after the other, `rounds` times; figures are medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from others import install

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
ACTORS = 10
UPDATES = {1: 6, 10: 3}  # how many updates are timed; of larger batches, one
WAYS = {
    "a": "(a) plain loop",
    "b": "(b) actors on Ray",
    "c": "(c) pong_actors, processes",
    "d": "(d) pong-pg",
}
PPO_WAYS = {"sb3": "Stable-Baselines3", "float32": "Outplay", "bfloat16": "Outplay, bfloat16"}
PPO_UPDATES = 6

Timed = list[tuple[float, int]]  # seconds and steps of updates


# The maths of (a) and (b): as the tutorials have it, in numpy, dense, in double precision.


def play(env: Any, model: dict[str, Any], rng: Any) -> tuple[dict[str, Any], int]:
    """One game: its gradient and its steps."""
    import numpy as np

    def pixels(frame: Any) -> Any:
        field = frame[35:195][::2, ::2, 0].astype(float).ravel()
        field[(field == 144) | (field == 109)] = 0
        field[field != 0] = 1
        return field

    frame, _ = env.reset()
    before, images, hiddens, errors, rewards, over = None, [], [], [], [], False
    while not over:
        now = pixels(frame)
        image = now - before if before is not None else np.zeros(6400)
        before = now
        hidden = model["W1"] @ image
        hidden[hidden < 0] = 0
        chance = 1 / (1 + np.exp(-(model["W2"] @ hidden)))
        up = rng.random() < chance
        frame, reward, terminated, truncated, _ = env.step(2 if up else 3)
        images.append(image)
        hiddens.append(hidden)
        errors.append(up - chance)
        rewards.append(float(reward))
        over = terminated or truncated
    returns, running = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] if rewards[t] else 0.99 * running
        returns[t] = running
    returns = (returns - returns.mean()) / returns.std()
    weighted = np.array(errors) * returns
    hidden_all = np.array(hiddens)
    back = np.outer(weighted, model["W2"]) * (hidden_all > 0)
    return {"W1": back.T @ np.array(images), "W2": hidden_all.T @ weighted}, len(rewards)


def new_model() -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return {
        "W1": rng.normal(size=(200, 6400)) / 80,
        "W2": rng.normal(size=200) / 200**0.5,
    }


def update(model: dict[str, Any], squares: dict[str, Any], gradients: list[dict[str, Any]]) -> None:
    import numpy as np

    for name in model:
        total = sum(gradient[name] for gradient in gradients)
        squares[name] = 0.99 * squares.get(name, 0.0) + 0.01 * total**2
        model[name] = model[name] + 1e-4 * total / (np.sqrt(squares[name]) + 1e-5)


def make_env() -> Any:
    sys.path.insert(0, str(EXAMPLES))
    import pong_policy

    return pong_policy.make_env()


# The four ways. Each times `updates` updates of `batch` games, after one that warms it up.


def plain_loop(batch: int, updates: int) -> Timed:
    import numpy as np

    env, model, squares, rng, timed = make_env(), new_model(), {}, np.random.default_rng(0), []
    play(env, model, rng)
    for _ in range(updates):
        started = time.perf_counter()
        games = [play(env, model, rng) for _ in range(batch)]
        update(model, squares, [gradient for gradient, _ in games])
        timed.append((time.perf_counter() - started, sum(steps for _, steps in games)))
    return timed


def actors_on_ray(batch: int, updates: int) -> Timed:
    import ray

    os.environ["PYTHONPATH"] = f"{HERE}:{EXAMPLES}"
    ray.init(num_cpus=ACTORS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    @ray.remote
    class PongEnv:
        def __init__(self, seed: int) -> None:
            import numpy as np

            self.env, self.rng = make_env(), np.random.default_rng(seed)

        def compute_gradient(self, model: dict[str, Any]) -> tuple[dict[str, Any], int]:
            return play(self.env, model, self.rng)

    actors = [PongEnv.remote(seed) for seed in range(min(batch, ACTORS))]
    model, squares, timed = new_model(), {}, []
    ray.get([actor.compute_gradient.remote(ray.put(model)) for actor in actors])
    for _ in range(updates):
        started = time.perf_counter()
        stored = ray.put(model)
        games = ray.get([actors[i % len(actors)].compute_gradient.remote(stored) for i in range(batch)])
        update(model, squares, [gradient for gradient, _ in games])
        timed.append((time.perf_counter() - started, sum(steps for _, steps in games)))
    ray.shutdown()
    return timed


def example_on_processes(batch: int, updates: int) -> Timed:
    """The program as it is, timed by what it prints. It does not tell its steps: they are 0 here."""
    command = [sys.executable, str(EXAMPLES / "pong_actors.py"), "--batch-size", str(batch), "--actors", str(ACTORS)]
    ends = []
    with subprocess.Popen([*command, "--batches", str(updates + 1)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for number, _ in enumerate(program.stdout, 1):
            if number % batch == 0:
                ends.append(time.perf_counter())
    return [(after - before, 0) for before, after in itertools.pairwise(ends)]


def recipe(batch: int, updates: int) -> Timed:
    from outplay import PG
    from outplay.runs.experiments import load_recipe

    config = {**load_recipe("pong-pg").config, "train_batch_episodes": batch}
    with PG(env="PongDifference", config=config) as trainer:
        trainer.train()
        results = [trainer.train() for _ in range(updates)]
    totals = [result["env_steps_per_s"] * result["time_this_iter_s"] for result in results]
    return [(result["time_this_iter_s"], round(steps)) for result, steps in zip(results, totals, strict=True)]


def emulate(seconds: float, counted: Any) -> None:
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("frame_skip", 4)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("pong"))
    steps, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        ale.act(2 + steps // 7 % 2)
        if ale.game_over():
            ale.reset_game()
        steps += 1
    counted.put(steps / seconds)


def emulator() -> float:
    """Steps per second of the emulator alone, one in each core's process."""
    context = multiprocessing.get_context("spawn")
    counted = context.Queue()
    processes = [context.Process(target=emulate, args=(4.0, counted)) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    return float(sum(counted.get() for _ in processes))


def ppo(precision: str) -> Timed:
    from outplay import PPO

    config = {
        "num_envs": 8, "num_env_groups": 2, "train_batch_size": 1024, "sgd_minibatch_size": 256, "num_sgd_iter": 4,
        "lr": 2.5e-4, "clip_param": 0.1, "gamma": 0.99, "lambda": 0.95, "entropy_coeff": 0.01,
        "env_config": {"repeat_action_probability": 0.0}, "model": {"precision": precision},
    }  # fmt: skip
    with PPO(env="ALE/Pong-v5", config=config) as trainer:
        trainer.train()
        return [(trainer.train()["time_this_iter_s"], 1024) for _ in range(PPO_UPDATES)]


SIDES: dict[str, Callable[[int, int], Timed]] = {
    "a": plain_loop,
    "b": actors_on_ray,
    "c": example_on_processes,
    "d": recipe,
}


def measured(*arguments: str, python: Path | None = None) -> Any:
    """What one side says, in a process of its own."""
    command = [str(python or sys.executable), *arguments]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # The loop and the actors have one thread each, as their authors advise; the others see to it themselves.
    environment = {**os.environ, **(threads if arguments[-1].startswith(("a,", "b,")) else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}failed with exit code {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def gradients(batches: list[int], rounds: int) -> dict[str, Any]:
    timed: dict[tuple[str, int], Timed] = {}
    bare = []
    for _ in range(rounds):
        bare.append(measured(__file__, "--side", "emulator"))
        for batch in batches:
            for way in WAYS:
                timed.setdefault((way, batch), []).extend(measured(__file__, "--side", f"{way},{batch}"))
    # The example's games are as long as those of the others.
    for batch in batches:
        games = [steps for way in "abd" for _, steps in timed[way, batch]]
        timed["c", batch] = [(seconds, round(statistics.mean(games))) for seconds, _ in timed["c", batch]]
    print(f"{'':28}" + "".join(f"{f'{batch} games':>22}" for batch in batches))
    rates: dict[tuple[str, int], float] = {}
    for way, title in WAYS.items():
        cells = []
        for batch in batches:
            rates[way, batch] = statistics.median(steps / seconds for seconds, steps in timed[way, batch])
            seconds = statistics.median(seconds for seconds, _ in timed[way, batch])
            cells.append(f"{seconds:8.2f} s {rates[way, batch]:7,.0f}/s")
        print(f"{title:28}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"{'(d) over (b), steps/s':28}" + "".join(f"{rates['d', b] / rates['b', b]:>21.2f}x" for b in batches))
    alone = statistics.median(bare)
    print(f"{'(d) of the emulator alone':28}" + "".join(f"{rates['d', b] / alone:>22.0%}" for b in batches))
    print(f"the emulator alone, on all cores: {alone:,.0f} steps/s")
    return {"emulator": bare, "timed": {f"{way},{batch}": runs for (way, batch), runs in timed.items()}}


def ppo_rates(rounds: int) -> dict[str, Any]:
    python = install("sb3")
    seconds: dict[str, list[float]] = {way: [] for way in PPO_WAYS}
    for _ in range(rounds):
        both = [
            measured(str(HERE / "pong_sb3.py"), *extra, python=python)["seconds"] for extra in ([], ["--processes"])
        ]
        seconds["sb3"] += min(both, key=statistics.median)  # environments here or in processes: what is faster
        for precision in ("float32", "bfloat16"):
            seconds[precision] += [s for s, _ in measured(__file__, "--side", precision)]
    theirs = statistics.median(seconds["sb3"])
    for way, title in PPO_WAYS.items():
        own = statistics.median(seconds[way])
        print(f"PPO, {title:20} {1024 / own:6,.0f} steps/s   {theirs / own:.2f}x")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,10,60,300", help="games per update, with commas between")
    parser.add_argument("--rounds", type=int, default=1, help="how often all of it is repeated")
    parser.add_argument("--only", default="pg,ppo")
    parser.add_argument("--json", type=Path, help="write every time into this file, too")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        way, _, batch = args.side.partition(",")
        games = int(batch or 0)
        if way in SIDES:
            print(json.dumps(SIDES[way](games, UPDATES.get(games, 1))))
        else:
            print(json.dumps(emulator() if way == "emulator" else ppo(way)))
        return
    load, kept = os.getloadavg()[0], {}
    if "pg" in args.only:
        kept["pg"] = gradients([int(batch) for batch in args.batches.split(",")], args.rounds)
    if "ppo" in args.only:
        kept["ppo"] = ppo_rates(args.rounds)
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start, Python {platform.python_version()}")
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
