"""Parametric actions: the observation has an embedding of each action, and logits are dot products with it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay import DQN, PG, PPO, ConfigError
from outplay.groups import ModelConfig
from outplay.policies import ActorCritic, QNetwork, QOptions
from outplay.spaces import leaves

MOST, SIZE = 6, 2
EMBEDDED = {"action_embeddings": "avail_actions"}


class Offers(gymnasium.Env[Any, Any]):
    """Some offers, each with two numbers. The best is the one nearest to the direction that is wanted."""

    action_space: spaces.Space[Any] = spaces.Discrete(MOST)
    observation_space: spaces.Space[Any] = spaces.Dict(
        {
            "wanted": spaces.Box(-1, 1, (SIZE,), np.float32),
            "avail_actions": spaces.Box(-1, 1, (MOST, SIZE), np.float32),
            "action_mask": spaces.Box(0, 1, (MOST,), np.int8),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        number = int(self.np_random.integers(2, MOST + 1))
        offers = np.zeros((MOST, SIZE), np.float32)
        angles = self.np_random.uniform(0, 2 * np.pi, number)
        offers[:number] = np.stack([np.cos(angles), np.sin(angles)], -1)
        self.wanted = np.eye(SIZE, dtype=np.float32)[self.np_random.integers(SIZE)]
        self.offers, self.number = offers, number
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert action < self.number
        return self._observe(), float(self.offers[action] @ self.wanted), True, False, {}

    def _observe(self) -> Any:
        mask = (np.arange(MOST) < self.number).astype(np.int8)
        return {"wanted": self.wanted, "avail_actions": self.offers, "action_mask": mask}


CONFIGS: dict[type[Any], dict[str, Any]] = {
    PPO: {"train_batch_size": 256, "lr": 5e-3, "sgd_minibatch_size": 64, "num_sgd_iter": 4},
    PG: {"train_batch_size": 256, "lr": 1e-2},
    DQN: {
        "train_batch_size": 64, "lr": 3e-3, "learning_starts": 100, "dueling": False,
        "exploration_config": {"epsilon_timesteps": 1000}, "target_network_update_freq": 20,
    },
}  # fmt: skip


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_it_learns_which_offer_is_best(algorithm: type[Any]) -> None:
    config = {**CONFIGS[algorithm], "num_workers": 0, "num_envs": 8, "evaluation_duration": 100}
    with algorithm(env=Offers, config={**config, "model": {**EMBEDDED, "fcnet_hiddens": [16]}}) as trainer:
        for _ in range(25):
            trainer.train()
        assert trainer.evaluate()["episode_return_mean"] > 0.6  # a random offer: 0; the best of 2 to 6: about 0.7
        observation, _ = Offers().reset(seed=3)
        assert trainer.compute_single_action(observation) < observation["action_mask"].sum()


@pytest.mark.parametrize("core", [{}, {"use_lstm": True, "lstm_cell_size": 8}, {"vf_share_layers": True}])
def test_acting_and_learning_agree(core: dict[str, Any]) -> None:
    """With a learning rate of 0, old and new policy are the same."""
    config = {**CONFIGS[PPO], "num_workers": 0, "num_envs": 4, "lr": 0.0, "model": {**EMBEDDED, **core}}
    with PPO(env=Offers, config=config) as trainer:
        result = trainer.train()["learner"]
    assert abs(result["kl"]) < 1e-6
    assert result["entropy"] > 0


PARTS = spaces.Dict({name: part for name, part in Offers.observation_space.spaces.items() if name != "action_mask"})  # type: ignore[attr-defined]
OBSERVATIONS = (torch.randn(3, MOST, SIZE), torch.randn(3, SIZE))


def test_logits_are_dot_products() -> None:
    model = ModelConfig(**EMBEDDED)
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(leaves(PARTS), MOST, 0, model, True, generator)
    hidden = network.hidden(OBSERVATIONS[1])  # the embeddings are not among the inputs
    query = network.policy_head(hidden)
    expected = torch.stack([OBSERVATIONS[0][i] @ query[i] for i in range(3)])
    assert torch.allclose(network.policy(OBSERVATIONS), expected)
    assert torch.allclose(network.both(OBSERVATIONS)[0], expected)
    options = QOptions(dueling=False, distributional="qr", num_atoms=5)
    quantiles = QNetwork(leaves(PARTS), MOST, model, options, generator)
    outputs = quantiles.advantage_head(quantiles.hidden(OBSERVATIONS[1])).view(3, SIZE, 5)
    assert torch.allclose(quantiles(OBSERVATIONS), OBSERVATIONS[0] @ outputs, atol=1e-6)
    assert network.head() is None
    assert quantiles.head() is None


FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"model": {"action_embeddings": "offers"}}, r"there is no observation\['offers'\]; valid: ava"),
    "shape": ({"model": {"action_embeddings": "wanted"}}, r"observation\['wanted'\] must be a Box of shape \(n, d\)"),
    "dueling": ({"model": EMBEDDED}, "model.action_embeddings needs dueling: false"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_what_does_not_fit_is_one_sentence(flaw: str) -> None:
    config, sentence = FLAWS[flaw]
    with pytest.raises(ConfigError, match=sentence):
        DQN(env=Offers, config={"num_workers": 0, **config})


def test_rows_are_actions() -> None:
    with pytest.raises(ConfigError, match=r"observation\['avail_actions'\] has 6 rows, but there are 4 actions"):
        ActorCritic(leaves(PARTS), 4, 0, ModelConfig(**EMBEDDED), True, torch.Generator())
    with pytest.raises(ConfigError, match="needs a Discrete action space"):
        ActorCritic(leaves(PARTS), 2 * MOST, MOST, ModelConfig(**EMBEDDED), True, torch.Generator())
