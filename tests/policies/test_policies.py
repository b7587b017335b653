"""Action distributions against numbers worked out by hand and against torch's own; networks over all spaces."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from outplay.config import ModelConfig
from outplay.errors import CheckpointError, ConfigError, EnvError
from outplay.policies import ActionScaling, Policy, PolicySpec, QPolicy, distribution_for
from outplay.policies.dense import Dense
from outplay.policies.qnetwork import QOptions
from outplay.policies.sparse import SparseLinear, nonzero_entries
from outplay.spaces import check_action_space, empty, leaves, split

OBSERVATION_SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,)),
    "doubles": spaces.Box(-1, 1, (3,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "stacked frames": spaces.Box(0, 255, (4, 40, 40), np.uint8),
    "grey image": spaces.Box(0, 255, (40, 40), np.uint8),
    "stacked colour": spaces.Box(0, 255, (2, 40, 40, 3), np.uint8),
    "small image": spaces.Box(0, 255, (9, 9, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "multi-binary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(-1, 1, (2,))}),
    "nested": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (12, 12, 3), np.uint8),
            "rest": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"speed": spaces.Box(0, 1, ())}))),
        }
    ),
}
ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "shifted": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(4),
    "box": spaces.Box(-2, 2, (2,)),
    "scalar box": spaces.Box(0, 1, ()),
    "matrix box": spaces.Box(-1, 1, (2, 2)),
    "unbounded box": spaces.Box(-np.inf, np.inf, (2,)),
    "half-bounded box": spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32)),
}


def act(policy: Policy, space: spaces.Space[Any], batch: int = 4, explore: bool = True) -> Any:
    space.seed(0)
    rows = empty(policy.leaves, batch)
    for row in range(batch):
        for array, part in zip(rows, split(space.sample(), policy.leaves), strict=True):
            array[row] = part
    return policy.act(rows, {}, None, explore, np.random.default_rng(0))


@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_a_policy_acts_on_any_observation(name: str) -> None:
    space = OBSERVATION_SPACES[name]
    policy = Policy(PolicySpec(space, spaces.Discrete(3), ModelConfig(), seed=0))
    actions, _, extras = act(policy, space)
    assert actions.shape == (4,)
    assert extras["dist"].shape == (4, 3)
    assert np.isfinite(extras["dist"]).all()


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("name", ACTION_SPACES)
def test_actions_are_in_their_space(name: str, explore: bool) -> None:
    observed, space = spaces.Box(-1, 1, (3,)), ACTION_SPACES[name]
    policy = Policy(PolicySpec(observed, space, ModelConfig(), seed=0))
    actions, _, _ = act(policy, observed, batch=64, explore=explore)
    for action in policy.to_env(actions):
        assert space.contains(np.asarray(action) if isinstance(space, spaces.Box) else action), action


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(EnvError, match=r"observation space Sequence at observation\['a'\] is not supported; Box"):
        leaves(spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}))
    with pytest.raises(EnvError, match="action space Sequence is not supported; Discrete"):
        check_action_space(spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}))
    with pytest.raises(EnvError, match="has nothing in it"):
        check_action_space(spaces.Tuple(()))


def test_the_layers_are_what_the_model_says() -> None:
    space = spaces.Box(-1, 1, (3,))
    shared = Policy(PolicySpec(space, spaces.Discrete(2), ModelConfig(fcnet_hiddens=[8], vf_share_layers=True), seed=0))
    apart = Policy(PolicySpec(space, spaces.Discrete(2), ModelConfig(fcnet_hiddens=[8], vf_share_layers=False), seed=0))
    count = {"shared": 3 * 8 + 8 + 8 * 2 + 2 + 8 + 1, "apart": 2 * (3 * 8 + 8) + 8 * 2 + 2 + 8 + 1}
    assert sum(p.numel() for p in shared.parameters) == count["shared"]
    assert sum(p.numel() for p in apart.parameters) == count["apart"]
    assert f"{count['shared']:,}" in shared.model.base_model.summary()
    image = spaces.Box(0, 255, (20, 20, 3), np.uint8)
    with pytest.raises(ConfigError, match="conv_filters do not fit an image"):
        Policy(PolicySpec(image, spaces.Discrete(2), ModelConfig(conv_filters=[(8, 8, 4), (8, 8, 4)]), seed=0))


def test_weights_go_there_and_back() -> None:
    space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    one, other = (Policy(PolicySpec(space, spaces.Discrete(2), ModelConfig(), seed=seed)) for seed in (0, 1))
    assert not torch.equal(one.flat, other.flat)
    other.set_weights(one.get_weights())
    assert torch.equal(one.flat, other.flat)
    third = Policy(PolicySpec(space, spaces.Discrete(2), ModelConfig(), seed=2))
    third.load(one.snapshot(5))
    assert third.version == 5
    assert all(torch.equal(a, b) for a, b in zip(one.parameters, third.parameters, strict=True))
    with pytest.raises(CheckpointError, match="of another network"):
        (wrong := Policy(PolicySpec(space, spaces.Discrete(3), ModelConfig(), seed=0))).set_weights(one.get_weights())
    assert wrong.flat.equal(
        Policy(PolicySpec(space, spaces.Discrete(3), ModelConfig(), seed=0)).flat
    )  # nothing was taken


def test_scaling_by_hand() -> None:
    space = spaces.Box(np.array([0.0, -2.0], np.float32), np.array([10.0, 2.0], np.float32))
    actions = np.array([[0.0, 0.5], [-3.0, 1.0]], np.float32)
    scaled = ActionScaling(space, normalize=True, clip=False)(actions)
    assert scaled.tolist() == [[5.0, 1.0], [0.0, 2.0]]
    assert ActionScaling(space, normalize=False, clip=True)(actions).tolist() == [[0.0, 0.5], [0.0, 1.0]]
    assert ActionScaling(space, normalize=False, clip=False)(actions).tolist() == actions.tolist()


# Distributions


def test_a_categorical_by_hand() -> None:
    dist = distribution_for(spaces.Discrete(2))
    params = torch.tensor([[math.log(3.0), 0.0]])  # probabilities 3/4 and 1/4
    assert dist.log_prob(params, torch.tensor([1])).item() == pytest.approx(math.log(0.25))
    assert dist.entropy(params).item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    even = torch.zeros(1, 2)
    assert dist.kl(params, even).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_a_gaussian_by_hand() -> None:
    dist = distribution_for(spaces.Box(-1, 1, (1,)))
    params = torch.tensor([[1.0, math.log(2.0)]])  # mean 1, deviation 2
    expected = -0.5 * ((3.0 - 1.0) / 2.0) ** 2 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    assert dist.log_prob(params, torch.tensor([[3.0]])).item() == pytest.approx(expected)
    assert dist.entropy(params).item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 4))
    standard = torch.tensor([[0.0, 0.0]])
    assert dist.kl(params, standard).item() == pytest.approx(-math.log(2.0) + (4 + 1) / 2 - 0.5)


def torchs_own(name: str, params: torch.Tensor) -> Any:
    if name == "discrete":
        return torch.distributions.Categorical(logits=params)
    if name == "multi-binary":
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=params), 1)
    mean, log_std = params.chunk(2, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("name", ["discrete", "multi-binary", "box"])
def test_distributions_agree_with_torchs(name: str) -> None:
    dist = distribution_for(ACTION_SPACES[name])
    params, other = torch.randn(2, 50, dist.num_params, generator=torch.Generator().manual_seed(0))
    actions = torch.from_numpy(np.asarray(dist.sample(params.numpy(), np.random.default_rng(0))))
    theirs, others = torchs_own(name, params), torchs_own(name, other)
    as_float = actions if name == "discrete" else actions.float()
    assert torch.allclose(dist.log_prob(params, actions), theirs.log_prob(as_float), atol=1e-5)
    assert torch.allclose(dist.entropy(params), theirs.entropy(), atol=1e-5)
    assert torch.allclose(dist.kl(params, other), torch.distributions.kl_divergence(theirs, others), atol=1e-4)


def test_several_choices_are_the_sum_of_each() -> None:
    dist = distribution_for(spaces.MultiDiscrete([2, 3]))
    params = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    first, second = (torchs_own("discrete", part) for part in params.split([2, 3], -1))
    actions = torch.tensor([[1, 2]] * 7)
    assert torch.allclose(
        dist.log_prob(params, actions), first.log_prob(actions[:, 0]) + second.log_prob(actions[:, 1])
    )
    assert torch.allclose(dist.entropy(params), first.entropy() + second.entropy())


@pytest.mark.parametrize("name", ["discrete", "multi-discrete", "multi-binary", "box"])
def test_samples_follow_the_distribution(name: str) -> None:
    """The mean of −log p over samples is the entropy; a wrong sampler does not get there."""
    dist = distribution_for(ACTION_SPACES[name])
    params = torch.randn(1, dist.num_params, generator=torch.Generator().manual_seed(1)).expand(20_000, -1)
    actions = torch.from_numpy(np.asarray(dist.sample(params.numpy(), np.random.default_rng(0))))
    assert -dist.log_prob(params, actions).mean().item() == pytest.approx(dist.entropy(params)[0].item(), abs=0.03)


# Observations that are almost all zeros


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
    "dueling": (QPolicy, spaces.Discrete(3), {}, {}),
    "not dueling": (QPolicy, spaces.Discrete(3), {}, {"options": QOptions(dueling=False)}),
}
OTHERS: dict[str, Any] = {
    "choices": (spaces.Discrete(3), Policy, {}, {}),
    "images": (OBSERVATION_SPACES["small image"], Policy, {}, {}),
    "other activations": (NUMBERS, Policy, {"fcnet_activation": "swish"}, {}),
    "lower precision": (NUMBERS, Policy, {"precision": "bfloat16"}, {}),
    "sparse": (spaces.Box(-1, 1, (8,), np.int8), Policy, {"sparse_inputs": True}, {}),
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
    monkeypatch.setattr(acting, "_by_torch", None)
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


@pytest.mark.parametrize("kind", [Policy, QPolicy])
def test_a_copy_has_weights_of_its_own(kind: type[Policy]) -> None:
    space = spaces.Box(-1, 1, (3,))
    one, other = (kind(PolicySpec(space, spaces.Discrete(3), ModelConfig(), seed)) for seed in (0, 1))
    one.load(one.snapshot(1))
    for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert np.array_equal(act(copied, space, explore=False)[2]["dist"], act(one, space, explore=False)[2]["dist"])
        before = one.flat.clone()
        copied.load(other.snapshot(2))
        assert copied.network.state_dict()["hidden.0.weight"].equal(other.network.state_dict()["hidden.0.weight"])
        assert copied.snapshot(3).flat.tobytes() == other.snapshot(3).flat.tobytes()
        assert one.flat.equal(before)


def test_changing_parameters_in_place_does_not_mix_old_and_new() -> None:
    space = spaces.Box(-1, 1, (3,))
    policy = Policy(PolicySpec(space, spaces.Discrete(3), ModelConfig(), 0))
    policy.load(policy.snapshot(1))
    before = act(policy, space, explore=False)[2]["dist"]
    with torch.no_grad():
        policy.network.hidden[0].weight.mul_(2)
    assert np.array_equal(act(policy, space, explore=False)[2]["dist"], before)
    policy.set_weights(policy.get_weights())
    assert not np.array_equal(act(policy, space, explore=False)[2]["dist"], before)
