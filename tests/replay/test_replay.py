"""Replay: what is drawn is what was added, numbers worked out by hand, properties that must always hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.fragments import Fragment
from outplay.replay import PrioritizedReplay, Replay, ReplaySpec, ShardedReplay, SumTree
from outplay.spaces import leaves

NUMBERS = leaves(gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32))
IMAGES = leaves(gymnasium.spaces.Box(0, 255, (3, 12, 12), np.uint8))


def fragment_of(
    observations: Any, rewards: Any, terminated: Any = (), truncated: Any = (), starts: Any = (), finals: Any = ()
) -> Fragment:
    """Steps of one lane; `terminated`, `truncated` and `starts` are the steps where they are true."""
    steps = len(rewards)

    def marks(where: Any) -> np.ndarray:
        return np.isin(np.arange(steps), list(where))[:, None]

    stored = np.asarray(observations)[:, None]
    final = np.asarray(finals, stored.dtype).reshape(len(finals), *stored.shape[2:])
    return Fragment(
        group=0,
        version=0,
        observations=(stored,),
        actions=np.arange(steps)[:, None] % 3,
        rewards=np.asarray(rewards, np.float32)[:, None],
        terminated=marks(terminated),
        truncated=marks(truncated),
        valid=np.ones((steps, 1), bool),
        episode_start=marks(starts),
        extras={},
        last_observations=(stored[-1],),
        final_observations=(final,),
        final_steps=np.array(sorted(truncated), np.int64),
        final_lanes=np.zeros(len(final), np.int64),
    )


def numbered(first: int, steps: int, **more: Any) -> Fragment:
    """Observations and rewards that are the number of their step."""
    numbers = np.arange(first, first + steps, dtype=np.float32)
    following = (np.array([[first + steps]], np.float32),)
    return replace(fragment_of(numbers[:, None], numbers, **more), number=first // steps, last_observations=following)


def at(replay: Replay, *times: int) -> Any:
    return replay.transitions(np.array(times), np.zeros(len(times), np.int64), np.ones(len(times), np.float32))


# n-step returns by hand


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


# Frames stored once


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


# Priorities


def test_a_sum_tree_by_hand() -> None:
    tree = SumTree(5)
    tree.set(np.array([0, 1, 4]), np.array([1.0, 2.0, 4.0]))
    assert tree.total == 7
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99, 3.0, 6.99])).tolist() == [0, 0, 1, 1, 4, 4]
    tree.set(np.array([1]), np.array([0.0]))
    assert tree.total == 5
    assert tree.find(np.array([1.0])).tolist() == [4]


@pytest.mark.parametrize("size", [17, 70_000, 1_100_000])
def test_a_sum_tree_finds_what_a_sum_from_the_left_does(size: int) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 3, size).astype(float)  # without rounding; a third of them nothing
    tree = SumTree(size)
    tree.set(np.arange(size), np.ones(size))
    for some in np.array_split(rng.permutation(size), 3):
        tree.set(some, numbers[some])
    masses = np.append(rng.random(1000), [0.0, np.nextafter(1.0, 0)]) * numbers.sum()
    assert tree.total == numbers.sum()
    assert tree.find(masses).tolist() == np.searchsorted(np.cumsum(numbers), masses, side="right").tolist()


def test_a_sum_tree_is_the_same_however_its_numbers_came() -> None:
    rng = np.random.default_rng(1)
    numbers = rng.random(70_000)
    at_once, in_parts = SumTree(len(numbers)), SumTree(len(numbers))
    at_once.set(np.arange(len(numbers)), numbers)
    for some in np.array_split(rng.permutation(len(numbers)), 50):
        in_parts.set(some, rng.random(len(some)))
        in_parts.set(some, numbers[some])
    masses = rng.random(20_000) * at_once.total
    assert in_parts.total == at_once.total
    assert np.array_equal(in_parts.find(masses), at_once.find(masses))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=70), st.data())
@settings(deadline=None)
def test_a_sum_tree_is_a_list_of_numbers(values: list[float], data: Any) -> None:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    places = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20, unique=True))
    for place in places:
        values[place] = data.draw(st.floats(0, 1e6))
    if places:
        tree.set(np.array(places), np.array([values[place] for place in places]))
    assert tree.total == pytest.approx(sum(values))
    if tree.total > 0:
        found = tree.find(np.array([0.0, 0.3, 0.999]) * tree.total)
        assert all(values[place] > 0 for place in found)


def test_drawing_follows_the_priorities() -> None:
    replay = PrioritizedReplay(NUMBERS, {0: 1}, 20, alpha=0.5)
    replay.add(numbered(0, 5, starts=[0]))  # 4 of them can be drawn
    replay.update(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]) - 1e-6)
    drawn = replay.sample(10_000, np.random.default_rng(0), beta=1.0)
    steps, counts = np.unique(drawn.observations[0].ravel(), return_counts=True)
    assert steps.tolist() == [0, 1, 2, 3]
    assert counts == pytest.approx([1000, 2000, 3000, 4000], abs=2)  # stratified
    # chance 0.1, 0.2, 0.3, 0.4 of 4 steps: weights 1/(4p), the largest made 1
    by_step = {int(o): w for o, w in zip(drawn.observations[0].ravel(), drawn.weights, strict=True)}
    assert by_step == pytest.approx({0: 1.0, 1: 1 / 2, 2: 1 / 3, 3: 1 / 4}, rel=1e-5)


def test_new_steps_have_the_highest_priority_and_old_ones_none() -> None:
    replay = PrioritizedReplay(NUMBERS, {0: 1}, 8, n_step=2, alpha=1.0)
    for first in range(0, 24, 3):
        replay.add(numbered(first, 3, starts=[0] if first == 0 else []))
        if first == 6:
            replay.update(np.array([6, 7]), np.array([5.0 - 1e-6, 9.0]))  # 7 cannot be drawn yet
        drawable = {time % 8 for time in range(replay.oldest[0], replay.newest[0])}
        assert {place for place in range(8) if replay.tree[np.array([place])][0] > 0} == drawable
    assert replay.highest == pytest.approx(5.0)
    assert replay.tree.total == pytest.approx(5.0 * 6)
    drawn = replay.sample(600, np.random.default_rng(1))
    assert set(drawn.observations[0].ravel().tolist()) == {16.0, 17.0, 18.0, 19.0, 20.0, 21.0}


# Sequences


def test_sequences_are_steps_in_a_row() -> None:
    replay = Replay(NUMBERS, {0: 1}, 30)
    replay.add(numbered(0, 20, starts=[0, 7], terminated=[6]))
    drawn = replay.sequences(50, 6, np.random.default_rng(0))
    assert drawn.observations[0].shape == (6, 50, 1)
    begins = drawn.observations[0][0, :, 0]
    assert np.array_equal(drawn.observations[0][..., 0], begins + np.arange(6)[:, None])
    assert np.array_equal(drawn.episode_start, np.isin(drawn.observations[0][..., 0], (0, 7)))
    assert {0.0, 14.0} <= set(begins.tolist())


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


# Lanes that move on at their own pace, and segments


def steps_of(
    group: int, first: int, steps: int, rng: np.random.Generator, lanes: int = 2, images: bool = False
) -> Fragment:
    """Steps of a group whose episodes are five steps long; every second one is truncated."""
    times = first + np.arange(steps)
    ends = np.broadcast_to((times % 5 == 4)[:, None], (steps, lanes))
    truncated = ends & (times // 5 % 2 == 1)[:, None]
    if images:
        frames = np.stack(
            [np.maximum(times - back, times // 5 * 5) for back in (2, 1, 0)], 1
        )  # as at a reset: repeated
        seen = np.broadcast_to(frames[:, None, :, None, None], (steps, lanes, 3, 12, 12)).astype(np.uint8)
    else:
        seen = (times[:, None, None] + 1000.0 * group + 100.0 * np.arange(lanes)[:, None]).astype(np.float32)
    where = np.argwhere(truncated)
    finals = np.array([seen[t, lane] + 1 for t, lane in where], seen.dtype).reshape(len(where), *seen.shape[2:])
    return Fragment(
        group, 0, (seen,), rng.integers(0, 3, (steps, lanes)), rng.normal(size=(steps, lanes)).astype(np.float32),
        ends & ~truncated, truncated, np.ones((steps, lanes), bool),
        np.broadcast_to((times % 5 == 0)[:, None], ends.shape), {}, (seen[-1] + 1,), (finals,),
        where[:, 0], where[:, 1], number=first // steps,
    )  # fmt: skip


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


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("alpha", [None, 0.7])
def test_what_was_saved_comes_back(images: bool, alpha: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a ring that has gone round, with segments of a few steps, of which most are written once."""
    monkeypatch.setattr("outplay.replay.ring._SEGMENT_BYTES", 2000 if images else 100)
    spec = ReplaySpec(IMAGES if images else NUMBERS, 120, n_step=2, stack=3 if images else 1, alpha=alpha)
    rng, groups = np.random.default_rng(1), {0: 2, 1: 2}
    replay = spec.make(groups)
    disk: dict[str, Any] = {}
    written = []
    for first in range(0, 90, 6):
        for group in groups:
            replay.add(steps_of(group, first, 6, rng, images=images))
        if first > 6:
            drawn = replay.sample(8, rng)
            replay.update(drawn.places, rng.normal(size=8))
        segments = replay.segments(set(disk))
        written.append(len(set(segments) - set(disk)))
        disk = {name: disk[name] if name in disk else read() for name, read in segments.items()}
    assert max(written) <= 2 * (6 // replay._segment_length + 2)
    assert len(disk) > max(written)
    again = spec.make(groups)
    again.load(*replay.state())
    for name in sorted(disk):
        again.write(name, disk[name])
    for seed in range(20):
        mine, theirs = (r.sample(16, np.random.default_rng(seed), 0.5) for r in (again, replay))
        assert mine.observations[0].tobytes() == theirs.observations[0].tobytes()
        assert mine.next_observations[0].tobytes() == theirs.next_observations[0].tobytes()
        for name in ("actions", "rewards", "discounts", "weights", "places"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name))
    for group in groups:  # and both go on alike
        fragment = steps_of(group, 90, 6, rng, images=images)
        replay.add(fragment)
        again.add(fragment)
    assert replay.state()[0] == again.state()[0]
    assert [d.tobytes() for d in replay.state()[1].values()] == [d.tobytes() for d in again.state()[1].values()]


