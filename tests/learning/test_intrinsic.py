"""Intrinsic rewards: larger for new observations, part of the learner's state, and never of the reported returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outplay import A2C, DQN, PPO, ConfigError
from outplay.learning.intrinsic import Distillation, IntrinsicConfig
from outplay.spaces import leaves
from tests import probes

SMALL: dict[str, Any] = {"num_workers": 0, "num_envs": 4, "train_batch_size": 128, "seed": 5, "intrinsic_reward": {}}


def test_errors_fall_where_the_predictor_was_trained() -> None:
    rnd = Distillation(leaves(probes.Walk.observation_space), IntrinsicConfig(), seed=0)
    rng = torch.Generator().manual_seed(0)
    known, new = torch.randn(256, 2, generator=rng), 4 + torch.randn(256, 2, generator=rng)
    optimizer = torch.optim.Adam(rnd.predictor.parameters(), 1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        rnd.errors((known,)).mean().backward()
        optimizer.step()
    with torch.no_grad():
        assert float(rnd.errors((new,)).mean()) > 5 * float(rnd.errors((known,)).mean())


def test_rewards_by_hand() -> None:
    rnd = Distillation(leaves(probes.Walk.observation_space), IntrinsicConfig(coefficient=0.5), seed=0)
    errors = np.array([[1.0, 5.0], [3.0, 100.0]])
    valid = np.array([[True, True], [True, False]])  # variance of 1, 5, 3: 8/3
    assert np.allclose(rnd.rewards(errors, valid), 0.5 * errors / np.sqrt(8 / 3))
    # The moving mean of variances: weights 0.1 · 0.9 for 8/3, and 0.1 for 0.
    again = rnd.rewards(np.ones((2, 2)), np.ones((2, 2), bool))
    assert np.allclose(again, 0.5 / np.sqrt(8 / 3 * 0.09 / 0.19))


def test_episodes_of_one_step_have_no_intrinsic_rewards() -> None:
    with PPO(env=probes.OneStep, config=SMALL) as trainer:
        assert trainer.train()["learner"]["intrinsic_reward_mean"] == 0.0


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_they_change_learning_but_not_the_reported_returns(algorithm: Any) -> None:
    def first_iterations(config: dict[str, Any]) -> tuple[list[float], dict[str, Any], np.ndarray]:
        with algorithm(env=probes.Walk, config=config) as trainer:
            first, second = trainer.train(), trainer.train()
            return first["episode_returns"], second["learner"], trainer.get_policy().flat.detach().numpy().copy()

    returns, metrics, weights = first_iterations(SMALL)
    plain = {name: value for name, value in SMALL.items() if name != "intrinsic_reward"}
    other_returns, other_metrics, other_weights = first_iterations(plain)
    assert returns == other_returns  # of the first iteration, which acts with the same weights
    assert metrics["intrinsic_reward_mean"] > 0
    assert "intrinsic_reward_mean" not in other_metrics
    assert not np.array_equal(weights, other_weights)


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_placement_and_resume(algorithm: Any, tmp_path: Path) -> None:
    def trained(iterations: int, **config: Any) -> tuple[np.ndarray, Path]:
        with algorithm(env=probes.Walk, config={**SMALL, **config}) as trainer:
            for _ in range(iterations):
                trainer.train()
            saved = trainer.save(tmp_path / f"{iterations}-{len(list(tmp_path.iterdir()))}")
            return _everything(trainer), Path(saved)

    whole, _ = trained(4)
    assert np.array_equal(whole, trained(4, num_workers=2)[0])
    _, half = trained(2)
    with algorithm(env=probes.Walk, config=SMALL) as trainer:
        trainer.restore(half)
        for _ in range(2):
            trainer.train()
        assert np.array_equal(whole, _everything(trainer))


def _everything(trainer: Any) -> np.ndarray:
    learner = trainer.learner
    return torch.cat(
        [trainer.get_policy().flat.detach(), *(flat.detach() for flat in learner.networks.values())]
    ).numpy()


def test_a_recurrent_network_learns_with_them() -> None:
    with PPO(env=probes.Walk, config={**SMALL, "model": {"use_lstm": True, "lstm_cell_size": 8}}) as trainer:
        assert trainer.train()["learner"]["intrinsic_reward_mean"] > 0


def test_dqn_has_no_such_setting() -> None:
    with pytest.raises(ConfigError, match="intrinsic_reward"):
        DQN(env=probes.Walk, config=SMALL)
