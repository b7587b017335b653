"""Promise 1: the same seed gives the same bytes, whatever the workers and the engine."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pytest

from outplay import A2C, DQN, PG, PPO, SAC, Algorithm
from outplay.collect import torch_threads
from tests import probes

SMALL = {"num_envs": 8, "train_batch_size": 128, "seed": 7}
CASES: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "native, whole stream": (PPO, "CartPole-v1", {}),
    "Python": (PPO, probes.Walk, {"env_config": {"length": 30}}),
    "normalised": (A2C, probes.Walk, {"normalize_observations": True, "rollout_fragment_length": 7}),
    "whole episodes": (PG, probes.Walk, {"env_config": {"length": 20}}),
    "continuous": (PPO, "Pendulum-v1", {"max_episode_steps": 25}),
}


def train(case: str, num_workers: int, iterations: int = 3, **more: Any) -> tuple[bytes, list[float], list[Any]]:
    """The weights at the end, the returns on the way, and what each worker did."""
    algorithm, env, config = CASES[case]
    with algorithm(env=env, config={**SMALL, **config, "num_workers": num_workers, **more}) as trainer:
        returns = [trainer.train()["episode_return_mean"] for _ in range(iterations)]
        done = trainer.workers.foreach_worker(lambda w: (w.process(), {g: e._fragments for g, e in w.groups.items()}))
        return trainer.policy.flat.numpy().tobytes(), returns, done


@cache
def alone(case: str) -> tuple[bytes, list[float], list[Any]]:
    """A case in the program itself, without an engine."""
    return train(case, 0)


# Two workers here; `make test-all` runs them all.
PLACEMENTS = [pytest.param(case, n, marks=[] if n == 2 else [pytest.mark.slow]) for case in CASES for n in (1, 2, 4)]


@pytest.mark.parametrize(("case", "num_workers"), PLACEMENTS)
def test_workers_do_not_change_the_result(engine: str, case: str, num_workers: int) -> None:
    if engine == "ray" and case != "Python":
        pytest.skip("workers on Ray start slowly: one case for all numbers of them")
    weights, returns, done = train(case, num_workers)
    assert weights == alone(case)[0]
    assert np.array_equal(returns, alone(case)[1], equal_nan=True)
    # Every worker did step, in a process of its own, and all EnvGroups had one.
    assert len(done) == num_workers
    assert sorted(group for _, groups in done for group in groups) == [0, 1, 2, 3]
    assert all(count > 0 for _, groups in done for count in groups.values())
    if engine != "inline":
        assert len({process for process, _ in done} | {(os.uname().nodename, os.getpid())}) == num_workers + 1


def test_the_seed_does_change_the_result() -> None:
    assert train("Python", 0, 1)[0] != train("Python", 0, 1, seed=8)[0]


@pytest.mark.parametrize(("kind", "env"), [(PPO, "CartPole-v1"), (DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_the_number_of_cores_does_not_change_the_result(kind: type[Algorithm[Any]], env: str) -> None:
    """Torch begins with a thread per core, and LAPACK's results depend on their number: those of first weights, too."""
    weights = []
    for threads in (1, 2):
        settings = {"num_workers": 0, "learner_threads": 1, "model": {"fcnet_hiddens": [256, 256]}}
        with torch_threads(threads), kind(env, settings) as trainer:
            first = trainer.policy.flat.numpy().tobytes()
            trainer.train()
            weights.append((first, trainer.policy.flat.numpy().tobytes()))
    assert weights[0] == weights[1]