def stored(replay: Replay) -> dict[str, Any]:
    """What a checkpoint would hold."""
    return {name: read() for name, read in replay.segments(()).items()}


def loaded(spec: ReplaySpec, replay: Replay, groups: dict[int, int]) -> Replay:
    again = spec.make(groups)
    again.load(*replay.state())
    for name, arrays in sorted(stored(replay).items()):
        again.write(name, arrays)
    return again


@pytest.mark.parametrize("capacity", [24, 400])
def test_a_replay_of_another_size_takes_what_there_is(capacity: int) -> None:
    rng = np.random.default_rng(0)
    spec = ReplaySpec(NUMBERS, 60, alpha=0.5)
    replay = spec.make({0: 2})
    for first in range(0, 60, 10):  # it has gone round: steps 30 to 59 are left
        replay.add(steps_of(0, first, 10, rng))
    again = loaded(replace(spec, capacity=capacity), replay, {0: 2})
    oldest = 48 if capacity == 24 else 30
    assert again.steps == 2 * (60 - oldest)
    for batch in (again.sample(500, rng), again.sample(500, rng, 0.5)):
        assert set(batch.observations[0].ravel() % 100) == set(range(oldest, 59))
    for first in range(60, 90, 10):
        again.add(steps_of(0, first, 10, rng))
    assert again.steps == (24 if capacity == 24 else 2 * 60)
    assert min(again.sample(900, rng).observations[0].ravel() % 100) == (78 if capacity == 24 else oldest)


