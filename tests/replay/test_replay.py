"""Replay: n-step returns by hand, frames stored once, lanes at their own pace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.fragments import Fragment
from outplay.replay import Replay, ReplaySpec, ShardedReplay
from outplay.spaces import leaves
from tests.replay.fragments import IMAGES, NUMBERS, at, fragment_of, numbered, steps_of, stored


def test_three_steps_ahead() -> None:
    replay = Replay(NUMBERS, {0: 1}, 20, n_step=3, gamma=0.5)
    replay.add(numbered(0, 10, starts=[0]))
    found = at(replay, 2)
    assert found.observations[0].tolist() == [[2.0]]
    assert found.rewards.tolist() == [2 + 0.5 * 3 + 0.25 * 4]
    assert found.next_observations[0].tolist() == [[5.0]]
    assert found.discounts.tolist() == [0.125]
    assert found.actions.tolist() == [2]


def test_a_termination_ends_the_sum_and_nothing_follows() -> None:
    replay = Replay(NUMBERS, {0: 1}, 20, n_step=3, gamma=0.5)
    replay.add(numbered(0, 10, starts=[0, 4], terminated=[3]))
    found = at(replay, 1, 2, 3, 4)
    assert found.rewards.tolist() == [1 + 1 + 0.75, 2 + 1.5, 3, 4 + 2.5 + 1.5]
    assert found.discounts.tolist() == [0, 0, 0, 0.125]


def test_after_a_truncation_comes_the_final_observation() -> None:
    replay = Replay(NUMBERS, {0: 1}, 20, n_step=3, gamma=0.5)
    replay.add(numbered(0, 10, starts=[0, 4], truncated=[3], finals=[[77.0]]))
    found = at(replay, 0, 2, 3)
    assert found.rewards.tolist() == [0 + 0.5 + 0.5, 2 + 1.5, 3]
    assert found.next_observations[0].tolist() == [[3.0], [77.0], [77.0]]
    assert found.discounts.tolist() == [0.125, 0.25, 0.5]


def test_the_oldest_steps_make_way() -> None:
    replay = Replay(NUMBERS, {0: 1}, 8, n_step=2)
    for first in range(0, 20, 4):
        replay.add(numbered(first, 4, starts=[0] if first == 0 else []))
    assert (replay.oldest[0], replay.newest[0], len(replay)) == (12, 18, 6)
    drawn = replay.sample(500, np.random.default_rng(0))
    assert set(drawn.observations[0].ravel().tolist()) == {12, 13, 14, 15, 16, 17}


def frames(times: range, begin: int, before: tuple[int, int]) -> np.ndarray:
    """Stacks of three frames, each filled with its number; those before the episode are what a reset showed."""
    known = {begin - 2: before[0], begin - 1: before[1]}
    return np.array([[np.full((12, 12), known.get(t - 2 + k, t - 2 + k), np.uint8) for k in range(3)] for t in times])


def test_frames_are_stored_once_and_stacked_again() -> None:
    replay = Replay(IMAGES, {0: 1}, 40, stack=3)
    assert replay.observations[0].shape == (40, 1, 12, 12)
    first, second = frames(range(10, 20), 10, (200, 201)), frames(range(20, 32), 20, (220, 220))
    whole = np.concatenate([first, second])
    replay.add(
        fragment_of(whole, np.zeros(22), starts=[0, 10], truncated=[9], finals=[frames(range(20, 21), 0, (0, 0))[0]])
    )
    found = at(replay, *range(21))
    assert np.array_equal(found.observations[0], whole[:21])
    assert found.next_observations[0][9, :, 0, 0].tolist() == [18, 19, 20]  # not the next episode's
    assert np.array_equal(found.next_observations[0][:9], whole[1:10])
    assert np.array_equal(found.next_observations[0][10:20], whole[11:21])


def test_a_million_steps_of_atari_fit_into_8_gigabytes() -> None:
    replay = Replay(leaves(gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)), {0: 16}, 1_000_000, stack=4)
    arrays = (*replay.observations, replay.actions, replay.rewards, replay.terminated, replay.truncated, replay.began)
    assert sum(array.nbytes for array in arrays) < 8e9


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**16))
@settings(deadline=None, max_examples=30)
def test_a_drawn_transition_is_one_that_happened(n_step: int, lanes: int, seed: int) -> None:
    """Many random batches through a small ring, against the whole history."""
    rng = np.random.default_rng(seed)
    replay = Replay(NUMBERS, {0: lanes}, 24 * lanes, n_step=n_step, gamma=0.9)
    history: dict[str, list[np.ndarray]] = {"rewards": [], "terminated": [], "truncated": []}
    finals: dict[tuple[int, int], float] = {}
    number, starts = 0, np.ones(lanes, bool)
    for _ in range(8):
        steps = 5
        rewards = rng.normal(size=(steps, lanes)).astype(np.float32)
        terminated, truncated = rng.random((2, steps, lanes)) < 0.15
        episode_start = np.concatenate([starts[None], (terminated | truncated)[:-1]])
        starts = (terminated | truncated)[-1]
        observations = (number + np.arange(steps)[:, None] + 1000.0 * np.arange(lanes)).astype(np.float32)[..., None]
        ends = np.argwhere(truncated & ~terminated)
        for step, lane in ends.tolist():
            finals[number + step, lane] = -float(number + step)
        fragment = Fragment(
            0, 0, (observations,), np.zeros((steps, lanes), np.int64), rewards, terminated, truncated,
            np.ones((steps, lanes), bool), episode_start, {}, (observations[-1] + 1,),
            (np.array([[-float(number + step)] for step, _ in ends], np.float32).reshape(-1, 1),),
            ends[:, 0].astype(np.int64), ends[:, 1].astype(np.int64), number=number // steps,
        )  # fmt: skip
        replay.add(fragment)
        for name, values in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            history[name].append(values)
        number += steps
    rewards, terminated, truncated = (np.concatenate(history[name]) for name in history)
    drawn = replay.sample(40, rng)
    for i in range(40):
        seen = float(drawn.observations[0][i, 0])
        lane, time = int(seen // 1000), int(seen % 1000)
        total, discount, t = 0.0, 1.0, time
        for _ in range(n_step):
            total += discount * float(rewards[t, lane])
            discount *= 0.9
            if terminated[t, lane] or truncated[t, lane]:
                break
            t += 1
        assert drawn.rewards[i] == pytest.approx(total, abs=1e-5)
        if t < time + n_step and terminated[t, lane]:
            assert drawn.discounts[i] == 0
        else:
            assert drawn.discounts[i] == pytest.approx(discount, rel=1e-5)
            ended = t < time + n_step and truncated[t, lane]
            expected = finals[t, lane] if ended else t + 1000.0 * lane
            assert drawn.next_observations[0][i, 0] == expected


def test_groups_may_be_ahead_or_behind() -> None:
    rng = np.random.default_rng(0)
    replay = Replay(NUMBERS, {0: 2, 3: 1}, 60, n_step=2)
    for first in range(0, 30, 10):
        replay.add(steps_of(3, first, 10, rng, lanes=1))
    replay.add(steps_of(0, 0, 6, rng))
    assert replay.added.tolist() == [6, 6, 30]
    assert replay.newest.tolist() == [4, 4, 28]
    assert replay.oldest.tolist() == [0, 0, 10]
    assert (len(replay), replay.steps) == (4 + 4 + 18, 6 + 6 + 20)
    drawn = replay.sample(2000, rng).observations[0].ravel()
    _, counts = np.unique(drawn, return_counts=True)
    assert set(drawn.tolist()) == {*range(4), *range(100, 104), *range(3010, 3028)}
    assert counts.min() > 40  # about 77 each


@pytest.mark.parametrize("alpha", [None, 0.6])
@pytest.mark.usefixtures("process_engine")
def test_what_holds_too_little_is_not_drawn_from(alpha: float | None) -> None:
    """As after resuming with a larger `n_step`: many steps were added, few of them are there."""
    groups = {0: 1, 1: 1}

    def add(replay: Any, number: int) -> None:
        for group in groups:
            replay.add(replace(numbered(5 * number, 5, starts=[] if number else [0]), group=group))

    small = ReplaySpec(NUMBERS, 20, alpha=alpha).make(groups)
    for number in range(20):
        add(small, number)
    state, arrays = small.state()
    larger = ReplaySpec(NUMBERS, 400, n_step=30, alpha=alpha)
    for replay in (larger.make(groups), ShardedReplay(larger, groups, 2)):
        replay.load(state, arrays)
        for name, read in small.segments(()).items():
            replay.write(name, read())
        ready = []
        for number in range(20, 26):
            ready.append(replay.is_ready)
            add(replay, number)
        assert ready == [False] * 5 + [
            True
        ]  # 10 steps of each lane were kept, and the 31st makes one that can be drawn
        (drawn,) = replay.draw(4, [np.random.default_rng(0)])
        assert (drawn.observations[0] >= 90).all()


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("alpha", [None, 0.7])
def test_what_was_added_can_be_taken_back(images: bool, alpha: float | None) -> None:
    """In a ring that has gone round, with a Fragment that does not go on from the last: it is as it was."""
    spec = ReplaySpec(IMAGES if images else NUMBERS, 120, n_step=2, stack=3 if images else 1, alpha=alpha)
    rng, groups = np.random.default_rng(1), {0: 2, 1: 2}
    replay = spec.make(groups)
    for first in range(0, 48, 6):
        for group in groups:
            replay.add(steps_of(group, first, 6, rng, images=images))
    replay.update(replay.sample(8, rng).places, rng.normal(size=8))

    def all_of_it() -> list[Any]:
        state, arrays = replay.state()
        parts = [(name, array.tobytes()) for read in stored(replay).values() for name, array in read.items()]
        drawn = [replay.sample(16, np.random.default_rng(seed)).observations[0].tobytes() for seed in range(5)]
        return [state, {name: array.tobytes() for name, array in arrays.items()}, parts, drawn, len(replay)]

    before = all_of_it()
    back = replay.remember()
    for first in (48, 72):
        for group in groups:
            replay.add(steps_of(group, first, 6, rng, images=images))
        replay.update(replay.sample(8, rng).places, 100 * rng.normal(size=8))
    assert all_of_it() != before
    back()
    back()
    assert all_of_it() == before
