"""LayerNorm in the networks: where it is, what it computes, and that noise leaves it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay import A2C, DQN, PG, PPO, SAC, Algorithm, ConfigError
from outplay.groups import ModelConfig
from outplay.policies import Policy, PolicySpec, QOptions, QPolicy
from outplay.policies.encoder import ChannelNorm
from outplay.policies.perturbing import perturb, perturbable
from tests import probes
from tests.policies.test_custom import Remembering
from tests.policies.test_policies import OBSERVATION_SPACES, act

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = OBSERVATION_SPACES["small image"]


def made(space: Any = VECTOR, kind: type[Policy] = QPolicy, options: QOptions | None = None, **model: Any) -> Policy:
    config = ModelConfig(**{"layer_norm": True, "fcnet_hiddens": [8, 6], **model})
    return kind(PolicySpec(space, spaces.Discrete(4), config, seed=3, options=options))


def kinds(layers: Any) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def test_it_follows_each_layer_and_precedes_the_activation() -> None:
    hidden = ["Linear", "LayerNorm", "ReLU"] * 2
    assert kinds(made().network.hidden) == hidden
    assert kinds(made(kind=Policy, fcnet_activation="relu").network.value_hidden) == hidden  # type: ignore[arg-type]
    noisy = made(options=QOptions(noisy=True)).network.hidden
    assert kinds(noisy) == ["NoisyLinear", "LayerNorm", "ReLU"] * 2
    sparse = made(spaces.Box(-1, 1, (8,), np.int8), sparse_inputs=True).network.hidden
    assert kinds(sparse) == ["SparseLinear", *hidden[1:]]
    convolutions: Any = made(IMAGE).network.encoder
    assert kinds(convolutions.convolutions[0]) == ["Conv2d", "ChannelNorm", "ReLU"] * 2
    assert "LayerNorm" not in kinds(made(layer_norm=False).network.modules())
    norm: Any = made(use_bias=False).network.hidden[1]
    assert norm.bias is None


def test_it_standardizes_each_row() -> None:
    """(3, −1) has mean 1 and deviation 2: (1, −1) but for ε = 1e-5; then its own weight and bias."""
    norm: Any = made(fcnet_hiddens=[2]).network.hidden[1]
    assert norm(torch.tensor([[3.0, -1.0], [5.0, 5.0]])).tolist() == [pytest.approx([1, -1], abs=1e-5), [0, 0]]
    with torch.no_grad():
        norm.weight.fill_(2.0)
        norm.bias.fill_(0.5)
    assert norm(torch.tensor([[3.0, -1.0]])).tolist() == [pytest.approx([2.5, -1.5], abs=1e-5)]


def test_pixels_are_standardized_over_their_channels() -> None:
    x = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    y = ChannelNorm(5)(x)
    expected = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    assert torch.allclose(y, expected, atol=1e-5)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
def test_acting_and_learning_compute_the_same(space: Any, precision: str) -> None:
    learning, acting = made(space, precision=precision), made(space, precision=precision)
    rng = np.random.default_rng(0)
    weights = {name: w + np.asarray(0.2 * rng.normal(size=w.shape)) for name, w in learning.get_weights().items()}
    learning.set_weights(weights)
    acting.load(learning.snapshot(1))
    for rows in (3, 9):  # in numpy, in torch
        one, other = (act(policy, space, rows, False)[2]["dist"] for policy in (learning, acting))
        assert one == pytest.approx(other, rel=1e-4, abs=1e-4 if precision == "float32" else 0.1)


def test_its_weights_start_as_ones_and_get_no_noise() -> None:
    policy = made(IMAGE)
    norms = [module for module in policy.network.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 4
    before = policy.flat.clone()
    perturb(policy.flat, perturbable(policy.network), 0.5, np.random.default_rng(0))
    assert all(bool((norm.weight == 1).all()) and not norm.bias.any() for norm in norms)
    others = sum(norm.weight.numel() + norm.bias.numel() for norm in norms)
    others += sum(buffer.numel() for buffer in policy.network.buffers())
    assert (policy.flat != before).sum() == len(before) - others


class Features(nn.Module):
    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(observation_space.shape[0], 4)

    def forward(self, observation: Tensor) -> Tensor:
        return torch.relu(self.linear(observation))


def test_a_custom_model_has_its_own_layers() -> None:
    for model in (Features, Remembering):
        with pytest.raises(ValueError, match="layer_norm: a custom_model has its own layers; leave it out, or add fcn"):
            ModelConfig(layer_norm=True, custom_model=model)
    assert kinds(made(custom_model=Features, fcnet_hiddens=[5]).network.hidden) == ["Linear", "LayerNorm", "ReLU"]
    with pytest.raises(ConfigError, match="layer_norm: a custom_model"):
        PPO(env=probes.Walk, config={"model": {"layer_norm": True, "custom_model": Features}})


@pytest.mark.parametrize("algorithm", [PPO, A2C, PG, DQN, SAC])
def test_every_algorithm_trains_with_it(algorithm: type[Algorithm]) -> None:
    config: dict[str, Any] = {"num_workers": 0, "num_envs": 4, "train_batch_size": 64, "seed": 3}
    config |= {"learning_starts": 32, "sgd_minibatch_size": 16} if algorithm in (DQN, SAC) else {}
    with algorithm(env=probes.Walk, config={**config, "model": {"layer_norm": True, "fcnet_hiddens": [8]}}) as trainer:
        norm: Any = trainer.policy.network.hidden[1]
        trainer.train()
        assert bool((norm.weight != 1).any())
