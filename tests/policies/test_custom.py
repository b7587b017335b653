"""Custom models and action distributions: trained, placed and resumed like built-in ones, and clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay import A2C, DQN, PPO, ConfigError
from outplay.envs.examples import RepeatAfterMe
from outplay.policies.custom_distribution import CustomDistribution
from outplay.policies.distributions import Categorical
from tests import probes

Array = np.ndarray
PREVIOUS = {"lstm_use_prev_action": True}
SMALL: dict[str, Any] = {"num_envs": 8, "train_batch_size": 160, "seed": 7, "num_workers": 0}


class Net(nn.Module):
    def __init__(self, observation_space: Any, size: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation_space.shape[0], size), nn.Tanh())

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.body(observation)
        return features


class Remembering(nn.Module):
    """A recurrent model of its own: it also counts the steps, from 5."""

    def __init__(self, observation_space: Any, size: int = 16) -> None:
        super().__init__()
        self.size, self.n = size, int(observation_space.n)
        self.cell = nn.GRUCell(self.n, size)

    def initial_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(self.size), "count": torch.tensor(5.0)}

    def forward(self, observation: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        h = self.cell(nn.functional.one_hot(observation, self.n).float(), state["h"])
        return torch.cat([h, state["count"][:, None] / 100], -1), {"h": h, "count": state["count"] + 1}


class Nested(gymnasium.Env[Any, Any]):
    """An observation of every kind."""

    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (6, 6, 3), np.uint8),
                "more": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.1), False, {}


class ForNested(nn.Module):
    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        assert isinstance(observation_space, spaces.Dict)
        self.linear = nn.Linear(6 * 6 * 3 + 3 + 2, 8)

    def forward(self, observation: Any) -> Tensor:
        image, (choice, vector) = observation["image"], observation["more"]
        assert image.shape[1:] == (6, 6, 3)  # in the environment's layout
        assert choice.dtype == torch.int64
        parts = [image.flatten(1) / 255, nn.functional.one_hot(choice, 3).float(), vector]
        features: Tensor = self.linear(torch.cat(parts, -1))
        return features


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", {"custom_model": Net, "custom_model_config": {"size": 5}}),
    "a2c, shared": (A2C, "CartPole-v1", {"custom_model": Net, "vf_share_layers": True, "fcnet_hiddens": [4]}),
    "dqn": (DQN, "CartPole-v1", {"custom_model": Net}),
    "recurrent": (PPO, RepeatAfterMe, {"custom_model": Remembering, "max_seq_len": 7}),
    "lstm after it": (PPO, "CartPole-v1", {"custom_model": Net, "use_lstm": True, "lstm_cell_size": 6}),
    "nested": (PPO, Nested, {"custom_model": ForNested}),
}


def weights(case: str, **config: Any) -> dict[str, Array]:
    algorithm, env, model = CASES[case]
    with algorithm(env=env, config={**SMALL, "model": model, **config}) as trainer:
        for _ in range(2):
            trainer.train()
        found: dict[str, Array] = trainer.get_policy().get_weights()
        return found


@pytest.mark.parametrize("case", CASES)
def test_the_result_depends_on_the_seed_alone(case: str) -> None:
    torch.manual_seed(1)
    first = weights(case)
    torch.manual_seed(2)
    again, other = weights(case), weights(case, seed=8)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("case", ["recurrent", "nested", "dqn"])
def test_placement_and_resume(case: str, tmp_path: Path) -> None:
    alone = weights(case)
    spread = weights(case, num_workers=2)
    assert all(np.array_equal(alone[name], spread[name]) for name in alone)
    algorithm, env, model = CASES[case]
    with algorithm(env=env, config={**SMALL, "model": model}) as trainer:
        trainer.train()
        saved = trainer.save(tmp_path / "checkpoint")
    with algorithm(env=env, config={**SMALL, "model": model}) as trainer:
        trainer.restore(saved)
        trainer.train()
        resumed = trainer.get_policy().get_weights()
    assert all(np.array_equal(alone[name], resumed[name]) for name in alone)


def test_a_recurrent_model_starts_with_its_initial_state() -> None:
    with PPO(env=RepeatAfterMe, config={**SMALL, "model": {"custom_model": Remembering}}) as trainer:
        state = trainer.get_policy().initial_state(3)
        assert state["count"].tolist() == [5.0] * 3
        _, state, _ = trainer.compute_single_action(1, trainer.get_policy().initial_state(1))
        assert state["count"].tolist() == [6.0]


class Wide(Net):
    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation)[0]


class Raising(Net):
    def forward(self, observation: Tensor) -> Tensor:
        raise ValueError("no idea")


class Normed(Net):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(8)


class OtherState(Remembering):
    def forward(self, observation: Tensor, state: dict[str, Tensor]) -> Any:
        features, after = super().forward(observation, state)
        return features, {"h": after["h"]}


class NoModule:
    def __init__(self, observation_space: Any) -> None: ...


@pytest.mark.parametrize(
    ("env", "model", "message"),
    [
        ("CartPole-v1", {"custom_model": Wide}, r"Wide must return features of shape .* returned shape \(8,\)"),
        (
            "CartPole-v1",
            {"custom_model": Raising},
            r"ValueError for a batch of 1 observation: no idea \(test_cu",
        ),
        (
            "CartPole-v1",
            {"custom_model": Normed},
            "has the layer 'norm', a BatchNorm1d, whose result depends",
        ),
        ("CartPole-v1", {"custom_model": NoModule}, "a torch.nn.Module is needed, not NoModule"),
        (
            "CartPole-v1",
            {"custom_model": Net, "custom_model_config": {"sise": 3}},
            "TypeError when called .* sise: ",
        ),
        (RepeatAfterMe, {"custom_model": OtherState}, "must return a state of the same shapes"),
        (RepeatAfterMe, {"custom_model": Remembering, "use_lstm": True}, "a recurrent custom model replaces"),
        (RepeatAfterMe, {"custom_model": Remembering, "vf_share_layers": False}, "share their layers"),
        (RepeatAfterMe, {"custom_model": Remembering, **PREVIOUS}, "a recurrent custom_model does not get them"),
        (
            RepeatAfterMe,
            {"custom_model": Remembering, "use_gru": True, **PREVIOUS},
            "use_gru: .* gets no previous",
        ),
        ("CartPole-v1", {"custom_model": 3}, "custom_model must be an import path, a class or null, not 3"),
    ],
)
def test_wrong_models_are_refused_in_one_sentence(env: Any, model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        PPO(env=env, config={**SMALL, "model": model})
    assert "\n" not in str(raised.value)


class Sharp(Categorical):
    """Logits times 3."""

    def __init__(self, space: Any) -> None:
        super().__init__(int(space.n))

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        return super().sample(3 * params, rng)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return super().log_prob(3 * params, actions)


def test_a_custom_distribution_is_used() -> None:
    with PPO(env=probes.Walk, config={**SMALL, "model": {"custom_action_dist": Sharp}}) as trainer:
        distribution = trainer.get_policy().distribution
        assert isinstance(distribution, CustomDistribution)
        assert isinstance(distribution.custom, Sharp)
        trainer.train()
        assert trainer.learner.distribution is distribution


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere:Net", "no module 'nowhere' for model.custom_model 'nowhere:Net'"),
        ("tests.policies.test_custom:Ned", "has no 'Ned'. Did you mean '"),
        ("math:pi", "'math:pi' is a float, not a class"),
    ],
)
def test_a_wrong_path_is_one_sentence(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(env="CartPole-v1", config={**SMALL, "model": {"custom_model": path}})
