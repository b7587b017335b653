"""Evaluations beside training: the same metrics at the same iterations, on every engine, with any workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import DQN
from tests import probes
from tests.algorithms.test_evaluation import BESIDE, LENGTH, evaluations, later, make, sequential
from tests.cli.common import wait_for

__all__ = ["sequential"]  # a fixture


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("num_workers", "evaluation_num_workers"),
    [(2, 2), pytest.param(0, 1, marks=SLOW), pytest.param(0, 2, marks=SLOW), pytest.param(2, 1, marks=SLOW)],
)
def test_placement_does_not_change_when_and_what_is_reported(
    engine: str, num_workers: int, evaluation_num_workers: int, sequential: tuple[dict[int, Any], bytes]
) -> None:
    if engine == "ray" and (num_workers, evaluation_num_workers) != (2, 2):
        pytest.skip("workers on Ray start slowly: one case")
    with make(num_workers=num_workers, evaluation_num_workers=evaluation_num_workers) as trainer:
        found = evaluations(trainer, 6)
        assert list(found) == [4, 6]
        assert found == later(sequential[0])
        assert trainer.policy.flat.numpy().tobytes() == sequential[1]


def test_training_goes_on_while_an_evaluation_is_held_up(process_engine: None, tmp_path: Path) -> None:
    """The evaluation stands still until the file `go` exists, and two more iterations end before it does."""
    config = {"env_config": {}, "evaluation_config": {"env": probes.Stuck, "env_config": {"folder": str(tmp_path)}}}
    with make(**config, evaluation_duration=1) as trainer:
        (tmp_path / "armed").touch()
        assert evaluations(trainer, 3) == {}
        (tmp_path / "go").touch()
        assert evaluations(trainer, 1)[4]["iteration"] == 2


def test_an_evaluation_worker_that_dies_gives_the_same_result(process_engine: None, tmp_path: Path) -> None:
    """It is killed while its first environment stands still, in the middle of an episode."""
    config = {"env_config": {}, "evaluation_config": {"env": probes.Stuck, "env_config": {"folder": str(tmp_path)}}}
    with make(**config, evaluation_parallel_to_training=False, evaluation_num_workers=0) as other:
        expected = {**evaluations(other, 2)[2], "iteration": 2}
    with make(**config) as trainer:
        trainer.train()
        trainer.evaluate()  # starts the worker
        assert trainer._evaluator is not None
        victim = outplay.get(trainer._evaluator._pool.remote[0].process.remote())[1]
        (tmp_path / "armed").touch()
        trainer.train()
        wait_for((tmp_path / "taken").exists)
        os.kill(victim, signal.SIGKILL)
        assert evaluations(trainer, 2)[4] == expected
        assert trainer._evaluator._pool.replaced == 1


@pytest.mark.slow
def test_an_asynchronous_algorithm_evaluates_beside_training_too(process_engine: None) -> None:
    config = {"async": True, "num_workers": 1, "train_batch_size": 50, "learning_starts": 20, **BESIDE}
    with DQN(env=probes.Walk, config={**config, **LENGTH}) as trainer:
        found = [result["evaluation"] for result in (trainer.train() for _ in range(4)) if "evaluation" in result]
        assert [evaluation["iteration"] for evaluation in found] == [2]
