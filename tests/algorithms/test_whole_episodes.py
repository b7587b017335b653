"""Without a critic, returns are those of whole episodes: nothing is cut where a Fragment ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outplay import PG, PPO, Algorithm, ConfigError
from outplay.algorithms import iteration
from outplay.fragments import join
from outplay.learning import returns
from tests import probes


class Twelve(probes.Endless):
    """Reward 1 for twelve steps: with γ = 1, returns are 12, 11, … 1."""

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(0.0), 1.0, self.steps == 12, False, {}


SMALL = {"num_workers": 0, "num_envs": 2, "num_env_groups": 1, "train_batch_size": 16, "gamma": 1.0}  # Fragments of 8


@pytest.mark.parametrize(("algorithm", "config"), [(PPO, {"use_critic": False}), (PG, {})])
def test_returns_go_up_to_the_end_of_the_episode(algorithm: type[Algorithm], config: dict[str, Any]) -> None:
    with algorithm(env=Twelve, config={**SMALL, **config}) as trainer:
        for _ in range(2):
            batch = join(iteration.collect(trainer))
            learner: Any = trainer.learner
            if algorithm is PPO:
                found = learner.monte_carlo(batch).advantages
            else:
                found = returns.discounted_returns(learner.rewards(batch), learner.returns_end(batch), 1.0)
            assert found.tolist() == [[value, value] for value in range(12, 0, -1)]
        assert trainer.train()["episode_return_mean"] == 12


@pytest.mark.parametrize("given", ["false", 0, False])
def test_ppo_without_a_critic_collects_whole_episodes(given: Any) -> None:
    with PPO(env=Twelve, config={**SMALL, "use_critic": given}) as trainer:
        assert trainer.get_config()["batch_mode"] == "complete_episodes"
    with PPO(env=Twelve, config=SMALL) as trainer:
        assert trainer.get_config()["batch_mode"] == "truncate_episodes"


@pytest.mark.parametrize(
    ("algorithm", "config", "sentence"),
    [
        (
            PPO,
            {"use_critic": False},
            "PPO config: batch_mode: use_critic: false needs complete episodes; leave batch_mode out",
        ),
        (PG, {}, "PG config: batch_mode: PG learns from complete episodes; leave it complete_episodes"),
    ],
)
def test_cut_episodes_are_refused(algorithm: type[Algorithm], config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        algorithm(env=Twelve, config={**SMALL, **config, "batch_mode": "truncate_episodes"})
    assert "\n" not in str(caught.value)


def test_with_a_critic_the_value_stands_for_the_rest_of_a_cut_episode() -> None:
    """The other way is as it was: 8 rewards, and after them the value, which is 0 here."""
    with PPO(env=Twelve, config={**SMALL, "lambda": 1.0}) as trainer:
        trainer.policy.set_weights({k: np.zeros_like(v) for k, v in trainer.policy.get_weights().items()})
        batch = join(iteration.collect(trainer))
        assert trainer.learner.estimates(batch, 1.0).targets[:, 0].tolist() == list(range(8, 0, -1))
