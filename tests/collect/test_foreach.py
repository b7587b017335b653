"""`trainer.workers`: functions on workers and on environments, with and without worker processes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from outplay import DQN, PPO, EnvError
from outplay.envs.examples import Maze

SMALL = {
    "num_envs": 5, "num_env_groups": 3, "train_batch_size": 40, "sgd_minibatch_size": 40, "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [8]}, "curriculum": {"levels": [7]},
}  # fmt: skip


@pytest.mark.parametrize(("num_workers", "expected"), [(0, [[7] * 5]), (2, [[7] * 3, [7] * 2])])
def test_foreach_env_has_a_list_per_worker(process_engine: None, num_workers: int, expected: list[list[int]]) -> None:
    with PPO(Maze, {**SMALL, "num_workers": num_workers}) as trainer:
        assert trainer.workers.foreach_env(lambda env: env.unwrapped.get_task()) == expected
        pids = trainer.workers.foreach_env(lambda _: os.getpid())
        assert [len(set(found)) for found in pids] == [1] * len(expected)
        assert (pids[0][0] == os.getpid()) == (num_workers == 0)


def test_a_native_vector_has_no_environments_to_call() -> None:
    with (
        PPO("CartPole-v1", num_workers=0) as trainer,
        pytest.raises(EnvError, match="'CartPole-v1' runs in a native vector, which has no separate environments; use"),
    ):
        trainer.workers.foreach_env(lambda env: env)


def equal(weights: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    return weights.keys() == others.keys() and all(np.array_equal(weights[name], others[name]) for name in weights)


def clear(worker: Any) -> bool:
    policy = worker.get_policy()
    policy.set_weights({name: np.zeros_like(array) for name, array in policy.get_weights().items()})
    return not policy.flat.any()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_have_the_present_weights_and_the_next_ones_replace_what_is_set(
    process_engine: None, num_workers: int
) -> None:
    with PPO(Maze, {**SMALL, "num_workers": 0}) as undisturbed:
        for _ in range(3):
            undisturbed.train()
    with PPO(Maze, {**SMALL, "num_workers": num_workers}) as trainer:
        trainer.train()
        present = trainer.get_policy().get_weights()
        found = trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        assert len(found) == max(1, num_workers)
        assert all(equal(weights, present) for weights in found)
        local = trainer.workers.local_worker()
        assert equal(local.get_policy().get_weights(), present)
        assert len(local.foreach_env(lambda env: env)) == (0 if num_workers else 5)

        assert trainer.workers.foreach_worker(clear) == [True] * max(1, num_workers)
        assert clear(trainer.workers.local_worker())
        for _ in range(2):
            trainer.train()
        assert trainer.policy.flat.equal(undisturbed.policy.flat)


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_weights_that_are_set_last_until_the_next_iteration(
    process_engine: None, num_workers: int, algorithm: type[PPO] | type[DQN]
) -> None:
    settings = {**SMALL, "num_workers": num_workers} if algorithm is PPO else {"num_workers": num_workers}
    with algorithm(Maze, {"num_envs": 4, "curriculum": {"levels": [7]}, **settings}) as trainer:

        def are(weights: dict[str, np.ndarray]) -> bool:
            found = trainer.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
            return len(found) == max(1, num_workers) and all(equal(one, weights) for one in found)

        trainer.train()
        zeros = {name: np.zeros_like(array) for name, array in trainer.get_policy().get_weights().items()}
        trainer.workers.foreach_worker(lambda worker: worker.get_policy().set_weights(zeros))
        trainer.workers.foreach_env(lambda env: type(env))
        assert are(zeros)
        trainer.train()
        assert are(trainer.get_policy().get_weights())

        trainer.workers.foreach_worker(lambda worker: worker.get_policy().set_weights(zeros))
        ones = {name: np.ones_like(array) for name, array in zeros.items()}
        trainer.get_policy().set_weights(ones)  # the learner's weights replace those of the workers
        assert are(ones)
