"""Every algorithm learns what tiny environments demand, one thing each; and PPO real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outplay import A2C, PG, PPO, Algorithm
from tests import probes

ALGORITHMS = [PG, A2C, PPO]
# Short: a probe is learned within a few thousand steps.
QUICK: dict[type[Algorithm], dict[str, Any]] = {
    PG: {"train_batch_size": 128, "lr": 1e-2},
    A2C: {"train_batch_size": 128, "lr": 5e-3, "entropy_coeff": 0.0},
    PPO: {"train_batch_size": 128, "lr": 5e-3, "sgd_minibatch_size": 64, "num_sgd_iter": 4},
}


def learned(
    algorithm: type[Algorithm], env: Any, iterations: int = 28, **config: Any
) -> tuple[Algorithm, dict[str, Any]]:
    settings = {**QUICK[algorithm], "num_envs": 8, "num_workers": 0, **config}
    with algorithm(env=env, config=settings) as trainer:
        for _ in range(iterations):
            result = trainer.train()
        return trainer, result


def preference(trainer: Algorithm, observation: float) -> float:
    """The probability of action 1."""
    row = (np.array([[observation]], np.float32),)
    _, _, extras = trainer.get_policy().act(row, {}, None, True, np.random.default_rng(0))
    logits = extras["dist"][0]
    return float(np.exp(logits[1]) / np.exp(logits).sum())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reward_for_one_step(algorithm: type[Algorithm]) -> None:
    trainer, _ = learned(algorithm, probes.OneStep)
    assert preference(trainer, 0.0) > 0.9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_credit_over_two_steps(algorithm: type[Algorithm]) -> None:
    trainer, _ = learned(algorithm, probes.TwoSteps)
    assert preference(trainer, -1.0) > 0.9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_action_that_depends_on_the_observation(algorithm: type[Algorithm]) -> None:
    trainer, _ = learned(algorithm, probes.Match)
    assert preference(trainer, 1.0) > 0.9
    assert preference(trainer, -1.0) < 0.1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("gamma", "waits"), [(0.5, False), (0.99, True)])
def test_discounting(algorithm: type[Algorithm], gamma: float, waits: bool) -> None:
    trainer, _ = learned(algorithm, probes.Patience, gamma=gamma)
    assert (preference(trainer, 0.0) > 0.8) if waits else (preference(trainer, 0.0) < 0.2)


@pytest.mark.parametrize("algorithm", [A2C, PPO])  # PG has no value
@pytest.mark.parametrize(("env", "value"), [(probes.Endless, 2.0), (probes.Over, 1.53125)])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", pytest.param("complete_episodes", marks=pytest.mark.slow)])
def test_the_value_goes_on_where_an_episode_was_cut_off(
    algorithm: type[Algorithm], env: Any, value: float, batch_mode: str
) -> None:
    """Both look the same and pay the same; only one is really over. Merging the two would give one value for both."""
    trainer, _ = learned(algorithm, env, 80, gamma=0.5, batch_mode=batch_mode, lr=3e-3)
    assert trainer.learner.values_of((np.zeros((1, 1), np.float32),))[0] == pytest.approx(value, abs=0.15)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nested_observations_and_several_choices(algorithm: type[Algorithm]) -> None:
    _, result = learned(algorithm, probes.Nested, metrics_num_episodes=50)
    assert result["episode_return_mean"] > 0.9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_continuous_action(algorithm: type[Algorithm]) -> None:
    _, result = learned(algorithm, probes.Aim, 80, metrics_num_episodes=200)
    assert result["episode_return_mean"] > -1.0  # acting at random gives about −4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_normalised_observations_do_not_hurt(algorithm: type[Algorithm]) -> None:
    trainer, _ = learned(algorithm, probes.Match, normalize_observations=True)
    assert preference(trainer, 1.0) > 0.9


@pytest.mark.slow
def test_ppo_solves_cartpole_untouched() -> None:
    with PPO(env="CartPole-v1", config={"metrics_num_episodes": 20}) as trainer:
        best = max(trainer.train()["episode_return_mean"] for _ in range(40))
    assert best >= 475


@pytest.mark.slow
def test_ppo_solves_a_continuous_environment_untouched() -> None:
    """Pendulum: acting at random gives about −1200, −300 is upright most of the time."""
    best = -1200.0
    with PPO(env="Pendulum-v1", config={"num_workers": 0, "metrics_num_episodes": 20}) as trainer:
        for _ in range(75):
            best = max(best, trainer.train()["episode_return_mean"])
            if best > -300:
                break
    assert best > -300
