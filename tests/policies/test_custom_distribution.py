"""Custom action distributions are tried before a run, and what they raise later is attributed to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import Tensor, nn

from outplay import A2C, DQN, PPO, CallbackError, ConfigError
from outplay.groups import ModelConfig
from outplay.policies import Policy, PolicySpec
from outplay.policies.distributions import Categorical, distribution_for
from outplay.testing.probes import Forbidding

Array = np.ndarray
OBSERVATIONS, TWO = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def made(kind: type, space: Any = TWO, with_masks: bool = False) -> Policy:
    model = ModelConfig(custom_action_dist=kind)
    return PolicySpec(OBSERVATIONS, space, model=model, with_masks=with_masks).make()


class Own(Categorical):
    def __init__(self, space: Any) -> None:
        super().__init__(int(space.n))


class More(Categorical):
    def __init__(self, space: Any) -> None:
        super().__init__(int(space.n) + 3)


class Scalar(Own):
    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return super().log_prob(params, actions).sum()


class Raising(Own):
    def entropy(self, params: Tensor) -> Tensor:
        raise ValueError("no idea")


class Columns(Own):
    def mode(self, params: Array) -> Array:
        return super().mode(params)[:, None]


class Floats(Own):
    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        return super().sample(params, rng).astype(np.float32)


class Global(Own):
    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        return super().sample(0 * params, np.random.default_rng())


class OnlyConstant(Own):
    num_constant = 2


class Shaped(Own):
    shape = (1,)


class Network(nn.Module):
    def __init__(self, space: Any) -> None:
        super().__init__()


class Nothing:
    def __init__(self, space: Any) -> None: ...


@pytest.mark.parametrize(
    ("kind", "space", "message"),
    [
        (
            Categorical,
            TWO,
            r"Categorical has num_params Discrete\(2\); a number of at least 1 is needed \(the class is ca",
        ),
        (
            Own,
            OBSERVATIONS,
            r"Own raised AttributeError when called with the action space Box.*'Box' .* \(test_custom_",
        ),
        (More, TWO, r"More must return from sample\(\) actions of Discrete\(2\), .*: 4 is none of the 2 choices"),
        (Scalar, TWO, r"Scalar must return from log_prob\(\) a tensor of floats .* of shape \(1,\), not .* shape \(\)"),
        (Raising, TWO, r"Raising raised ValueError for a batch of 1: no idea \(test_custom_distribution.py, line"),
        (
            Columns,
            TWO,
            r"Columns must return from mode\(\) a numpy array of numbers of shape \(1,\), not of shape \(1, 1",
        ),
        (Floats, TWO, r"Floats must return integers from sample\(\), not float32"),
        (Global, TWO, r"Global must draw from the generator that sample\(\) gets"),
        (OnlyConstant, TWO, "OnlyConstant has num_constant 2, which must be less than num_params, 2"),
        (Shaped, TWO, r"Shaped has shape \(1,\); an action of Discrete\(2\) has shape \(\)"),
        (Network, TWO, "Network has no sample, mode, .* kl; .* lists what .* needs; a network is a custom_model"),
        (Nothing, TWO, "Nothing has no sample, mode, log_prob, entropy, kl; outplay.policies.Distribution lists"),
    ],
)
def test_wrong_classes_are_refused_in_one_sentence(kind: type, space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^model.custom_action_dist " + message) as raised:
        made(kind, space)
    assert "\n" not in str(raised.value)


class Usual:
    """The usual distribution of a space: the trial accepts it for each space."""

    def __new__(cls, space: Any) -> Any:
        return distribution_for(space)

    sample = mode = log_prob = entropy = kl = None


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(100, start=5),
        spaces.MultiDiscrete([3, 90]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 2)),
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,)), "c": spaces.MultiBinary(2)}),
    ],
)
def test_right_ones_are_accepted(space: Any) -> None:
    policy = made(Usual, space)
    rows = (np.zeros((3, 4), np.float32),)
    actions, _, _ = policy.act(rows, {}, None, True, np.random.default_rng(0))
    assert actions.shape == (3, *policy.distribution.shape)


class Late(Own):
    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        if len(params) > 64:
            raise KeyError("late")
        return super().log_prob(params, actions)


def test_what_it_raises_later_is_attributed_to_it() -> None:
    config = {"model": {"custom_action_dist": Late}, "num_workers": 0, "num_envs": 2, "train_batch_size": 80}
    message = (
        r"^model.custom_action_dist Late: log_prob\(\) raised KeyError: 'late' \(test_custom_distribution.py, line"
    )
    with A2C("CartPole-v1", config) as trainer, pytest.raises(CallbackError, match=message):
        trainer.train()


class Extra(Own):
    """One parameter more than actions, which it ignores."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.num_params += 1

    def sample(self, params: Array, rng: np.random.Generator) -> Array:
        return super().sample(params[:, :-1], rng)

    def mode(self, params: Array) -> Array:
        return super().mode(params[:, :-1])

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return super().log_prob(params[:, :-1], actions)


def test_masks_need_one_parameter_per_choice() -> None:
    message = "Extra has 3 parameters, and action masks have 2 entries: masks are applied to the parameters as logits"
    with pytest.raises(ConfigError, match=message):
        made(Extra, with_masks=True)
    with pytest.raises(ConfigError, match="Extra has 5 parameters, and action masks have 4 entries"):
        PPO(Forbidding, {"model": {"custom_action_dist": Extra}, "num_workers": 0})
    with PPO("CartPole-v1", {"model": {"custom_action_dist": Extra}, "num_workers": 0}) as trainer:
        assert trainer.compute_single_action(np.zeros(4, np.float32)) in (0, 1)
        with pytest.raises(ConfigError, match=message):
            trainer.compute_single_action(np.zeros(4, np.float32), mask=[True, False])
    assert made(Own, with_masks=True).distribution.num_params == 2


def test_dqn_has_none() -> None:
    with pytest.raises(ConfigError, match="custom_action_dist: a policy of Q-values has no action distribution"):
        DQN("CartPole-v1", {"model": {"custom_action_dist": Own}})