def test_priorities_stay_with_their_steps_if_n_changes() -> None:
    spec = ReplaySpec(NUMBERS, 60, n_step=3, alpha=1.0)
    replay = spec.make({0: 1})
    replay.add(numbered(0, 10, starts=[0]))
    replay.update(np.arange(7), np.arange(1.0, 8.0) - 1e-6)
    again = loaded(replace(spec, n_step=1), replay, {0: 1})
    assert again.tree[np.arange(10)].tolist() == pytest.approx([1, 2, 3, 4, 5, 6, 7, 7, 7, 0])  # new ones: the highest
    fewer = loaded(replace(spec, n_step=5), replay, {0: 1})
    assert fewer.tree[np.arange(10)].tolist() == pytest.approx([1, 2, 3, 4, 5, 0, 0, 0, 0, 0])
    plain = loaded(replace(spec, alpha=None), replay, {0: 1})
    assert loaded(spec, plain, {0: 1}).tree[np.arange(10)].tolist() == pytest.approx([7.0] * 7 + [0] * 3)


@pytest.mark.parametrize("images", [False, True])
def test_what_does_not_go_on_was_cut_off(images: bool) -> None:
    """A Fragment is missing, or an environment began anew: nothing is learned from what did not happen."""
    rng = np.random.default_rng(0)
    replay = Replay(IMAGES if images else NUMBERS, {0: 2}, 80, n_step=2, stack=3 if images else 1)
    replay.add(steps_of(0, 0, 8, rng, images=images))
    later = steps_of(0, 16, 8, rng, images=images)  # steps 8 to 15 are missing
    replay.add(later)
    assert replay.truncated[7].all()
    found = replay.transitions(np.array([6, 7, 8, 9]), np.zeros(4, np.int64), np.ones(4, np.float32))
    newest = found.next_observations[0].reshape(4, -1)[:, -1]
    assert newest.tolist() == [8, 8, 18, 19]
    assert np.array_equal(found.observations[0][2:], later.observations[0][:2, 0])  # with their own frames before them
    assert found.discounts.tolist() == pytest.approx([0.99**2, 0.99, 0.99**2, 0.99**2])
    whole = {name for name in replay.segments(()) if not name.endswith("-open")}
    replay.add(replace(steps_of(0, 25, 5, rng, images=images), number=3))  # the next one, but it begins anew
    assert replay.truncated[15].all()
    assert whole <= set(replay.segments(()))


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


