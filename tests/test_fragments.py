"""Batches: rows, parts and sequences of the same steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.fragments import Fragment, join
from tests import probes
from tests.policies.test_recurrent_and_masked import SMALL, CountingPPO, MaskedCountingPPO, Maze, watched

LENGTH = 3  # of sequences


def fragment(seed: int, steps: int, lanes: int, complete: bool) -> Fragment:
    """As an EnvGroup fills it; with `complete`, lanes are valid up to a step of their own."""
    rng = np.random.default_rng(seed)
    ends = rng.random((steps, lanes)) < 0.3
    lengths = rng.integers(1, steps + 1, lanes) if complete else np.full(lanes, steps)
    starts = np.zeros((steps, lanes), bool)
    starts[1:] = ends[:-1]
    starts[0] = complete | (rng.random(lanes) < 0.5)
    counts = rng.integers(1, 100, lanes) * ~starts[0]
    return Fragment(
        group=0,
        version=0,
        observations=(rng.normal(size=(steps, lanes, 2)).astype(np.float32),),
        actions=rng.integers(0, 3, (steps, lanes)),
        rewards=np.arange(steps * lanes, dtype=np.float32).reshape(steps, lanes),
        terminated=ends,
        truncated=np.zeros_like(ends),
        valid=np.arange(steps)[:, None] < lengths,
        episode_start=starts,
        extras={"dist": rng.normal(size=(steps, lanes, 3)).astype(np.float32)},
        last_observations=(np.zeros((lanes, 2), np.float32),),
        final_observations=(np.zeros((0, 2), np.float32),),
        final_steps=np.zeros(0, np.int64),
        final_lanes=np.zeros(0, np.int64),
        policy_state={"count": counts},
        sequence_length=LENGTH,
        inner_states={"count": rng.integers(1, 100, (max(0, steps - 1) // LENGTH, lanes))},
        last_policy_state={"count": counts},
    )


def fragments(complete: bool) -> st.SearchStrategy[list[Fragment]]:
    made = st.builds(fragment, st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.just(complete))
    return st.lists(made, min_size=1, max_size=5)


@given(fragments(False) | fragments(True))
def test_sequences_have_every_valid_step_once_and_start_where_the_state_is_known(collected: list[Fragment]) -> None:
    batch = join(collected)
    sequences = batch.sequences(lambda lanes: {"count": np.full(lanes, -7)})
    seen = list(zip(sequences.steps.tolist(), sequences.lanes.tolist(), strict=True))
    assert len(seen) == len(set(seen))
    assert set(seen) == {(int(step), int(lane)) for step, lane in np.argwhere(batch.valid)}
    assert sorted(sequences.take(batch.rewards).tolist()) == sorted(batch.rows(batch.rewards).tolist())
    end = 0
    for s, size in enumerate(sequences.lengths.tolist()):
        begin, end = end, end + size
        steps, lane = sequences.steps[begin:end], int(sequences.lanes[begin])
        assert 0 < size <= LENGTH
        assert (sequences.lanes[begin:end] == lane).all()
        assert np.array_equal(steps, steps[0] + np.arange(size))  # in order, without a gap
        assert not batch.episode_start[steps[1:], lane].any()
        if steps[0] == 0:
            expected = batch.policy_state["count"][lane]
        elif batch.episode_start[steps[0], lane]:
            expected = -7
        else:
            assert steps[0] % LENGTH == 0
            expected = _inner_count(collected, steps[0], lane)
        assert sequences.policy_state["count"][s] == expected
    assert end == len(seen)


def _inner_count(collected: list[Fragment], step: int, lane: int) -> int:
    for one in collected:
        if lane < one.rewards.shape[1]:
            return int(one.inner_states["count"][step // LENGTH - 1, lane])
        lane -= one.rewards.shape[1]
    raise AssertionError


def test_a_sequence_by_hand() -> None:
    """Lane 0 plays one episode on from its 3rd step; lane 1 starts one at step 0 and another at step 3."""
    one = fragment(0, 5, 2, False)
    one.episode_start[:] = np.array([[0, 1], [0, 0], [0, 0], [0, 1], [0, 0]], bool)
    one.sequence_length = 2
    one.policy_state["count"][:] = [3, 0]
    one.inner_states["count"] = np.array([[5, 2], [7, 1]])
    sequences = join([one]).sequences()
    assert sequences.lengths.tolist() == [2, 2, 1, 2, 1, 1, 1]
    assert sequences.lanes.tolist() == [0] * 5 + [1] * 5
    assert sequences.steps.tolist() == [0, 1, 2, 3, 4] * 2
    assert sequences.policy_state["count"].tolist() == [3, 5, 7, 0, 2, 0, 1]


def test_sequences_of_a_recurrent_policy_begin_with_its_state() -> None:
    """Unrolled from the state where a sequence begins, the counts are those that were recorded when acting."""
    with CountingPPO(env=probes.Walk, config={**SMALL, "num_workers": 0, "env_config": {"length": 9}}) as trainer:
        seen = watched(trainer)
        for _ in range(3):
            trainer.train()
        sequences = (batch := join(seen)).sequences(trainer.get_policy().initial_state)
        unrolled = [
            count + step
            for count, length in zip(sequences.policy_state["count"], sequences.lengths, strict=True)
            for step in range(length)
        ]
        assert unrolled == sequences.take(batch.extras["count"]).tolist()
        assert (sequences.policy_state["count"] > 0).any()


def test_a_batch_has_the_masks_and_states_of_its_fragments() -> None:
    with MaskedCountingPPO(env=Maze, config={**SMALL, "num_workers": 0}) as trainer:
        seen = watched(trainer)
        trainer.train()
        batch = join(seen[:4])
        assert batch.action_mask is not None
        assert batch.action_mask.shape == (7, 8, 3)
        assert np.array_equal(batch.action_mask[:, 2:4], seen[1].action_mask)  # type: ignore[arg-type]
        assert np.array_equal(batch.last_policy_state["count"][4:6], seen[2].last_policy_state["count"])


@pytest.mark.parametrize("complete", [False, True])
def test_parts_are_the_same_steps(complete: bool) -> None:
    collected = [fragment(seed, 4 + seed, 2 + seed, complete) for seed in range(3)]
    batch = join(collected)
    rows: list[Any] = []
    for part, lanes in batch.parts():
        assert np.array_equal(part.rewards, batch.rewards[: len(part.rewards), lanes])
        rows += part.rows(part.rewards).tolist()
    assert sorted(rows) == sorted(batch.rows(batch.rewards).tolist())
    assert [part.shape for part in batch.observation_parts(0)] == [f.observations[0].shape for f in collected]
    assert len(batch.subsample(0, 10_000)) == batch.steps
