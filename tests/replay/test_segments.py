"""Segments of a replay buffer: what was saved comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outplay.replay import Replay, ReplaySpec
from tests.replay.fragments import IMAGES, NUMBERS, numbered, steps_of, stored


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
