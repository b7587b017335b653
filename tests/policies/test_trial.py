"""Custom models are tried before a run: random layers, batches of several sizes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay import A2C, CallbackError, ConfigError
from outplay.groups import ModelConfig
from outplay.policies import Policy, PolicySpec
from outplay.sequences import Reading as SequenceReading
from outplay.spaces import empty, readable, write

SPACES = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def made(kind: type, **config: Any) -> Policy:
    return PolicySpec(*SPACES, model=ModelConfig(custom_model=kind, custom_model_config=config)).make()


class With(nn.Module):
    """A network with one layer more."""

    layers: dict[str, Any] = {
        "Dropout": lambda p: nn.Dropout(p),
        "Dropout1d": lambda p: nn.Dropout1d(p),
        "AlphaDropout": lambda p: nn.AlphaDropout(p),
        "FeatureAlphaDropout": lambda p: nn.FeatureAlphaDropout(p),
        "MultiheadAttention": lambda p: nn.MultiheadAttention(4, 2, dropout=p),
        "LSTM": lambda p: nn.LSTM(4, 4, 2, dropout=p),
        "GRU": lambda p: nn.GRU(4, 4, 2, dropout=p),
        "TransformerEncoderLayer": lambda p: nn.TransformerEncoderLayer(4, 2, 8, dropout=p),
        "RReLU": lambda p: nn.RReLU(0.1, 0.1 + p),
    }

    def __init__(self, observation_space: Any, layer: str, p: float, frozen: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.more = self.layers[layer](p)
        if frozen:
            self.more.eval()

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.body(observation)
        return features


@pytest.mark.parametrize("layer", With.layers)
def test_random_layers_are_refused_by_name(layer: str) -> None:
    with pytest.raises(ConfigError, match=r"custom_model With has the layer 'more.*', a \w+ that draws random numbers"):
        made(With, layer=layer, p=0.5)
    made(With, layer=layer, p=0.0)
    made(With, layer=layer, p=0.5, frozen=True)


class Base(nn.Module):
    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.body(observation)
        return features


class Functional(Base):
    def forward(self, observation: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(observation))


class Varying(Base):
    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation)[:, : len(observation)]


class Limited(Base):
    most = 10

    def forward(self, observation: Tensor) -> Tensor:
        if len(observation) > self.most:
            raise ValueError("too many\nrows")
        return super().forward(observation)


class InPlace(Base):
    def forward(self, observation: Tensor) -> Tensor:
        features = super().forward(observation)
        squared = features * features
        features += 1
        return squared


class Lazy(Base):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.body = nn.Sequential(nn.LazyLinear(3))


class Normed(Base):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)  # it has no buffers


class Counting(Base):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(observation)


class State64(Base):
    def initial_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(3)}

    def forward(self, observation: Tensor, state: dict[str, Tensor]) -> Any:  # type: ignore[override]
        return super().forward(observation), {"h": state["h"].double()}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Functional, "Functional must return the same features for the same observations, and two calls differ"),
        (
            Varying,
            "Varying must return the same number of features for every batch, and returned 1 for a batch of 1, 2 ",
        ),
        (Limited, r"Limited raised ValueError for a batch of 64 observations: too many \(test_trial.py, line \d+\)$"),
        (InPlace, "InPlace raised RuntimeError for a batch of 2 observations: .* modified by an inplace operation"),
        (Lazy, "Lazy has the lazy parameter 'body.0.weight'; give its layer the number of inputs"),
        (Normed, "Normed has the layer 'norm', a BatchNorm1d, whose result depends on the other rows"),
        (State64, r"a state of the same shapes and types .*: for a batch of 1 h \(1, 3\) float32, not h .* float64"),
    ],
)
def test_wrong_models_are_refused(kind: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        made(kind)
    assert "\n" not in str(raised.value)


def test_a_trial_does_not_change_the_model() -> None:
    assert made(Counting).get_weights()["encoder.model.calls"] == 0


def test_features_may_be_float64() -> None:
    class Double(Base):
        def forward(self, observation: Tensor) -> Tensor:
            return super().forward(observation).double()

    model = {"custom_model": Double, "fcnet_hiddens": [4]}
    with A2C("CartPole-v1", {"model": model, "num_workers": 0, "num_envs": 2, "train_batch_size": 20}) as trainer:
        trainer.train()


class Reading(nn.Module):
    """Checks the layout of sequences that docs/models.md describes."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        assert observation_space["boxes"].shape == (5, 3)
        assert observation_space["numbers"].shape == (5,)

    def forward(self, observation: Any) -> Tensor:
        return torch.cat([observation["boxes"].flatten(1), observation["numbers"]], -1)


def test_the_layout_of_sequences() -> None:
    pair = spaces.Box(-9, 9, (2,), np.float32)
    space = spaces.Dict({"boxes": spaces.Sequence(pair), "numbers": spaces.Sequence(spaces.Discrete(4))})
    read = readable(space, SequenceReading(max_length=5))
    policy = PolicySpec(read, SPACES[1], model=ModelConfig(custom_model=Reading)).make()
    rows = empty(policy.leaves, 1)
    write({"boxes": ([7.0, 8.0],), "numbers": (0, 3)}, policy.leaves, rows, 0, "this is")
    tensors = tuple(torch.from_numpy(array) for array in rows)
    features = policy.network.encoder(tensors, [None, None], torch.float32)
    assert features.tolist() == [[1, 7, 8, *[0] * 12, 1, 4, 0, 0, 0]]


class Late(Limited):
    most = 64


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_a_model_raises_later_is_attributed_to_it(workers: int) -> None:
    config = {"model": {"custom_model": Late}, "num_workers": workers, "num_envs": 80, "train_batch_size": 160}
    message = r"^model.custom_model Late raised ValueError: too many \(test_trial.py, line \d+\)\n.*rolled back"
    with A2C("CartPole-v1", config) as trainer, pytest.raises(CallbackError, match=message):
        trainer.train()
