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
    rnd = Distillation(leaves(probes.Walk.observation_space), IntrinsicConfig(gamma=0.5), seed=0)
    errors = np.array([[1.0, 5.0], [4.0, 100.0]])
    valid = np.array([[True, True], [True, False]])  # discounted sums: 1 + 4/2, 4 and 5, of variance 2/3
    assert np.allclose(rnd.rewards(errors, valid), errors / np.sqrt(2 / 3))
    # The sums of all iterations count alike: 3, 4, 5 and 1.5, 1.5, 1, 1.
    again = rnd.rewards(np.ones((2, 2)), np.ones((2, 2), bool))
    assert np.allclose(again, 1 / np.std([3, 4, 5, 1.5, 1.5, 1, 1]))


def test_estimates_by_hand() -> None:
    rnd = Distillation(leaves(probes.Walk.observation_space), IntrinsicConfig(gamma=0.5), seed=0)
    observations, last = torch.randn(6, 2), torch.randn(2, 2)  # 3 steps of 2 lanes; the second lane waits at the end
    valid = np.array([[True, True], [True, True], [True, False]])
    with torch.no_grad():
        error, value, last_error, last_value = (
            of((x,)).numpy().reshape(-1, 2) for x in (observations, last) for of in (rnd.errors, rnd.values)
        )
    found = rnd.estimates((observations,), (last,), valid, lambda_=0.0)
    rewarded = np.array([[error[1, 0], error[1, 1]], [error[2, 0], last_error[0, 1]], [last_error[0, 0], 0]])
    rewards = rewarded / float(rnd.moments.variance) ** 0.5
    following = np.array([[value[1, 0], value[1, 1]], [value[2, 0], last_value[0, 1]], [last_value[0, 0], 0]])
    targets = rewards + 0.5 * following
    assert np.allclose(found.rewards[valid], rewards[valid], rtol=1e-4)
    assert np.allclose(found.targets[valid], targets[valid], rtol=1e-4)
    assert np.allclose(found.advantages[valid], (targets - value)[valid], rtol=1e-4, atol=1e-6)


class Draws(probes.OneStep):
    """Episodes of one step, each with another observation."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(float(self.np_random.uniform(-1, 1))), {}


def test_the_end_of_an_episode_does_not_end_intrinsic_returns() -> None:
    """Otherwise an agent that finds new observations would avoid the goal."""
    with PPO(env=Draws, config={**SMALL, "gamma": 0.9}) as trainer:
        mean = trainer.train()["learner"]["intrinsic_reward_mean"]
        assert mean > 0
        assert trainer.learner.intrinsic.moments.variance > 0
        sums = float(trainer.learner.intrinsic.moments.mean) / float(trainer.learner.intrinsic.moments.variance) ** 0.5
        assert sums > 5 * mean  # 32 steps per lane, of which each is the last one of its episode


def test_a_checkpoint_without_their_scale_is_refused() -> None:
    with PPO(env=probes.Walk, config=SMALL) as trainer:
        trainer.train()
        state, tensors = trainer.learner.state()
        del state["intrinsic_returns"]
        with pytest.raises(ValueError, match="intrinsic_returns is missing"):
            trainer.learner.check(state, tensors, {})


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


@pytest.mark.slow
def test_ppo_finds_the_goal_of_a_maze_with_them() -> None:
    """Without them it does not, in 250,000 steps: benchmarks/exploration.py."""
    config = {"num_workers": 0, "num_envs": 16, "train_batch_size": 2048, "lr": 1e-3, "seed": 2, "intrinsic_reward": {}}
    with PPO(env="outplay.envs.examples:Maze", config=config, env_config={"max_steps": 70}) as trainer:
        result = trainer.learn(250_000, stop={"episode_return_mean": 0.9}).last_result
        assert result is not None
        assert result["episode_return_mean"] >= 0.9
