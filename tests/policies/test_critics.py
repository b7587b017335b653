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
from outplay.policies.flat import flatten
from outplay.policies.fused import Layers, mlp
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
            x = act(x @ layer.weight[i].T + layer.bias[i])
        expected = x @ network.head_layer.weight[i].T + network.head_layer.bias[i]
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
@pytest.mark.parametrize("rows", [7, 130])  # 130 · 100 · 90: larger products are computed by oneDNN
def test_the_gradients_of_one_node_are_those_of_single_layers(
    activation: type[nn.Module], outputs: int, trains: bool, rows: int
) -> None:
    torch.manual_seed(0)
    sizes = [(5, 100), (100, 90), (90, outputs)]
    layers = [(torch.randn(2, b, a, requires_grad=True), torch.randn(2, b, requires_grad=True)) for a, b in sizes]
    tensors = [tensor for layer in layers for tensor in layer]
    x = torch.randn(rows, 5, requires_grad=True)
    found, expected = mlp(x, Layers(tensors, activation, torch.float32), trains), x.expand(2, -1, -1)
    for i, (weight, bias) in enumerate(layers):
        expected = expected @ weight.mT + bias[:, None]
        expected = activation()(expected) if i < 2 else expected
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)
    weights = torch.randn_like(found)
    ours = torch.autograd.grad((found * weights).sum(), [x, *tensors], allow_unused=True)
    theirs = torch.autograd.grad((expected * weights).sum(), [x, *tensors])
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-3, rtol=1e-4)
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        if trains:
            torch.testing.assert_close(own, other, atol=1e-3, rtol=1e-4)
        else:
            assert own is None


def test_one_mlp_is_the_first_of_several() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 8, 5), torch.randn(2, 8), torch.randn(2, 3, 8), torch.randn(2, 3)]
    own = [tensor[0].clone().requires_grad_() for tensor in tensors]
    x = torch.randn(7, 5)
    first = mlp(x, Layers(tensors, nn.ReLU, torch.float32), trains=False, number=1)
    one = mlp(x, Layers(own, nn.ReLU, torch.float32, is_one=True))
    torch.testing.assert_close(one, first)
    gradients = torch.autograd.grad(one.sum(), own)
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in own]
    # The optimizer takes them as one vector, without a copy.
    assert gradients[1].data_ptr() == gradients[0].data_ptr() + gradients[0].numel() * 4


def test_layers_follow_weights_that_move() -> None:
    network = critics()
    (seen,), actions = batch()
    before = network((seen,), actions)
    flatten(network)
    assert torch.equal(network((seen,), actions), before)
    with torch.no_grad():
        network.head_layer.bias += 1.0
    torch.testing.assert_close(network((seen,), actions), before + 1.0)
    other = copy.deepcopy(network)
    with torch.no_grad():
        network.head_layer.bias += 1.0
    torch.testing.assert_close(other((seen,), actions), before + 1.0)


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
    torch.testing.assert_close(layer(x), torch.tensor([[[-1.0], [1.0]]]), atol=1e-3, rtol=0)  # ∓1 / √(1 + 0.001)
    assert layer.mean.item() == pytest.approx(0.02)  # 0.99 · 0 + 0.01 · 2
    assert layer.variance.item() == pytest.approx(1.0)  # 0.99 · 1 + 0.01 · 1
    layer.eval()
    assert layer(x)[0, 0].item() == pytest.approx(0.98, abs=1e-3)
    assert layer.mean.item() == pytest.approx(0.02)  # as before


def test_each_critic_has_moments_of_its_own() -> None:
    layer, x = BatchNorm(2, 1), torch.tensor([[[0.0], [2.0]], [[10.0], [30.0]]])
    layer.train()
    expected = torch.tensor([[[-1.0], [1.0]], [[-1.0], [1.0]]])
    torch.testing.assert_close(layer(x), expected, atol=1e-3, rtol=0)
    assert layer.mean.tolist() == pytest.approx([0.01, 0.2])
    assert layer.variance.tolist() == pytest.approx([1.0, 0.99 + 0.01 * 100])


def warm(mean: float, variance: float) -> BatchNorm:
    layer = BatchNorm(1, 1)
    layer.train()
    layer.mean.fill_(mean)
    layer.variance.fill_(variance)
    layer.minibatches.fill_(BatchNorm.WARM_UP)
    return layer


def test_batch_renormalisation_by_hand() -> None:
    # Minibatch: μ = 2, σ² = 1. Running moments: μ̄ = 1, σ̄² = 4. So r = 1/2, d = (2 − 1) / 2 = 1/2, y = (x − μ̄) / σ̄.
    x = torch.tensor([[[1.0], [3.0]]])
    layer = warm(1.0, 4.0)
    torch.testing.assert_close(layer(x), torch.tensor([[[0.0], [1.0]]]), atol=1e-3, rtol=0)
    assert layer.mean.item() == pytest.approx(0.99 * 1 + 0.01 * 2)
    assert layer.variance.item() == pytest.approx(0.99 * 4 + 0.01 * 1)
    layer = warm(1.0, 4.0)
    with torch.no_grad():
        layer.scale.fill_(3.0)
        layer.shift.fill_(7.0)
    torch.testing.assert_close(layer(x), torch.tensor([[[7.0], [10.0]]]), atol=3e-3, rtol=0)


def test_renormalisation_is_clipped() -> None:
    # μ̄ = −100, σ̄² = 1/100: r = 1 / 0.1, clipped to 3; d = 102 / 0.1, clipped to 5.
    y = warm(-100.0, 0.01)(torch.tensor([[[1.0], [3.0]]]))
    torch.testing.assert_close(y, torch.tensor([[[5.0 - 3.0], [5.0 + 3.0]]]), atol=5e-3, rtol=0)


def test_the_correction_of_renormalisation_is_a_constant_for_the_gradient() -> None:
    # y = r x̂ + d with constant r and d: Σ y does not depend on x, because Σ x̂ = 0. By running moments, it would.
    x = torch.tensor([[[1.0], [3.0]]], requires_grad=True)
    layer = warm(1.0, 4.0)
    by_x, by_scale = torch.autograd.grad(layer(x).sum(), (x, layer.scale))
    torch.testing.assert_close(by_x, torch.zeros_like(by_x), atol=1e-6, rtol=0)
    assert by_scale.item() == pytest.approx(1.0, abs=1e-3)  # Σ (r x̂ + d) = 0 + 1


def test_renormalisation_starts_after_the_warm_up() -> None:
    layer, x = warm(1.0, 4.0), torch.tensor([[[1.0], [3.0]]])
    layer.minibatches.fill_(BatchNorm.WARM_UP - 1)
    torch.testing.assert_close(layer(x), torch.tensor([[[-1.0], [1.0]]]), atol=1e-3, rtol=0)
    assert layer(x)[0, 1].item() == pytest.approx((3 - 1.01) / 3.97**0.5, abs=1e-3)
    assert layer.minibatches.item() == BatchNorm.WARM_UP


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_normalised_critics_have_their_parameters_and_moments_in_the_flat_vector(norm: Any) -> None:
    network = critics(CriticOptions(norm=norm))
    kinds = [type(part).__name__ for part in network.hidden]
    if norm == "layer":
        assert kinds == 2 * ["EnsembleLinear", "LayerNorm", "ReLU"]
    else:  # as in CrossQ: the inputs, and the outputs of each activation
        assert kinds == ["BatchNorm", *(2 * ["EnsembleLinear", "ReLU", "BatchNorm"])]
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
