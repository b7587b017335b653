"""Promise 3: a lost worker costs time, not data. And what the number of workers means."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outplay
from outplay import DQN, PPO, Algorithm
from outplay.algorithms.setup import Resources
from outplay.collect import pool, worker
from tests import probes
from tests.algorithms.test_placement import CASES, SMALL, train


@pytest.mark.slow
@pytest.mark.parametrize(("env", "more"), [("ALE/Pong-v5", {}), ("ALE/Breakout-v5", {"fire_on_reset": True})])
def test_atari_is_the_same_with_any_number_of_workers(process_engine: None, env: str, more: dict[str, Any]) -> None:
    config = {
        **more,
        "num_envs": 4, "train_batch_size": 64, "num_sgd_iter": 1, "sgd_minibatch_size": 64, "learner_threads": 1,
        "model": {"conv_filters": [[8, 8, 4], [8, 4, 2]], "fcnet_hiddens": [16], "precision": "bfloat16"},
        "normalize_observations": True,
    }  # fmt: skip
    found = set()
    for num_workers in (0, 2):
        with PPO(env=env, config={**config, "num_workers": num_workers}) as trainer:
            for _ in range(2):
                trainer.train()
            found.add(trainer.policy.flat.numpy().tobytes())
    assert len(found) == 1


def test_evaluations_are_the_same_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thread for each episode, all games are one vector: those that have ended go on, and are not counted."""
    config = {
        "num_workers": 0, "learner_threads": 1, "evaluation_explore": True, "evaluation_duration": 3,
        "env_config": {"img_height": 42, "img_width": 42},
        "model": {"conv_filters": [[4, 8, 8]], "fcnet_hiddens": [8]},
    }  # fmt: skip
    found, separate = [], []
    make = worker.make_vector

    def recorded(*arguments: Any) -> Any:
        separate.append(arguments[3])
        return make(*arguments)

    monkeypatch.setattr(worker, "make_vector", recorded)
    for threads in (2, 3):
        monkeypatch.setattr(pool, "count_cpus", lambda threads=threads: threads)
        with PPO(env="ALE/Breakout-v5", config=config) as trainer:
            found += [[trainer.evaluate() for _ in range(2)]]
    assert separate == [True, True, False, False]
    assert found[0] == found[1]
    assert found[0][0]["episode_len_mean"] > 50


@pytest.mark.slow
def test_num_workers_starts_that_many_workers(process_engine: None, caplog: pytest.LogCaptureFixture) -> None:
    """More workers than EnvGroups: there are more EnvGroups, and unless their number is given more environments."""
    small = {"train_batch_size": 24, "sgd_minibatch_size": 24, "model": {"fcnet_hiddens": [8]}}
    cases: list[tuple[type[Algorithm], dict[str, Any], tuple[int, int, int]]] = [
        (PPO, {"num_envs": 5, "num_workers": 5}, (5, 5, 5)),
        (PPO, {"num_envs": 2, "num_env_groups": 1, "num_workers": 2}, (2, 2, 2)),
        (PPO, {"num_envs": 3, "num_workers": 5}, (3, 3, 3)),  # there are only three environments
        (DQN, {"num_workers": 2}, (2, 8, 4)),
    ]
    for algorithm, settings, (workers, envs, groups) in cases:
        with algorithm(env=probes.Walk, config={**small, **settings}) as trainer:
            assert trainer.num_workers == workers
            if workers < 5:  # each is a process
                trainer.train()
                pids = trainer.workers.foreach_worker(lambda worker: worker.process())
                assert len(set(pids)) == workers
            config = trainer.get_config()
            assert (config["num_envs"], config["num_env_groups"]) == (envs, groups)
    assert "num_workers is 5: the environments are split into 5 EnvGroups, not 4" in caplog.text
    assert "num_workers is 5, but there are 3 EnvGroups, so 3 workers run" in caplog.text


def test_workers_bring_their_environments_and_a_resumed_run_keeps_its_groups(
    process_engine: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"train_batch_size": 40, "sgd_minibatch_size": 40, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}
    with PPO(env=probes.Walk, config={**settings, "num_workers": 17}) as many:
        assert (many.config.num_envs, many.config.num_env_groups, many.num_workers) == (17, 17, 17)
    assert "num_workers is 17: there are 17 environments, not 16" in caplog.text
    with PPO(env=probes.Walk, config={**settings, "num_envs": 6, "num_env_groups": 2, "num_workers": 0}) as first:
        first.train()
        path = first.save(tmp_path)
        first.train()
        expected = first.policy.flat.numpy().tobytes()
    with PPO.from_checkpoint(path, env=probes.Walk, config={"num_workers": 3}) as again:
        again.train()
        assert again.config.num_env_groups == 2
        assert again.workers.num_workers == 2
        assert again.policy.flat.numpy().tobytes() == expected


