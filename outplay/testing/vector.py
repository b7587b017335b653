"""Conformance suite for environments, and for vectors with their own way of stepping."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from outplay.envs import EnvSpec, Vector, find_env, make_vector
from outplay.masks import mask_sizes, sample_allowed
from outplay.spaces import flat_action

Array = np.ndarray


class VectorConformance:
    """Tests of reset, step, partial reset, seeding and state. Set the class, id or import path of an environment.

    >>> class TestMaze(VectorConformance):
    ...     env = Maze
    ...     env_config = {"size": 5}

    For your own vector, override `make`:

    >>> class TestMyVector(VectorConformance):
    ...     def make(self, num_envs):
    ...         return MyVector(num_envs)

    Episodes must end within `most_steps` steps of random actions: set a limit in the environment's arguments.
    """

    env: ClassVar[Any] = None
    env_config: ClassVar[dict[str, Any]] = {}
    most_steps: ClassVar[int] = 200

    def make(self, num_envs: int) -> Vector:
        """A new vector of `num_envs` environments."""
        name, factory = find_env(self.env)
        return make_vector(EnvSpec(name, factory, self.env_config), num_envs)

    @pytest.fixture
    def pair(self) -> Iterator[tuple[Vector, Vector]]:
        """Two vectors of three environments each."""
        one, other = self.make(3), self.make(3)
        yield one, other
        one.close()
        other.close()

    @pytest.fixture
    def exact(self, pair: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        """Two vectors whose episodes can be replayed; otherwise the test is skipped."""
        if pair[0].inexact:
            pytest.skip(pair[0].inexact)
        return pair

    @pytest.fixture
    def vector(self, pair: tuple[Vector, Vector]) -> Vector:
        return pair[0]

    def test_arrays_have_the_shapes_and_types_of_the_spaces(self, vector: Vector) -> None:
        observations = reset_all(vector)
        playing = np.ones(vector.num_envs, bool)
        for _ in range(3):
            assert len(observations) == len(vector.leaves)
            for leaf, array in zip(vector.leaves, observations, strict=True):
                assert array.shape == (vector.num_envs, *leaf.shape)
                assert array.dtype == leaf.dtype
                assert np.isfinite(array).all()
            chosen = actions(vector, np.random.default_rng(0))
            observations, rewards, terminated, truncated = vector.step(chosen, playing)
            playing = playing & ~(terminated | truncated)
            assert rewards.shape == terminated.shape == truncated.shape == (vector.num_envs,)
            assert np.isfinite(rewards).all()
            assert terminated.dtype == truncated.dtype == bool

    def test_masks_allow_an_action_in_each_environment(self, vector: Vector) -> None:
        reset_all(vector)
        if vector.action_masks is None:
            pytest.skip("it has no action masks")
        ends = np.cumsum(mask_sizes(vector.action_space))
        playing = np.ones(vector.num_envs, bool)
        for _ in range(20):
            assert vector.action_masks.shape == (vector.num_envs, ends[-1])
            assert vector.action_masks.dtype == bool
            assert all(part.any(-1).all() for part in np.split(vector.action_masks, ends[:-1], -1))
            _, _, terminated, truncated = vector.step(actions(vector, np.random.default_rng(0)), playing)
            playing &= ~(terminated | truncated)

    def test_equal_seeds_give_equal_episodes(self, exact: tuple[Vector, Vector]) -> None:
        one, other = exact
        first = play(one, 60)
        assert play(other, 60) == first
        assert play(other, 60) == first  # also in a used vector
        assert play(one, 60, seed=1) != first

    def test_a_reset_leaves_the_other_lanes_alone(self, vector: Vector) -> None:
        reset_all(vector)
        rng = np.random.default_rng(0)
        playing = np.ones(3, bool)
        for _ in range(3):
            observations, _, terminated, truncated = vector.step(actions(vector, rng), playing)
            playing &= ~(terminated | truncated)
        before = [leaf.copy() for leaf in observations]
        after = vector.reset(np.array([False, True, False]), [9])
        for old, new in zip(before, after, strict=True):
            assert np.array_equal(old[[0, 2]], new[[0, 2]])
        if playing[1]:
            assert any(not np.array_equal(old[1], new[1]) for old, new in zip(before, after, strict=True))

    def test_an_ended_lane_starts_again_at_once(self, exact: tuple[Vector, Vector]) -> None:
        """The first step after a reset is a step of the new episode, as in an unused vector."""
        used, fresh = exact
        everyone = np.ones(used.num_envs, bool)
        rng = np.random.default_rng(0)
        reset_all(used)
        playing = everyone.copy()
        for _ in range(self.most_steps):
            _, _, terminated, truncated = used.step(actions(used, rng), playing)
            playing &= ~(terminated | truncated)
            if not playing.any():
                break
        else:
            pytest.fail(f"an episode did not end within {self.most_steps} steps of random actions")
        assert_equal(used.reset(everyone, [5, 6, 7]), fresh.reset(everyone, [5, 6, 7]))
        for _ in range(5):
            chosen = actions(used, rng)
            ended = assert_equal(arrays(used.step(chosen)), arrays(fresh.step(chosen)))[-2:]
            if np.any(ended):
                break

    def test_episodes_without_a_seed_follow_from_the_last_seed(self, exact: tuple[Vector, Vector]) -> None:
        played, led = exact
        if played.episodes_per_seed == 1:
            pytest.skip("every episode has a seed of its own")
        check_follows_from_seed(played, led)

    def test_a_step_that_was_begun_before_is_the_same(self, exact: tuple[Vector, Vector]) -> None:
        one, other = exact
        rng = np.random.default_rng(0)
        reset_all(one)
        reset_all(other)
        for _ in range(10):
            chosen = actions(one, rng)
            other.begin(chosen)
            step = assert_equal(arrays(one.step(chosen)), arrays(other.step(chosen)))
            ended = step[-1] | step[-2]
            if ended.any():
                seeds = [int(lane) for lane in np.flatnonzero(ended)]
                one.reset(ended, seeds)
                other.reset(ended, seeds)

    def test_a_state_leads_back_to_where_it_was_taken(self, pair: tuple[Vector, Vector]) -> None:
        one, other = pair
        reset_all(one)
        rng = np.random.default_rng(0)
        observations, *_ = one.step(actions(one, rng))
        state = one.get_state()
        if state is None:
            pytest.skip("its state is rebuilt from the seeds and the actions")
        reset_all(other)
        assert_equal(observations, other.set_state(state))
        assert play(one, 30, reset=False) == play(other, 30, reset=False)


def reset_all(vector: Vector) -> tuple[Array, ...]:
    return tuple(vector.reset(np.ones(vector.num_envs, bool), list(range(vector.num_envs))))


def actions(vector: Vector, rng: np.random.Generator) -> Array:
    """One random action per environment, an allowed one where there are masks."""
    space = copy.deepcopy(vector.action_space)
    if vector.action_masks is not None:
        return np.stack([sample_allowed(space, mask, rng) for mask in vector.action_masks])
    space.seed(int(rng.integers(2**31)))
    return np.stack([flat_action(space, space.sample()) for _ in range(vector.num_envs)])


def arrays(step: Any) -> list[Array]:
    """Observations, rewards, terminated and truncated of a step as one list of arrays."""
    observations, *rest = step
    return [np.array(array) for array in (*observations, *rest)]


def assert_equal(one: Sequence[Array], other: Sequence[Array]) -> Sequence[Array]:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert np.array_equal(mine, theirs)
    return one


def check_follows_from_seed(played: Vector, led: Vector, steps: int = 60) -> None:
    """Episodes without a seed depend only on the last seed and the number of resets since then, not on steps."""
    everyone = np.ones(played.num_envs, bool)
    rng = np.random.default_rng(0)
    for vector in (played, led):
        vector.reset(everyone, list(range(5, 5 + vector.num_envs)))
    for _ in range(5 * steps):
        _, _, terminated, truncated = played.step(actions(played, rng))
        if np.any(terminated | truncated):
            break
    for _ in range(2):
        unseeded = [None] * played.num_envs
        assert_equal(played.reset(everyone, unseeded), led.reset(everyone, unseeded))
        for _ in range(steps):
            chosen = actions(played, rng)
            ended = assert_equal(arrays(played.step(chosen)), arrays(led.step(chosen)))[-2:]
            if np.any(ended):
                break


def play(vector: Vector, steps: int, seed: int = 0, reset: bool = True) -> list[bytes]:
    """All arrays that a vector returns in `steps` steps, as bytes. Ended lanes are reset at once."""
    rng = np.random.default_rng(seed)
    found = [leaf.tobytes() for leaf in reset_all(vector)] if reset else []
    for t in range(steps):
        step = arrays(vector.step(actions(vector, rng)))
        found += [array.tobytes() for array in step]
        ended = step[-1] | step[-2]
        if ended.any():
            seeds = [1000 * t + int(lane) for lane in np.flatnonzero(ended)]
            found += [leaf.tobytes() for leaf in vector.reset(ended, seeds)]
    return found
