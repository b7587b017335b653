"""Environments that use random streams which a whole process has in common: each gets its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import PPO
from outplay.envs import EnvSpec, probe_env
from outplay.envs.check import check_env
from outplay.envs.global_streams import OwnStreams
from tests import probes
from tests.envs import odd

SMALL = {"num_envs": 8, "num_env_groups": 4, "num_workers": 0, "train_batch_size": 128, "seed": 7}


def weights(env: Any, num_workers: int, **more: Any) -> bytes:
    with PPO(env=env, config={**SMALL, "num_workers": num_workers, **more}) as trainer:
        for _ in range(2):
            trainer.train()
        return trainer.policy.flat.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("env", [odd.SeedsGlobals, pytest.param(odd.DrawsFromGlobals, marks=pytest.mark.slow)])
def test_workers_do_not_change_the_result(process_engine: None, env: Any) -> None:
    alone = weights(env, 0)
    assert [weights(env, num_workers) == alone for num_workers in (1, 2)] == [True] * 2
    assert weights(env, 0, seed=8) != alone


@pytest.mark.parametrize("env", [odd.SeedsGlobals, odd.DrawsFromGlobals])
def test_a_resumed_run_goes_on_exactly(env: Any, tmp_path: Path) -> None:
    config = {**SMALL, "env_task_fn": lambda *_: 0.5} if env is odd.DrawsFromGlobals else SMALL
    with PPO(env=env, config=config) as whole:
        for _ in range(4):
            whole.train()
    with PPO(env=env, config=config) as first:
        for _ in range(2):
            first.train()
        path = first.save(tmp_path)
        first.evaluate()
    with PPO(env=env, config=config) as second:
        second.restore(path)
        for _ in range(2):
            second.train()
        assert not second.inexact
        assert second.policy.flat.equal(whole.policy.flat)


def test_the_programs_own_streams_are_left_alone() -> None:
    def drawn() -> tuple[float, float]:
        return float(np.random.rand()), random.random()

    np.random.seed(3)
    random.seed(3)
    expected = drawn(), drawn()
    np.random.seed(3)
    random.seed(3)
    first = drawn()
    weights(odd.SeedsGlobals, 0)
    assert (first, drawn()) == expected


def test_only_the_streams_that_are_used_are_replaced() -> None:
    assert probe_env(EnvSpec("it", odd.SeedsGlobals)).global_streams == ("numpy", "random")
    assert probe_env(EnvSpec("it", odd.DrawsFromGlobals)).global_streams == ("numpy", "random", "torch")
    assert probe_env(EnvSpec("it", probes.Walk)).global_streams == ()
    with PPO(env=probes.Walk, config=SMALL) as trainer:
        assert not isinstance(trainer.env_spec.make(), OwnStreams)


def test_an_environment_that_raises_gives_the_streams_back() -> None:
    env = EnvSpec("it", probes.Flawed, {"flaw": "raises", "after": 1}, global_streams=("numpy", "random")).make()
    env.reset(seed=1)
    before = np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    with pytest.raises(RuntimeError, match="the gripper is stuck"):
        env.step(1)
    assert np.array_equal(np.random.get_state()[1], before[0])  # type: ignore[index]
    assert random.getstate() == before[1]


def test_check_env_tells_that_they_are_used_and_that_runs_are_exact_all_the_same() -> None:
    found = list(check_env(EnvSpec("it", odd.SeedsGlobals)))
    assert not [text for kind, text in found if kind == "problem"]
    assert any(
        "global random generators of the process (numpy, random)" in text for kind, text in found if kind == "note"
    )
    assert any("runs can be resumed exactly" in text for _, text in found)


def test_environments_that_disturb_each_other_are_found(caplog: pytest.LogCaptureFixture) -> None:
    found = list(check_env(EnvSpec("it", odd.SharesGenerator)))
    assert any(
        "influence each other if several run in one process" in text for kind, text in found if kind == "problem"
    )
    with PPO(env=odd.SharesGenerator, config=SMALL) as trainer:
        assert "results depend on num_workers" in caplog.text
        assert trainer.inexact
