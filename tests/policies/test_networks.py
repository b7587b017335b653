"""Networks: sparse inputs, frozen weights, acting in numpy, noisy layers."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from outplay.errors import ConfigError
from outplay.groups import ModelConfig
from outplay.policies import Policy, PolicySpec, QPolicy
from outplay.policies.box import SoftPolicy
from outplay.policies.dense import Dense
from outplay.policies.qnetwork import QOptions
from outplay.policies.sparse import SparseLinear, nonzero_entries
from tests.policies.test_policies import OBSERVATION_SPACES, act


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float32])
@pytest.mark.parametrize("width", [16, 13])
def test_what_is_set_is_found_row_by_row(dtype: torch.dtype, width: int) -> None:
    x = (torch.rand(20, width, generator=torch.Generator().manual_seed(0)) < 0.1).to(dtype)
    x[3] = 0
    rows, columns = nonzero_entries(x)
    assert torch.stack([rows, columns], 1).equal(x.nonzero())


def test_a_sparse_layer_is_a_linear_one() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = SparseLinear(24, 5, bias=True)
    torch.nn.init.normal_(layer.weight, generator=generator)
    torch.nn.init.normal_(layer.bias, generator=generator)  # type: ignore[arg-type]
    x = torch.randint(-1, 2, (7, 24), dtype=torch.int8, generator=generator) * (torch.arange(24) % 5 == 0)
    x = x.to(torch.int8)
    x[2] = 0
    dense = torch.nn.functional.linear(x.float(), layer.weight.T, layer.bias)
    assert torch.allclose(layer(x), dense, atol=1e-6)
    for mine, theirs in zip(
        torch.autograd.grad(layer(x).square().sum(), list(layer.parameters())),
        torch.autograd.grad(dense.square().sum(), list(layer.parameters())),
        strict=True,
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_sparse_inputs_change_nothing_but_the_cost() -> None:
    space = spaces.Box(-1, 1, (40,), np.int8)
    rng = np.random.default_rng(0)
    observations = (rng.integers(-1, 2, (6, 40), dtype=np.int8),)
    config = {"fcnet_hiddens": [8], "use_bias": False, "initializer": "normal"}
    sparse = Policy(PolicySpec(space, spaces.MultiBinary(1), ModelConfig(**config, sparse_inputs=True), 0))
    dense = Policy(PolicySpec(space, spaces.MultiBinary(1), ModelConfig(**config), 0))
    assert {name: w.shape for name, w in sparse.get_weights().items() if "bias" in name} == {"value_head.bias": (1,)}
    one, other = (p.act(observations, {}, None, False, rng)[2]["dist"] for p in (sparse, dense))
    assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_frozen_weights_are_the_ones_that_were_given(precision: Any) -> None:
    space = spaces.Box(0, 255, (4, 20, 20), np.uint8)
    model = ModelConfig(conv_filters=[(8, 4, 2)], fcnet_hiddens=[16], precision=precision)
    policies = [Policy(PolicySpec(space, spaces.Discrete(3), model, seed, True, True)) for seed in range(3)]
    rng = np.random.default_rng(0)
    observations = (rng.integers(0, 255, (5, 4, 20, 20), dtype=np.uint8),)
    learning, acting, other = policies
    for policy in (learning, other):
        policy.set_weights({**policy.get_weights(), "observation_mean_0": np.full((4, 20, 20), 100 * rng.random())})

    def said(policy: Policy) -> dict[str, np.ndarray]:
        return policy.act(observations, {}, None, False, rng)[2]

    acting.load(learning.snapshot(1))
    assert np.array_equal(said(acting)["dist"], said(learning)["dist"])
    acting.load(other.snapshot(2))
    assert np.array_equal(said(acting)["dist"], said(other)["dist"])
    acting.set_weights(learning.get_weights())
    assert np.array_equal(said(acting)["value"], said(learning)["value"])


def test_sparse_inputs_are_not_for_images() -> None:
    with pytest.raises(ConfigError, match="sparse_inputs"):
        Policy(
            PolicySpec(spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(2), ModelConfig(sparse_inputs=True), 0)
        )


NUMBERS = spaces.Dict(
    {"a": spaces.Box(-9, 9, (2, 3), np.float64), "b": spaces.MultiBinary(2), "c": spaces.Box(0, 9, ())}
)
FEW: dict[str, Any] = {
    "tanh": (Policy, spaces.Discrete(3), {"fcnet_activation": "tanh"}, {}),
    "shared layers": (Policy, spaces.Discrete(3), {"vf_share_layers": True}, {}),
    "gaussian, shared": (Policy, spaces.Box(-1, 1, (2,)), {"vf_share_layers": True, "use_bias": False}, {}),
    "normalised": (Policy, spaces.MultiBinary(3), {"fcnet_activation": "linear"}, {"normalize_observations": True}),
    "no hidden layer": (Policy, spaces.Discrete(3), {"fcnet_hiddens": []}, {}),
    "LayerNorm": (Policy, spaces.Discrete(3), {"layer_norm": True, "fcnet_hiddens": [33, 7]}, {}),
    "LayerNorm without bias": (QPolicy, spaces.Discrete(3), {"layer_norm": True, "use_bias": False}, {}),
    "sparse": (Policy, spaces.Discrete(3), {"sparse_inputs": True, "vf_share_layers": True}, {}),
    "dueling": (QPolicy, spaces.Discrete(3), {}, {}),
    "not dueling": (QPolicy, spaces.Discrete(3), {}, {"options": QOptions(dueling=False)}),
}
OTHERS: dict[str, Any] = {
    "choices": (spaces.Discrete(3), Policy, {}, {}),
    "images": (OBSERVATION_SPACES["small image"], Policy, {}, {}),
    "other activations": (NUMBERS, Policy, {"fcnet_activation": "swish"}, {}),
    "lower precision": (NUMBERS, Policy, {"precision": "bfloat16"}, {}),
    "long sums": (spaces.Box(-1, 1, (5000,)), Policy, {"fcnet_hiddens": [4]}, {}),
    "wide layers": (NUMBERS, Policy, {"fcnet_hiddens": [5000, 4]}, {}),
    "distributions": (NUMBERS, QPolicy, {}, {"options": QOptions(distributional="qr")}),
    "noise": (NUMBERS, QPolicy, {}, {"options": QOptions(noisy=True)}),
}


def with_any_weights(policy: Policy, rng: np.random.Generator) -> Policy:
    """As if it had learned: no weight, bias or normaliser is zero or one."""
    policy.set_weights({n: np.asarray(0.3 + 0.1 * rng.normal(size=w.shape)) for n, w in policy.get_weights().items()})
    return policy


@pytest.mark.parametrize("name", FEW)
def test_a_few_rows_are_acted_for_in_numpy_with_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, actions, model, more = FEW[name]
    rng = np.random.default_rng(0)
    learning, acting = (kind(PolicySpec(NUMBERS, actions, ModelConfig(**model), 0, **more)) for _ in range(2))
    monkeypatch.setattr(acting, "_torch_outputs", None)
    for version in (1, 2):
        acting.load(with_any_weights(learning, rng).snapshot(version))
        said = act(acting, NUMBERS, explore=False)[2]
        for extra, values in act(learning, NUMBERS, explore=False)[2].items():
            assert said[extra] == pytest.approx(values, rel=1e-4)
        alone = [act(acting, NUMBERS, rows, False)[2]["dist"] for rows in (1, 2, 3)]
        assert all(np.array_equal(dist, said["dist"][: len(dist)]) for dist in alone)
    acting.set_weights(with_any_weights(learning, rng).get_weights())
    assert act(acting, NUMBERS, explore=False)[2]["dist"] == pytest.approx(
        act(learning, NUMBERS, explore=False)[2]["dist"], rel=1e-4
    )


@pytest.mark.parametrize("width", [8, 12, 6400])
@pytest.mark.parametrize("use_bias", [True, False])
def test_sparse_bytes_are_acted_for_in_numpy_with_the_same_numbers(width: int, use_bias: bool) -> None:
    """Widths of whole words and others; rows without any nonzero input; at most `most_rows` rows."""
    space = spaces.Box(-1, 1, (width,), np.int8)
    model = ModelConfig(sparse_inputs=True, fcnet_hiddens=[5], use_bias=use_bias)
    rng = np.random.default_rng(0)
    policy = with_any_weights(Policy(PolicySpec(space, spaces.MultiBinary(1), model, 0)), rng)
    inputs = rng.integers(-1, 2, (12, width), np.int8) * (rng.random((12, width)) < 0.3).astype(np.int8)
    inputs[[2, 11]] = 0
    expected = policy._torch_outputs((inputs,))
    policy.load(policy.snapshot(1))
    dense = policy._dense
    assert dense is not None
    outputs = dense((inputs,))
    assert outputs == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for rows in (1, 3, dense.most_rows):
        assert np.array_equal(policy.act((inputs[:rows],), {}, None, False, rng)[2]["dist"], outputs[:rows])
    again = policy.act((np.asfortranarray(inputs[:4]),), {}, None, False, rng)[2]["dist"]
    assert np.array_equal(again, outputs[:4])


PRECISIONS: list[Literal["bfloat16", "float32"]] = ["bfloat16", "float32"]


@pytest.mark.parametrize("kind", [QPolicy, SoftPolicy])
def test_off_policy_algorithms_that_learn_in_lower_precision_act_in_float32(kind: type[Policy]) -> None:
    space = spaces.Box(-9, 9, (8,), np.float32)
    policy, exact = (kind(PolicySpec(space, spaces.Discrete(3), ModelConfig(precision=p), 0)) for p in PRECISIONS)
    rows = np.random.default_rng(0).standard_normal((300, 8), np.float32)  # torch acts on so many
    for acts in (policy, exact):  # as of a trainer
        acts.flat.data.copy_(torch.randn(len(acts.flat), generator=torch.Generator().manual_seed(0)) / 8)
    rng = np.random.default_rng(0)

    def outputs(policy: Policy, number: int) -> Any:
        return policy.act((rows[:number],), policy.initial_state(number), None, False, rng)[2]["dist"]

    for number in (1, 300):
        assert outputs(policy, number) == pytest.approx(outputs(exact, number), rel=1e-4, abs=1e-4)
    for acts in (policy, exact):
        acts.load(acts.snapshot(1))
    assert Dense.of(policy.network) is not None
    for number in (1, 300):
        assert outputs(policy, number) == pytest.approx(outputs(exact, number), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_dense_is_left_to_torch(name: str) -> None:
    space, kind, model, more = OTHERS[name]
    policy = kind(PolicySpec(space, spaces.Discrete(3), ModelConfig(**model), 0, **more))
    policy.load(policy.snapshot(1))
    assert Dense.of(policy.network) is None
    assert np.isfinite(act(policy, space)[2]["dist"]).all()


@pytest.mark.parametrize(
    ("space", "model"),
    [
        (spaces.Box(-1, 1, (3,)), {"fcnet_hiddens": [8, 6], "use_bias": False}),
        (OBSERVATION_SPACES["small image"], {"precision": "bfloat16"}),
    ],
    ids=["vector", "image"],
)
def test_all_linear_layers_have_noise_when_it_is_drawn(space: spaces.Box, model: dict[str, Any]) -> None:
    policy = QPolicy(PolicySpec(space, spaces.Discrete(3), ModelConfig(**model), 0, options=QOptions(noisy=True)))
    kinds = [type(layer) for layer in policy.network.modules() if hasattr(layer, "weight")]
    assert nn.Linear not in kinds
    policy.load(policy.snapshot(1))
    for name in ("hidden.0", "advantage_head", "value_head"):  # what each of them adds by itself
        weights = policy.get_weights()
        alone = {n: w if n.startswith(name) or "_spread" not in n else 0 * w for n, w in weights.items()}
        noisy = QPolicy(PolicySpec(space, spaces.Discrete(3), ModelConfig(**model), 0, options=QOptions(noisy=True)))
        noisy.load(noisy.snapshot(1))
        noisy.set_weights(alone)
        still, drawn = (act(noisy, space, explore=explore)[2]["dist"] for explore in (False, True))
        assert np.array_equal(act(noisy, space, explore=False)[2]["dist"], still)
        assert not np.array_equal(drawn, still)


def test_rows_are_summed_up_alike_however_they_lie_in_memory() -> None:
    policy = Policy(PolicySpec(spaces.Box(-1, 1, (40,)), spaces.Discrete(3), ModelConfig(), 0))
    policy.load(policy.snapshot(1))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 40)).astype(np.float32)
    said = [policy.act((array,), {}, None, False, rng)[2]["dist"] for array in (rows, np.asfortranarray(rows))]
    assert np.array_equal(*said)


@pytest.mark.parametrize(
    "space", [spaces.Box(20_000_000, 20_000_100, (3,), np.int32), spaces.Box(0, 1, (3,), np.bool_)], ids=["int", "bool"]
)
def test_whole_numbers_are_normalised_alike_here_and_there(space: spaces.Box) -> None:
    policies = [
        Policy(PolicySpec(space, spaces.Discrete(3), ModelConfig(), 0, normalize_observations=True)) for _ in range(2)
    ]
    learning, acting = (with_any_weights(policy, np.random.default_rng(0)) for policy in policies)
    mean = {"observation_mean_0": np.full(3, 20_000_050.0 if space.dtype == np.int32 else 0.5)}
    learning.set_weights({**learning.get_weights(), **mean})
    acting.load(learning.snapshot(1))
    ours, theirs = (act(policy, space, explore=False)[2]["dist"] for policy in (acting, learning))
    assert ours == pytest.approx(theirs, rel=1e-4)
