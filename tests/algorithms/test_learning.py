"""What on-policy algorithms learn beyond the suite that all pass; and PPO on real environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outplay import A2C, APPO, IMPALA, PPO, Algorithm
from outplay.algorithms import find_algorithm
from outplay.learning.onpolicy import OnPolicyLearner
from outplay.policies import QPolicy
from outplay.registry import algorithms
from tests import probes
from tests.algorithms.test_conformance import SETTINGS

ALGORITHMS = [
    algorithm
    for algorithm in map(find_algorithm, algorithms.shipped)
    if issubclass(algorithm.Learner, OnPolicyLearner) and not issubclass(algorithm.policy_class, QPolicy)
]


def learned(
    algorithm: type[Algorithm], env: Any, iterations: int = 28, **config: Any
) -> tuple[Algorithm, dict[str, Any]]:
    settings = {**SETTINGS.get(algorithm.__name__, {}), "num_envs": 8, "num_workers": 0, **config}
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


@pytest.mark.parametrize("algorithm", [A2C, PPO, IMPALA, APPO])  # PG has no value
@pytest.mark.parametrize(("env", "value"), [(probes.Endless, 2.0), (probes.Over, 1.53125)])
def test_values_bootstrap_in_whole_episodes_too(algorithm: type[Algorithm], env: Any, value: float) -> None:
    """Both look the same and pay the same; only one terminates. Merging the flags would give one value for both."""
    trainer, _ = learned(algorithm, env, 80, gamma=0.5, batch_mode="complete_episodes", lr=3e-3)
    assert trainer.learner.values_of((np.zeros((1, 1), np.float32),))[0] == pytest.approx(value, abs=0.15)


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
