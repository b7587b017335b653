"""Vectors: one suite for all of them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from outplay import EnvError
from outplay.envs import EnvSpec, make_vector
from outplay.envs.native import _FORGETFUL, AtariVector
from outplay.envs.pong import PongDifference
from tests import probes

VECTORS = {
    "Python": EnvSpec("walk", probes.Walk, {"length": 12}),
    "CartPole": EnvSpec("CartPole-v1", max_episode_steps=30),
    "Atari": EnvSpec("ALE/Pong-v5", None, {"repeat_action_probability": 0.25}, max_episode_steps=40),
    "Atari with FIRE": EnvSpec("ALE/Breakout-v5", max_episode_steps=40, fire_on_reset=True),
    "Pong as differences": EnvSpec(
        "PongDifference", PongDifference, {"repeat_action_probability": 0.25}, max_episode_steps=40
    ),
}


def drawn(rng: np.random.Generator, vector: Any) -> np.ndarray:
    space = vector.action_space
    return rng.integers(0, space.n if isinstance(space, spaces.Discrete) else 2, (vector.num_envs, *space.shape))


def play(vector: Any, steps: int, seed: int = 0) -> list[bytes]:
    """Everything that a vector says while ended lanes are started again at once."""
    rng = np.random.default_rng(seed)
    said = [leaf.tobytes() for leaf in vector.reset(np.ones(vector.num_envs, bool), list(range(vector.num_envs)))]
    for t in range(steps):
        actions = drawn(rng, vector)
        observations, rewards, terminated, truncated = vector.step(actions)
        said += [a.tobytes() for a in (*observations, rewards, terminated, truncated)]
        ended = terminated | truncated
        if ended.any():
            seeds = [1000 * t + int(lane) for lane in np.flatnonzero(ended)]
            said += [leaf.tobytes() for leaf in vector.reset(ended, seeds)]
    return said


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "differences" in name else ()) for name in VECTORS]
)
def test_equal_seeds_give_equal_episodes(name: str) -> None:
    one, other = make_vector(VECTORS[name], 3), make_vector(VECTORS[name], 3, num_threads=2)
    assert play(one, 60) == play(other, 60)
    assert play(one, 60) == play(other, 60)  # also when they have been used before
    assert play(one, 60) != play(other, 60, seed=1)


@pytest.mark.parametrize("name", VECTORS)
def test_a_reset_leaves_the_other_lanes_alone(name: str) -> None:
    vector = make_vector(VECTORS[name], 3)
    vector.reset(np.ones(3, bool), [0, 1, 2])
    for _ in range(3):
        observations, *_ = vector.step(np.ones((3, *vector.action_space.shape), np.int64))
    before = [leaf.copy() for leaf in observations]
    after = vector.reset(np.array([False, True, False]), [9])
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old[[0, 2]], new[[0, 2]])
        assert not np.array_equal(old[1], new[1])


@pytest.mark.parametrize("name", VECTORS)
def test_an_ended_lane_starts_again_without_a_step_that_is_none(name: str) -> None:
    """The step after a restart is a real one: its reward is paid and its episode counts from there."""
    vector = make_vector(VECTORS[name], 1)
    vector.reset(np.ones(1, bool), [0])
    for _ in range(2):
        for steps in range(1, 200):
            _, _, terminated, truncated = vector.step(np.full((1, *vector.action_space.shape), steps % 2))
            if terminated[0] or truncated[0]:
                break
        assert steps > 1
        vector.reset(np.ones(1, bool), [1])
    if name == "CartPole":
        assert vector.step(np.array([0]))[1][0] == 1.0


@pytest.mark.parametrize("name", VECTORS)
def test_a_step_that_was_begun_before_is_the_same(name: str) -> None:
    one, other = make_vector(VECTORS[name], 2), make_vector(VECTORS[name], 2)
    rng = np.random.default_rng(0)
    for vector in (one, other):
        vector.reset(np.ones(2, bool), [0, 1])
    for _ in range(10):
        actions = drawn(rng, one)
        other.begin(actions)
        for mine, theirs in zip(_all(one.step(actions)), _all(other.step(actions)), strict=True):
            assert np.array_equal(mine, theirs)


def _all(step: Any) -> list[np.ndarray]:
    observations, *rest = step
    return [*observations, *rest]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("fire", "lives"), [(False, {4}), (True, {0})])
def test_breakout_goes_on_after_a_lost_life_if_fire_is_pressed(apart: bool, fire: bool, lives: set[int]) -> None:
    """A player who does nothing at all loses one ball, and then waits for ever; or loses all five."""
    vector = make_vector(EnvSpec("ALE/Breakout-v5", fire_on_reset=fire), 2, apart=apart)
    assert isinstance(vector, AtariVector)
    vector.reset(np.ones(2, bool), [0, 1])
    playing, ended = np.ones(2, bool), np.zeros(2, np.int64)
    for t in range(1, 400):
        _, _, terminated, _ = vector.step(np.zeros(2, np.int64), playing)
        ended[terminated & playing] = t
        playing &= ~terminated
        if not playing.any():
            break
    assert (ended > 0).all() == fire
    if apart:
        assert set(vector._lives.tolist()) == lives
    assert isinstance(make_vector(EnvSpec("ALE/Freeway-v5", fire_on_reset=True), 1), AtariVector)  # it has no FIRE


@pytest.mark.parametrize("name", ["Atari", "Atari with FIRE"])
def test_games_apart_are_the_same_and_those_that_wait_do_not_move(name: str) -> None:
    spec = VECTORS[name]
    together, apart = make_vector(spec, 3, 2), make_vector(spec, 3, 2, apart=True)
    assert play(together, 60) == play(apart, 60)
    apart.reset(np.ones(3, bool), [0, 1, 2])
    actions = np.ones((3, *apart.action_space.shape), np.int64)
    before = [leaf.copy() for leaf in _all(apart.step(actions))]
    after = _all(apart.step(actions, np.array([True, False, True])))
    assert np.array_equal(before[0][1], after[0][1])
    assert not np.array_equal(before[0][0], after[0][0])
    one = make_vector(spec, 1)
    one.reset(np.ones(1, bool), [1])
    for _ in range(2):
        expected = _all(one.step(actions[:1]))
    assert np.array_equal(_all(apart.step(actions))[0][1], expected[0][0])  # it goes on where it had stopped


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_pong_as_differences_is_gymnasiums_game(sticky: float) -> None:
    ours = PongDifference(repeat_action_probability=sticky, render_mode="rgb_array")
    game = gymnasium.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=sticky)
    assert not ours.reset(seed=3)[0].any()
    before = game.reset(seed=3)[0]
    rng = np.random.default_rng(0)
    moved = 0
    for _ in range(400):
        up = int(rng.integers(0, 2))
        observation, reward, terminated, truncated, _ = ours.step(np.array([up]))
        frame, *theirs = game.step(2 if up else 3)
        if sticky == 0:  # with sticky actions, Gymnasium seeds the emulator in its own way
            difference = things(frame).astype(int) - things(before)
            assert np.array_equal(observation, difference)
            assert [reward, terminated, truncated] == theirs[:3]
            assert np.array_equal(ours.render(), frame)
        before = frame
        moved += int((observation != 0).sum())
    assert 5 < moved / 400 < 100  # paddles and ball: almost all of 6400 pixels are zero


def things(frame: np.ndarray) -> np.ndarray:
    return ~np.isin(frame[35:195:2, ::2, 0].ravel(), (0, 109, 144))


@pytest.mark.parametrize("apart", [False, True])
def test_a_step_that_nobody_waited_for_is_forgotten_by_a_reset(apart: bool) -> None:
    spec = VECTORS["Atari"]
    left, fresh = make_vector(spec, 2, apart=apart), make_vector(spec, 2, apart=apart)
    left.reset(np.ones(2, bool), [0, 1])
    left.begin(np.ones(2, np.int64))
    assert play(left, 10) == play(fresh, 10)


@pytest.mark.parametrize("game", sorted(_FORGETFUL))
def test_a_game_that_is_seeded_now_and_then_forgets_what_was_played(game: str) -> None:
    name = "ALE/" + "".join(word.capitalize() for word in game.split("_")) + "-v5"
    spec = EnvSpec(name, None, {"repeat_action_probability": 0.0})
    played, led = make_vector(spec, 1), make_vector(spec, 1)
    assert played.episodes_per_seed > 1
    everyone = np.ones(1, bool)
    rng = np.random.default_rng(0)
    for vector in (played, led):
        vector.reset(everyone, [5])
    for _ in range(300):
        _, _, terminated, _ = played.step(drawn(rng, played))
        if terminated[0]:
            break
    for _ in range(2):
        assert np.array_equal(played.reset(everyone, [None])[0], led.reset(everyone, [None])[0])
        for _ in range(60):
            actions = drawn(rng, played)
            for mine, theirs in zip(_all(played.step(actions)), _all(led.step(actions)), strict=True):
                assert np.array_equal(mine, theirs)


def test_pong_as_differences_names_a_wrong_option() -> None:
    with pytest.raises(EnvError, match="frame_skip"):
        make_vector(EnvSpec("PongDifference", PongDifference, {"frame_skip": 2}), 1)


def test_cartpole_is_gymnasiums() -> None:
    """Step by step the same as the single environment, from the same state."""
    vector, single = make_vector(EnvSpec("CartPole-v1"), 1), gymnasium.make("CartPole-v1")
    single.reset(seed=0)
    (observation,) = vector.reset(np.ones(1, bool), [0])
    single.unwrapped.state = vector.cart.state[:, 0].copy()  # type: ignore[attr-defined]
    for step in range(300):
        action = int(observation[0, 2] + 0.3 * observation[0, 3] > 0)
        theirs = single.step(action)
        (observation,), rewards, terminated, truncated = vector.step(np.array([action]))
        assert observation[0] == pytest.approx(theirs[0], abs=1e-5), step
        assert (rewards[0], terminated[0], truncated[0]) == theirs[1:4]
        if terminated[0]:
            break
