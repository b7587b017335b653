"""Learning from recorded data: clones of a CartPole and a Pendulum agent; CQL and IQL against cloning on mixed data.

    python benchmarks/offline.py [--seeds 2] [--only cartpole] [--work DIR]

It trains the agents with the recipes cartpole and pendulum-sac, records them (`evaluate --output`), and learns from the
recordings on several seeds. `--work` keeps agents and data sets, so that a second call does not train them again.

Mixed data: episodes of a random, of a half-trained and of the trained agent. Returns are means over 200 episodes of the
greedy policy. The score is 0 for the random agent and 100 for the trained one: returns of Pendulum are negative.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from outplay import BC, CQL, IQL, MARWIL, PPO, SAC, Algorithm, data
from outplay.algorithms.experience import EvaluationRecorder
from outplay.collect import EpisodeProgress
from outplay.runs.experiments import load_recipe

EPISODES = 200  # returns of Pendulum vary: of 50 episodes, the standard error of the mean is 12
CLONED = {"cartpole": 20, "pendulum": 100}  # episodes that the clones see
MIXED = {"cartpole": (300, 15, 10), "pendulum": (40, 20, 10)}  # random, half-trained, trained episodes
NAMES = ("random", "half-trained", "trained")
HALF_TRAINED = {"cartpole": 4, "pendulum": 60}  # iterations
UPDATES = {"cartpole": 6_000, "pendulum": 6_000}
RECIPES: dict[str, tuple[type[Algorithm], str]] = {"cartpole": (PPO, "cartpole"), "pendulum": (SAC, "pendulum-sac")}
SMALL = {"model": {"fcnet_hiddens": [64, 64]}, "num_workers": 0}
LEARNERS: dict[str, dict[str, tuple[type[Algorithm], dict[str, Any]]]] = {
    "cartpole": {
        "BC": (BC, {}),
        "MARWIL": (MARWIL, {"beta": 1.0}),
        "CQL": (CQL, {"min_q_weight": 1.0, "bc_iters": 0, "lr": 1e-3}),
        "IQL": (IQL, {"lr": 1e-3, "temperature": 10.0, "reward_scale": 0.1, "expectile": 0.9}),
    },
    "pendulum": {
        "BC": (BC, {}),
        "MARWIL": (MARWIL, {"beta": 1.0}),
        "CQL": (CQL, {"min_q_weight": 1.0, "bc_iters": 0, "num_actions": 4, "lr": 1e-3}),
        "IQL": (IQL, {"lr": 1e-3, "reward_scale": 0.1, "expectile": 0.9}),
    },
}


def agents(task: str, work: Path) -> None:
    """Train, and record the random, the half-trained and the trained agent."""
    kind, recipe = RECIPES[task]
    if (work / task / "done").exists():
        return
    experiment = load_recipe(recipe)
    number = max(CLONED[task], EPISODES)
    with kind(experiment.env, {**experiment.config, "num_workers": 0, "seed": 0}) as trainer:
        record(trainer, work / task / "random", MIXED[task][0], explore=True)
        while not trained(trainer, experiment.stop):
            trainer.train()
            if trainer.iteration == HALF_TRAINED[task]:
                record(trainer, work / task / "half-trained", MIXED[task][1], explore=True)
        record(trainer, work / task / "trained", number)
    (work / task / "done").touch()


def trained(trainer: Algorithm, stop: dict[str, float]) -> bool:
    if trainer.iteration == 0:
        return False
    result: Any = trainer.last_result
    return any(result[key] >= value for key, value in stop.items())


def record(trainer: Algorithm, folder: Path, episodes: int, explore: bool = False) -> None:
    """Record evaluation episodes; half-trained and random agents explore, so that their data is varied."""
    trainer.config = trainer.config.model_copy(update={"evaluation_explore": explore})
    recorder = EvaluationRecorder(trainer, folder)
    trainer.evaluate(episodes=episodes, progress=EpisodeProgress(on_step=recorder.step))
    recorder.close()


def some(folder: Path, episodes: int) -> dict[str, np.ndarray]:
    """The first episodes of a recording."""
    rows = data.read_parquet(folder).to_arrays()
    chosen = np.isin(rows["episode_id"], np.unique(rows["episode_id"])[:episodes])
    return {name: array[chosen] for name, array in rows.items() if not name.startswith("action_")}


def returns(folder: Path) -> np.ndarray:
    rows = data.read_parquet(folder).to_arrays()
    return np.bincount(np.unique(rows["episode_id"], return_inverse=True)[1], rows["reward"].astype(float))


def data_sets(task: str, work: Path) -> dict[str, Path]:
    """The episodes that are cloned, and the mixed ones."""
    parts = [some(work / task / name, n) for name, n in zip(NAMES, MIXED[task], strict=True)]
    for i, part in enumerate(parts):
        part["episode_id"] = part["episode_id"] * 3 + i
    mixed = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    print(f"{task}: mixed data of {[len(part['reward']) for part in parts]} steps (random, half-trained, trained)")
    folders = {"clone": work / task / "clone", "mixed": work / task / "mixed"}
    for name, rows in (("clone", some(work / task / "trained", CLONED[task])), ("mixed", mixed)):
        if not folders[name].exists():
            data.from_arrays(rows).write_parquet(folders[name])
    return folders


def learned(task: str, name: str, folder: Path, seed: int) -> tuple[float, float]:
    """(mean return, seconds of training)."""
    kind, settings = LEARNERS[task][name]
    env = load_recipe(RECIPES[task][1]).env
    config = {**SMALL, "input": str(folder), "train_batch_size": 256 * UPDATES[task], "seed": seed, **settings}
    with kind(env, config) as trainer:
        started = time.perf_counter()
        trainer.train()
        spent = time.perf_counter() - started
        return trainer.evaluate(episodes=EPISODES)["episode_return_mean"], spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=list(RECIPES))
    parser.add_argument("--learners", nargs="*")
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        for task in RECIPES if given.only is None else [given.only]:
            agents(task, work)
            folders = data_sets(task, work)
            low, high = (float(returns(work / task / name).mean()) for name in ("random", "trained"))
            half = float(returns(work / task / "half-trained").mean())
            print(f"{task}: random {low:.1f}, half-trained {half:.1f}, trained {high:.1f}")
            print(f"{'data':8} {'learner':8} {'return':>8} {'score':>6}  {'of seeds':30} {'s':>5}")
            for name, which in [("BC", "clone"), *((n, "mixed") for n in LEARNERS[task])]:
                if given.learners and name not in given.learners:
                    continue
                found = [learned(task, name, folders[which], seed) for seed in range(given.seeds)]
                mean = float(np.mean([value for value, _ in found]))
                each = ", ".join(f"{value:.1f}" for value, _ in found)
                score = 100 * (mean - low) / (high - low)
                spent = np.mean([seconds for _, seconds in found])
                print(f"{which:8} {name:8} {mean:8.1f} {score:6.1f}  {each:30} {spent:5.1f}", flush=True)


if __name__ == "__main__":
    main()
