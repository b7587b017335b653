"""Vectors: all pass one suite; and what is special about each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from outplay import EnvError
from outplay.envs import EnvSpec, Vector, make_vector
from outplay.envs.native import _INDEPENDENT_RESETS, AtariVector
from outplay.envs.pong import PongDifference
from outplay.testing import VectorConformance
from outplay.testing.vector import arrays, check_follows_from_seed, play
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


class Ours(VectorConformance):
    spec: ClassVar[EnvSpec]

    def make(self, num_envs: int) -> Vector:
        return make_vector(self.spec, num_envs)

    @pytest.fixture
    def pair(self) -> Iterator[tuple[Vector, Vector]]:
        """The number of threads makes no difference."""
        one, other = self.make(3), make_vector(self.spec, 3, num_threads=2)
        yield one, other
        one.close()
        other.close()


class TestPython(Ours):
    spec = VECTORS["Python"]


class TestCartPole(Ours):
    spec = VECTORS["CartPole"]


class TestAtari(Ours):
    spec = VECTORS["Atari"]


@pytest.mark.slow
class TestAtariWithFire(Ours):
    spec = VECTORS["Atari with FIRE"]


@pytest.mark.slow
class TestPongAsDifferences(Ours):
    spec = VECTORS["Pong as differences"]


class TestAnEnvironment(VectorConformance):
    """As a package of a stranger would test its own: a class; spaces of all kinds."""

    env = probes.Nested


class TestAnId(VectorConformance):
    env = "Pendulum-v1"


class TestASpaceOfSpaces(VectorConformance):
    env = "tests.envs.odd:Acts"
    env_config = {"kind": "Dict"}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("fire", "lives"), [(False, {4}), (True, {0})])
def test_breakout_goes_on_after_a_lost_life_if_fire_is_pressed(apart: bool, fire: bool, lives: set[int]) -> None:
    """A player who does nothing at all loses one ball, and then waits for ever; or loses all five."""
    vector = make_vector(EnvSpec("ALE/Breakout-v5", fire_on_reset=fire), 2, separate=apart)
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
    together, apart = make_vector(spec, 3, 2), make_vector(spec, 3, 2, separate=True)
    assert play(together, 60) == play(apart, 60)
    apart.reset(np.ones(3, bool), [0, 1, 2])
    actions = np.ones((3, *apart.action_space.shape), np.int64)
    before = [leaf.copy() for leaf in arrays(apart.step(actions))]
    after = arrays(apart.step(actions, np.array([True, False, True])))
    assert np.array_equal(before[0][1], after[0][1])
    assert not np.array_equal(before[0][0], after[0][0])
    one = make_vector(spec, 1)
    one.reset(np.ones(1, bool), [1])
    for _ in range(2):
        expected = arrays(one.step(actions[:1]))
    assert np.array_equal(arrays(apart.step(actions))[0][1], expected[0][0])  # it goes on where it had stopped


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
    left, fresh = make_vector(spec, 2, separate=apart), make_vector(spec, 2, separate=apart)
    left.reset(np.ones(2, bool), [0, 1])
    left.begin(np.ones(2, np.int64))
    assert play(left, 10) == play(fresh, 10)


@pytest.mark.parametrize("game", sorted(_INDEPENDENT_RESETS))
def test_a_game_that_is_seeded_now_and_then_forgets_what_was_played(game: str) -> None:
    name = "ALE/" + "".join(word.capitalize() for word in game.split("_")) + "-v5"
    spec = EnvSpec(name, None, {"repeat_action_probability": 0.0})
    played, led = make_vector(spec, 1), make_vector(spec, 1)
    assert played.episodes_per_seed > 1
    check_follows_from_seed(played, led)


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
