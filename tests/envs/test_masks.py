"""Action masks: found through wrappers, checked, and the only actions that are taken."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from outplay import PPO, EnvError
from outplay.envs import EnvSpec, make_vector, probe_env
from outplay.envs.check import check_env
from outplay.masks import checked_mask, mask_sizes, sample_allowed
from outplay.testing import VectorConformance
from tests import probes
from tests.policies.test_recurrent_and_masked import Maze


class Ending(Maze):
    """Ends after three steps, and allows nothing then."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.steps == 3, False, info

    def action_masks(self) -> np.ndarray:
        return super().action_masks() & (self.steps < 3)


class Masker(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Masks in a wrapper, as sb3-contrib's ActionMasker does it: only the first action."""

    def action_masks(self) -> list[int]:
        return [1, 0, 0]


class Flawed(Maze):
    """Whose mask is this."""

    def __init__(self, mask: Any, parts: bool = False) -> None:
        super().__init__(parts)
        self.mask = mask

    def action_masks(self) -> Any:
        if self.mask == "raises":
            raise RuntimeError("no rules today")
        return self.mask

    def step(self, action: Any) -> Any:
        return self._observe(), 0.0, False, False, {}


class TestMaze(VectorConformance):
    env = Maze


class TestMazeOfParts(VectorConformance):
    env = Maze
    env_config: ClassVar[dict[str, Any]] = {"parts": True}


def test_masks_are_those_of_the_present_observation() -> None:
    vector = make_vector(EnvSpec("maze", Maze), 3)
    vector.reset(np.ones(3, bool), [0, 1, 2])
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert vector.action_masks is not None
        expected = [env.unwrapped.action_masks() for env in vector.envs]  # type: ignore[attr-defined]
        assert np.array_equal(vector.action_masks, expected)
        actions = np.stack([sample_allowed(vector.action_space, mask, rng) for mask in vector.action_masks])
        _, _, terminated, truncated = vector.step(actions)
        ended = terminated | truncated
        assert vector.action_masks[terminated].all()
        if ended.any():
            vector.reset(ended, list(range(int(ended.sum()))))


def test_masks_are_found_through_wrappers_the_outermost_first() -> None:
    def limited() -> Any:
        return gymnasium.wrappers.TimeLimit(Maze(), 10)

    for factory in (limited, lambda: Masker(limited())):
        vector = make_vector(EnvSpec("maze", factory, frame_stack=2, max_episode_steps=5), 1)
        vector.reset(np.ones(1, bool), [0])
        own = vector.envs[0].unwrapped.action_masks()  # type: ignore[attr-defined]
        assert vector.action_masks is not None
        assert vector.action_masks[0].tolist() == (own.tolist() if factory is limited else [True, False, False])


def test_without_masks_there_are_none() -> None:
    for spec in (EnvSpec("walk", probes.Walk), EnvSpec("CartPole-v1"), EnvSpec("ALE/Pong-v5")):
        assert make_vector(spec, 1).action_masks is None
        assert not probe_env(spec).has_action_masks
    assert probe_env(EnvSpec("maze", Maze)).has_action_masks


def test_an_episode_that_is_over_need_not_allow_anything() -> None:
    with PPO(env=Ending, config={"num_workers": 0, "num_envs": 4, "train_batch_size": 64}) as trainer:
        assert trainer.train()["episodes_this_iter"] > 10
        assert trainer.evaluate()["episode_len_mean"] == 3


FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"mask": [0, 0, 0]}, r"action_masks\(\) returned a mask that allows no action"),
    "shape": ({"mask": [1, 1]}, r"returned a mask of shape \(2,\); one value per action is needed: \(3,\)"),
    "matrix": ({"mask": [[1, 1, 1]]}, r"a mask of shape \(1, 3\)"),
    "values": ({"mask": [1, 0, 2]}, r"a mask with values other than True and False \(1 and 0\)"),
    "texts": ({"mask": ["yes", "no", "no"]}, "a mask with values other than True and False"),
    "None": ({"mask": None}, r"a mask of shape \(\)"),
    "ragged": ({"mask": [[1], [1, 0]]}, r"returned a mask that is a list, not an array"),
    "raises": ({"mask": "raises"}, r"raised in action_masks\(\): RuntimeError: no rules today"),
    "a part": ({"mask": [1, 1, 1, 0, 0], "parts": True}, "a mask that allows no choice for part 1 of the action"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_mask_that_cannot_be_is_one_sentence(flaw: str) -> None:
    config, sentence = FLAWS[flaw]
    with pytest.raises(EnvError, match=rf"environment '.*Flawed'.*{sentence}") as caught:
        PPO(env=Flawed, config={"num_workers": 0, "env_config": config})
    assert "\n" not in str(caught.value)
    found = dict(check_env(EnvSpec("it", Flawed, config)))
    assert "mask" in found["problem"] or "no rules" in found["problem"] or "not an array" in found["problem"]


def test_masks_are_for_choices_only() -> None:
    class Continuous(Maze):
        def __init__(self) -> None:
            self.action_space = spaces.Box(-1, 1, (2,))  # type: ignore[assignment]

    with pytest.raises(EnvError, match=r"has action_masks\(\): action masks need a Discrete or MultiDiscrete action"):
        PPO(env=Continuous, config={"num_workers": 0})


def test_probing_and_checking_take_allowed_actions_only() -> None:
    """The maze raises on others."""
    for config in ({}, {"parts": True}):
        assert not probe_env(EnvSpec("maze", Maze, config)).inexact
        found = list(check_env(EnvSpec("maze", Maze, config)))
        assert not [text for kind, text in found if kind == "problem"], found
        assert ("ok", "it has action_masks(): the policy takes only allowed actions") in found


def test_allowed_actions_are_drawn_alike() -> None:
    rng = np.random.default_rng(0)
    space = spaces.MultiDiscrete([[2, 3], [2, 4]], start=[[0, 5], [1, 0]])
    assert mask_sizes(space) == [2, 3, 2, 4]
    mask = checked_mask([0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1], mask_sizes(space), "")
    drawn = np.stack([sample_allowed(space, mask, rng) for _ in range(300)])
    assert all(space.contains(action) for action in drawn)
    assert [set(column.tolist()) for column in drawn.reshape(300, 4).T] == [{1}, {5, 7}, {1}, {0, 1, 3}]
    shifted = spaces.Discrete(3, start=-1)
    assert {int(sample_allowed(shifted, np.array([True, False, True]), rng)) for _ in range(50)} == {-1, 1}
