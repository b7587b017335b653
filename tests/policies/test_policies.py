"""Policies over all spaces; their weights."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay.errors import CheckpointError, ConfigError, EnvError
from outplay.groups import ModelConfig
from outplay.policies import ActionScaling, Policy, PolicySpec, QPolicy
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


def test_the_layers_are_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    space = spaces.Box(-1, 1, (3,))
    shared = Policy(PolicySpec(space, spaces.Discrete(2), ModelConfig(fcnet_hiddens=[8], vf_share_layers=True), seed=0))
    apart = Policy(PolicySpec(space, spaces.Discrete(2), ModelConfig(fcnet_hiddens=[8], vf_share_layers=False), seed=0))
    count = {"shared": 3 * 8 + 8 + 8 * 2 + 2 + 8 + 1, "apart": 2 * (3 * 8 + 8) + 8 * 2 + 2 + 8 + 1}
    assert sum(p.numel() for p in shared.parameters) == count["shared"]
    assert sum(p.numel() for p in apart.parameters) == count["apart"]
    shared.model.base_model.summary()
    assert f"{count['shared']:,}" in capsys.readouterr().out.splitlines()[-1]
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