def test_resources_count_workers_and_threads() -> None:
    config = {"num_workers": 2, "evaluation_num_workers": 1, "learner_threads": 3}
    with PPO(env="CartPole-v1", config=config) as trainer:
        assert trainer.resources() == Resources(cpus=6, gpus=0)
    with DQN(env="CartPole-v1", config={"replay_shards": 2}) as trainer:
        assert trainer.resources() == Resources(cpus=3, gpus=0)  # auto: CartPole is fast, no workers


@pytest.mark.slow
def test_rllibs_num_envs_per_worker(process_engine: None, caplog: pytest.LogCaptureFixture) -> None:
    config = {**SMALL, "num_workers": 2, "num_envs_per_worker": 3}
    with PPO(env=probes.Walk, config=config) as trainer:
        trainer.train()
        lanes = trainer.workers.foreach_worker(lambda w: sum(g.vector.num_envs for g in w.groups.values()))
    assert sum(lanes) == 6
    assert "the result of this run depends on num_workers" in caplog.text


@pytest.mark.parametrize(
    "case",
    ["Python", *(pytest.param(case, marks=pytest.mark.slow) for case in ("native, whole stream", "whole episodes"))],
)
def test_a_worker_that_dies_is_replaced_and_the_result_is_the_same(
    process_engine: None, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, env, config = CASES[case]
    weights, undisturbed, _ = train(case, 0)
    with algorithm(env=env, config={**SMALL, **config, "num_workers": 2}) as trainer:
        returns = [trainer.train()["episode_return_mean"]]
        for _ in range(2):
            (_, victim), _ = trainer.workers.foreach_worker(lambda w: w.process())
            os.kill(victim, signal.SIGKILL)
            returns.append(trainer.train()["episode_return_mean"])
        assert trainer.workers.replaced == 2
        assert trainer.policy.flat.numpy().tobytes() == weights
    assert np.array_equal(returns, undisturbed, equal_nan=True)
    assert "died and is replaced" in caplog.text


class Deadly(probes.Walk):
    """Ends its process: an environment that no number of replacements helps."""

    def step(self, action: Any) -> Any:
        if os.getpid() != self.driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

    def __init__(self, driver: int) -> None:
        super().__init__()
        self.driver = driver


@pytest.mark.parametrize(
    ("restarts", "sentence"),
    [(None, "worker 0 died 3 times in a row"), (0, r"worker 0 died once \(max_worker_restarts is 0\)")],
)
def test_a_worker_that_always_dies_ends_the_run(process_engine: None, restarts: int | None, sentence: str) -> None:
    config = {**SMALL, "num_workers": 1, "env_config": {"driver": os.getpid()}}
    if restarts is not None:
        config["max_worker_restarts"] = restarts
    with PPO(env=Deadly, config=config) as trainer, pytest.raises(outplay.RunError, match=sentence):
        trainer.train()


def test_evaluation_workers_are_replaced_too(process_engine: None) -> None:
    config = {**SMALL, "num_workers": 0, "evaluation_num_workers": 2, "evaluation_duration": 20}
    with PPO(env=probes.Walk, config=config) as trainer:
        first = trainer.evaluate()
        assert trainer._evaluator is not None
        victim = outplay.get(trainer._evaluator._pool.remote[1].process.remote())[1]
        os.kill(victim, signal.SIGKILL)
        assert trainer.evaluate() == first
        assert trainer._evaluator._pool.replaced == 1


def test_an_error_in_an_evaluation_worker_is_one_sentence(process_engine: None) -> None:
    config = {"num_workers": 0, "evaluation_num_workers": 1, "env_config": {"flaw": "raises", "after": 1100}}
    config["evaluation_duration"] = 10
    with PPO(env=probes.Flawed, config=config) as trainer, pytest.raises(outplay.EnvError, match="gripper") as caught:
        [trainer.evaluate() for _ in range(100)]
    assert "\n" not in str(caught.value)
