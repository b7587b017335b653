"""Critics: an ensemble is several networks; normalisation, dropout, precision."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from outplay import ConfigError
from outplay.groups import ModelConfig
from outplay.policies.critics import BatchNorm, CriticOptions, Critics, EnsembleLinear, LayerNorm
from outplay.policies.fused import mlp
from outplay.spaces import leaves

SPACE = spaces.Box(-1, 1, (3,), np.float32)


def critics(options: CriticOptions | None = None, outputs: int = 1, **model: Any) -> Critics:
    generator = torch.Generator().manual_seed(0)
    settings = ModelConfig(**{"fcnet_hiddens": [8, 6], **model})
    return Critics(leaves(SPACE), settings, options or CriticOptions(), 0 if outputs > 1 else 2, outputs, generator)


def batch(rows: int = 5) -> tuple[tuple[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(rows, 3, generator=generator),), torch.randn(rows, 2, generator=generator)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("outputs", [1, 4])
def test_an_ensemble_is_several_networks(activation: str, outputs: int) -> None:
    network = critics(CriticOptions(number=3), outputs, fcnet_activation=activation)
    (seen,), actions = batch()
    given = seen if outputs > 1 else torch.cat([seen, actions], -1)
    found = network((seen,), None if outputs > 1 else actions)
    assert found.shape == (3, 5, outputs)
    linear = [part for part in network.hidden if isinstance(part, EnsembleLinear)]
    act = {"relu": torch.relu, "tanh": torch.tanh, "elu": nn.functional.elu}[activation]
    for i in range(3):
        x = given
        for layer in linear:
            x = act(x @ layer.weight[i] + layer.bias[i])
        expected = x @ network.head_layer.weight[i] + network.head_layer.bias[i]
        torch.testing.assert_close(found[i], expected)
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_critics_without_hidden_layers_see_the_actions(norm: Any) -> None:
    network = critics(CriticOptions(hiddens=[], norm=norm))
    (seen,), actions = batch()
    assert network((seen,), actions).shape == (2, 5, 1)
    assert not torch.equal(network((seen,), actions), network((seen,), -actions))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("trains", [True, False])
def test_the_gradients_of_one_node_are_those_of_single_layers(
    activation: type[nn.Module], outputs: int, trains: bool
) -> None:
    torch.manual_seed(0)
    sizes = [(5, 8), (8, 6), (6, outputs)]
    layers = [(torch.randn(2, a, b, requires_grad=True), torch.randn(2, 1, b, requires_grad=True)) for a, b in sizes]
    x = torch.randn(7, 5, requires_grad=True)
    found, expected = mlp(x, layers, activation, torch.float32, trains), x.expand(2, -1, -1)
    for i, (weight, bias) in enumerate(layers):
        expected = expected @ weight + bias
        expected = activation()(expected) if i < 2 else expected
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    inputs = [x, *(tensor for layer in layers for tensor in layer)]
    ours = torch.autograd.grad((found * weights).sum(), inputs, allow_unused=True)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs)
    torch.testing.assert_close(ours[0], theirs[0])
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        if trains:
            torch.testing.assert_close(own, other)
        else:
            assert own is None


def test_bfloat16_is_close_to_float32() -> None:
    exact, rough = critics(), critics(precision="bfloat16")
    (seen, actions), parameters = batch(64), list(rough.parameters())
    assert all(torch.equal(a, b) for a, b in zip(exact.parameters(), parameters, strict=True))
    values = rough(seen, actions)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, exact(seen, actions), rtol=0.05, atol=0.05)
    for gradient in torch.autograd.grad(values.square().sum(), parameters):
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()


def test_layer_normalisation_is_that_of_torch() -> None:
    layer, x = LayerNorm(2, 4), torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x), nn.functional.layer_norm(x, [4]))


def test_batch_normalisation_uses_the_minibatch_in_training_and_running_moments_otherwise() -> None:
    layer, x = BatchNorm(1, 1), torch.tensor([[[1.0], [3.0]]])
    layer.train()
    torch.testing.assert_close(layer(x), torch.tensor([[[-1.0], [1.0]]]), atol=1e-4, rtol=0)
    assert layer.mean.item() == pytest.approx(0.02)  # 0.99 · 0 + 0.01 · 2
    assert layer.variance.item() == pytest.approx(1.0)  # 0.99 · 1 + 0.01 · 1
    layer.eval()
    assert layer(x)[0, 0].item() == pytest.approx(0.98, abs=1e-4)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_normalised_critics_have_their_parameters_and_moments_in_the_flat_vector(norm: Any) -> None:
    network = critics(CriticOptions(norm=norm))
    kinds = [type(part).__name__ for part in network.hidden]
    one = ["EnsembleLinear", "LayerNorm" if norm == "layer" else "BatchNorm", "ReLU"]
    assert kinds == (["BatchNorm"] if norm == "batch" else []) + 2 * one
    names = dict(network.named_buffers())
    assert ("hidden.0.mean" in names) == (norm == "batch")


def test_dropout_repeats_with_its_generator() -> None:
    network = critics(CriticOptions(dropout=0.5))
    seen, actions = batch(64)
    plain = network(seen, actions)

    def dropped(seed: int, copied: bool = False) -> Tensor:
        chosen = copy.deepcopy(network) if copied else network
        chosen.set_dropout(torch.Generator().manual_seed(seed))
        values: Tensor = chosen(seen, actions)
        chosen.set_dropout(None)
        return values

    assert torch.equal(dropped(1), dropped(1, copied=True))
    assert not torch.equal(dropped(1), dropped(2))
    assert not torch.equal(dropped(1), plain)
    assert torch.equal(network(seen, actions), plain)


@pytest.mark.parametrize("wrong", [{"action_embeddings": "offers"}, {"sparse_inputs": True}])
def test_what_critics_cannot_use_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.(action_embeddings|sparse_inputs): critics"):
        critics(**wrong)
