"""Types of exploration: what they choose, their schedules, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from outplay import A2C, DQN, PG, PPO, PQN, ConfigError
from tests import probes
from tests.cli.common import Outcome
from tests.cli.conftest import cli  # noqa: F401 - a fixture

SMALL: dict[str, Any] = {"num_workers": 0, "num_envs": 4, "train_batch_size": 64, "learning_starts": 64, "seed": 5}


def frequencies(exploration: dict[str, Any], mask: Any = None) -> np.ndarray:
    """How often each action is chosen where the Q-values are 0 and 1."""
    with DQN(env=probes.Walk, config={**SMALL, "exploration_config": exploration}) as trainer:
        policy = trainer.get_policy()
        params = np.tile(np.array([0.0, 1.0], np.float32), (20_000, 1))
        chosen = policy._choose(params, mask, True, np.random.default_rng(0))
        return np.bincount(chosen, minlength=2) / len(chosen)


def test_softq_chooses_by_the_softmax_of_q_values() -> None:
    expected = np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum()
    assert np.allclose(frequencies({"type": "SoftQ"}), expected, atol=0.01)
    cold = np.exp([0.0, 4.0]) / np.exp([0.0, 4.0]).sum()
    assert np.allclose(frequencies({"type": "SoftQ", "temperature": 0.25}), cold, atol=0.01)


def test_random_chooses_uniformly() -> None:
    assert np.allclose(frequencies({"type": "Random"}), 0.5, atol=0.01)


def test_the_temperature_follows_its_schedule() -> None:
    exploration = {"type": "SoftQ", "temperature_schedule": [[0, 2.0], [128, 1.0]]}
    with DQN(env=probes.Walk, config={**SMALL, "exploration_config": exploration}) as trainer:
        assert trainer.get_policy().exploration == {"temperature": 2.0}
        assert trainer.train()["learner"]["temperature"] == 1.5
        assert trainer.train()["learner"]["temperature"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "exploration",
    [{"type": "SoftQ", "temperature": 0.1}, {"type": "Random"}, {"type": "ParameterNoise", "epsilon_timesteps": 500}],
)
def test_dqn_learns_with_it(exploration: dict[str, Any]) -> None:
    """The greedy policy walks right and stays there, whatever explored: a reward in most of the 20 steps."""
    config = {**SMALL, "gamma": 0.9, "lr": 3e-3, "training_intensity": 1.0, "exploration_config": exploration}
    with DQN(env=probes.Walk, config={**config, "env_config": {"length": 20}}) as trainer:
        for _ in range(30):
            trainer.train()
        assert trainer.evaluate(episodes=5)["episode_return_mean"] > 10


@pytest.mark.parametrize(
    ("algorithm", "exploration", "message"),
    [
        (PPO, "EpsilonGreedy", "EpsilonGreedy is for algorithms with Q-values: DQN and PQN; {} supports Stoch"),
        (A2C, "Random", "Random is for algorithms that learn from the actions of any policy"),
        (
            PG,
            "GaussianNoise",
            "GaussianNoise is for algorithms with deterministic continuous actions: TD3 and DDPG; PG supports Stoch",
        ),
        (DQN, "StochasticSampling", "; DQN supports EpsilonGreedy, SoftQ, ParameterNoise and Random$"),
        (
            DQN,
            "OrnsteinUhlenbeckNoise",
            "Noise is for algorithms with deterministic continuous actions: TD3 and DDPG; DQN supports",
        ),
        (PPO, "ParameterNoise", "ParameterNoise is for DQN; {} supports StochasticSampling"),
        (A2C, "ParameterNoise", "ParameterNoise is for DQN; {} supports StochasticSampling"),
        (PG, "ParameterNoise", "ParameterNoise is for DQN; {} supports StochasticSampling"),
        (PQN, "ParameterNoise", "ParameterNoise is for DQN; {} supports EpsilonGreedy, SoftQ and Random$"),
        (DQN, "EpsilonGredy", "EpsilonGreedy"),
    ],
)
def test_a_type_that_makes_no_sense_is_refused_by_name(algorithm: Any, exploration: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.format(algorithm.__name__)):
        algorithm(env=probes.Walk, config={"num_workers": 0, "exploration_config": {"type": exploration}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"exploration_config": {"type": "SoftQ", "temperature": 0}}, "temperature"),
        ({"exploration_config": {"temperature_schedule": [[0, 1.0], [9, 0.0]]}}, "greater than 0"),
        ({"exploration_config": {"type": "SoftQ"}, "noisy": True}, "noisy networks explore by themselves"),
        ({"exploration_config": {"type": "ParameterNoise"}, "noisy": True}, "leave exploration_config.type Parameter"),
        ({"exploration_config": {"type": "ParameterNoise", "initial_stddev": 0}}, "initial_stddev"),
        ({"exploration_config": {"type": "ParameterNoise", "initial_stddev": float("inf")}}, "initial_stddev"),
        (
            {"exploration_config": {"initial_stddev": 0.1}},
            "exploration_config.initial_stddev is for type ParameterNoise, and the type is EpsilonGreedy; leave",
        ),
        (
            {"exploration_config": {"type": "ParameterNoise", "temperature": 0.5}},
            "exploration_config.temperature is for type SoftQ, and the type is ParameterNoise; leave temperature out",
        ),
        (
            {"exploration_config": {"type": "SoftQ", "final_epsilon": 0.1}},
            "exploration_config.final_epsilon is for type EpsilonGreedy or ParameterNoise, and the type is SoftQ; "
            r"leave final_epsilon out \(exploration_config=\{type: SoftQ\} replaces the whole group\), or set the type",
        ),
        ({"exploration_config": {"type": "Random", "initial_epsilon": 0.5}}, "initial_epsilon is for type EpsilonG"),
        ({"exploration_config": {"type": "Random", "epsilon_spread": 7}}, "epsilon_spread is for type EpsilonG"),
        ({"exploration_config": {"type": "ParameterNoise", "random_timesteps": 9}}, "epsilon_schedule"),
        ({"exploration_config": {"type": "ParameterNoise", "sub_exploration": {}}}, "epsilon_schedule"),
    ],
)
def test_wrong_settings_of_exploration(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQN(env=probes.Walk, config={"num_workers": 0, **config})


def test_a_recipe_with_epsilon_can_explore_in_another_way(cli: Callable[..., Outcome]) -> None:  # noqa: F811
    """Its ε settings are refused with the remedy; the remedy works."""
    code, _, err = cli("train", "cartpole-dqn", "--dry-run", "--config", "exploration_config.type=SoftQ")
    assert code == 2
    assert "leave final_epsilon out (exploration_config={type: SoftQ} replaces the whole group)" in err
    code, *_ = cli("train", "cartpole-dqn", "--dry-run", "--config", "exploration_config={type: SoftQ}")
    assert code == 0


@pytest.mark.parametrize("kind", ["SoftQ", "Random"])
def test_the_epsilon_of_ape_x_is_for_epsilon_greedy(kind: str) -> None:
    config = DQN.Config.model_validate({"async": True, "num_workers": 1, "exploration_config": {"type": kind}})
    assert config.exploration_config.epsilon_spread == 0
    assert DQN.Config.model_validate({"async": True}).exploration_config.epsilon_spread == 7
