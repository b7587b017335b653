"""EnvGroups: Fragments, and rebuilding from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from outplay.config import split_envs
from outplay.envs import EnvGroup, GroupState, make_vector
from tests.envs.test_vectors import VECTORS

SLOW = {name for name in VECTORS if "differences" in name or "FIRE" in name}


class Drawing:
    """A policy that draws its actions from the stream that it is given."""

    sequence_length = None

    def __init__(self, space: spaces.Discrete) -> None:
        self.n = int(space.n) if isinstance(space, spaces.Discrete) else 2
        self.shape = space.shape or ()

    def act(self, observations: Any, state: Any, mask: Any, explore: bool, rng: np.random.Generator) -> Any:
        actions = rng.integers(0, self.n, (len(observations[0]), *self.shape))
        return actions, state, {"dist": np.zeros((len(actions), self.n), np.float32)}

    def to_env(self, actions: Any) -> Any:
        return actions

    def initial_state(self, lanes: int) -> dict[str, Any]:
        return {}

    def with_rewards(self, state: Any, rewards: Any) -> Any:
        return state


def collected(group: EnvGroup, steps: int, complete: bool = False) -> Any:
    return group.collect(Drawing(group.vector.action_space), steps, True, 1, complete)  # type: ignore[arg-type]


@given(st.integers(1, 300), st.integers(1, 20))
def test_every_environment_is_in_one_group(num_envs: int, num_groups: int) -> None:
    sizes = split_envs(num_envs, num_groups)
    assert sum(sizes) == num_envs
    assert len(sizes) == min(num_envs, num_groups)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in VECTORS]
)
@pytest.mark.parametrize("complete", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_group_is_rebuilt_from_its_fragments(name: str, complete: bool) -> None:
    spec = VECTORS[name]
    whole = EnvGroup(make_vector(spec, 3), 2, seed=5)
    state = GroupState(3)
    for _ in range(4):
        fragment = collected(whole, 7, complete)
        state = state.advanced(fragment, fragment.actions, complete)
    rebuilt = EnvGroup(make_vector(spec, 3), 2, 5, state)
    for _ in range(4):
        ours, theirs = collected(rebuilt, 7, complete), collected(whole, 7, complete)
        for field in ("actions", "rewards", "terminated", "truncated", "valid", "episode_returns", "episodes"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field)), field
        assert all(np.array_equal(a, b) for a, b in zip(ours.observations, theirs.observations, strict=True))


def test_a_fragment_tells_the_truth_about_its_episodes() -> None:
    group = EnvGroup(make_vector(VECTORS["Python"], 3), 0, seed=0)
    fragments = [collected(group, 25) for _ in range(3)]
    rewards = np.concatenate([f.rewards for f in fragments])
    terminated = np.concatenate([f.terminated for f in fragments])
    truncated = np.concatenate([f.truncated for f in fragments])
    starts = np.concatenate([f.episode_start for f in fragments])
    ended = terminated | truncated
    assert starts[0].all()
    assert np.array_equal(starts[1:], ended[:-1])  # an episode starts right after one has ended
    returns, lengths = [], []
    for t, lane in np.argwhere(ended):
        first = int(np.flatnonzero(starts[: t + 1, lane])[-1])
        returns.append(rewards[first : t + 1, lane].sum())
        lengths.append(t + 1 - first)
    assert np.concatenate([f.episode_returns for f in fragments]) == pytest.approx(returns)
    assert np.concatenate([f.episode_lengths for f in fragments]).tolist() == lengths
    assert max(lengths) == 12
    # The final observation of each truncated episode, and of no other, is kept.
    assert sum(len(f.final_steps) for f in fragments) == int((truncated & ~terminated).sum())
    for fragment in fragments:
        for (observation,), t, lane in zip(
            zip(*fragment.final_observations, strict=True), fragment.final_steps, fragment.final_lanes, strict=True
        ):
            assert fragment.truncated[t, lane]
            assert observation[1] == 1.0  # the walk's clock: its time is over


def test_whole_episodes_begin_and_end_in_their_fragment() -> None:
    group = EnvGroup(make_vector(VECTORS["Python"], 3), 0, seed=0)
    for _ in range(3):
        fragment = collected(group, 20, complete=True)
        assert fragment.episode_start[0].all()
        for lane in range(3):
            length = int(fragment.valid[:, lane].sum())
            assert length >= 20
            assert fragment.valid[:length, lane].all()
            assert (fragment.terminated | fragment.truncated)[length - 1, lane]
        assert fragment.episode_lengths.sum() == fragment.steps