# In shards


def of_groups(replay: Any, fragments: int, groups: int = 3) -> None:
    """EnvGroup g has the steps 1000 g, 1000 g + 1, …; Fragments of five steps."""
    for number in range(fragments):
        for group in range(groups):
            fragment = numbered(5 * number, 5, starts=[] if number else [0])
            shifted = tuple(leaf + 1000 * group for leaf in fragment.observations)
            last = tuple(leaf + 1000 * group for leaf in fragment.last_observations)
            replay.add(replace(fragment, group=group, observations=shifted, last_observations=last))


def drawn_from(replay: Any, updates: int, beta: float = 1.0, first: int = 0) -> tuple[Any, list[Any]]:
    """(the steps drawn, each minibatch) of minibatches of 30."""
    batches = list(replay.draw(30, [np.random.default_rng(first + i) for i in range(updates)], beta))
    return np.concatenate([batch.observations[0].ravel() for batch in batches]), batches


@pytest.mark.usefixtures("process_engine")
def test_shards_are_drawn_from_in_proportion_to_what_they_hold() -> None:
    """Three EnvGroups on two shards: a third each, where by turns it would be 25, 50 and 25 %."""
    replay = ShardedReplay(ReplaySpec(NUMBERS, 300), {0: 1, 1: 1, 2: 1}, 2)
    of_groups(replay, 4)
    steps, batches = drawn_from(replay, 200)
    assert len(steps) == 200 * 30
    assert np.bincount((steps // 1000).astype(int)) == pytest.approx([2000] * 3, rel=0.05)
    counts = np.unique(steps, return_counts=True)[1]
    assert len(counts) == 3 * 19  # the last of each 20 leads to something unknown
    assert counts == pytest.approx([6000 / 57] * 57, rel=0.4)
    assert all((batch.weights == 1).all() for batch in batches)
    for batch in batches[:20]:  # places lead back to where they were drawn
        shards = np.where(batch.observations[0].ravel() // 1000 == 1, 1, 0)
        assert (batch.places % 2 == shards).all()
    again = ShardedReplay(ReplaySpec(NUMBERS, 300), {0: 1, 1: 1, 2: 1}, 2)
    of_groups(again, 4)
    assert drawn_from(again, 200)[0].tobytes() == steps.tobytes()


@pytest.mark.usefixtures("process_engine")
def test_shards_with_priorities_draw_and_weigh_as_one_replay_does() -> None:
    """By hand: EnvGroup 1 is alone on its shard, with priorities 9 against 1 and 2 on the other; α = 1."""
    priorities = {0: 1.0, 1: 9.0, 2: 2.0}
    spec = ReplaySpec(NUMBERS, 300, alpha=1.0)
    chance = {group: priority / (12 * 19) for group, priority in priorities.items()}
    for replay in (spec.make({0: 1, 1: 1, 2: 1}), ShardedReplay(spec, {0: 1, 1: 1, 2: 1}, 2)):
        of_groups(replay, 4)
        for first in range(0, 180, 3):  # until each was drawn
            for batch in drawn_from(replay, 3, first=first)[1]:
                groups = (batch.observations[0].ravel() // 1000).astype(int)
                replay.update(batch.places, np.array([priorities[group] for group in groups]) - 1e-6)
        every = {name: array for name, array in replay.state()[1].items() if name.startswith("priorities")}
        for group, priority in priorities.items():
            assert every[f"priorities.{group}"] == pytest.approx([priority] * 19)
        for beta in (1.0, 0.5):
            steps, batches = drawn_from(replay, 300, beta)
            share = np.bincount((steps // 1000).astype(int)) / len(steps)
            assert share == pytest.approx([1 / 12, 9 / 12, 2 / 12], rel=0.06)
            for batch in batches:
                raw = np.array([(57 * chance[int(step) // 1000]) ** -beta for step in batch.observations[0].ravel()])
                assert batch.weights == pytest.approx(raw / raw.max(), rel=1e-5)


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
