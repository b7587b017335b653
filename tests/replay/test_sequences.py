"""Sequences for recurrent networks: by hand, saved and loaded, undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outplay.fragments import Fragment
from outplay.replay import Recurrence, Replay, ReplaySpec, Sequences
from outplay.replay.checking import check_segment
from tests.replay.fragments import IMAGES, NUMBERS, numbered, steps_of, stored

INITIAL = {"h": np.full(2, -1.0, np.float32)}


def with_states(fragment: Fragment, first: int, every: int) -> Fragment:
    """With the state before step t of a lane: (t, lane)."""
    steps, lanes = fragment.rewards.shape

    def state(step: int) -> np.ndarray:
        return np.stack([np.full(lanes, first + step), np.arange(lanes)], -1).astype(np.float32)

    inner = [state(step) for step in range(every, steps, every)]
    return replace(
        fragment,
        policy_state={"h": state(0)},
        sequence_length=every,
        inner_states={"h": np.stack(inner)} if inner else {},
    )


def replay_of(steps: int, n_step: int = 1, burn_in: int = 2, **more: Any) -> Replay:
    """One lane with sequences of 4 steps, whose state was recorded before every fourth."""
    replay = Replay(NUMBERS, {0: 1}, 40, n_step, gamma=0.5, recurrence=Recurrence(INITIAL, 4, burn_in))
    replay.add(with_states(numbered(0, steps, **more), 0, 4))
    return replay


def at(replay: Replay, *times: int) -> Sequences:
    drawn = replay.starting_at(np.array(times), np.zeros(len(times), np.int64), np.ones(len(times), np.float32))
    assert isinstance(drawn, Sequences)
    return drawn


def test_burn_in_precedes_what_is_learned() -> None:
    drawn = at(replay_of(14, starts=[0], n_step=2), 4)
    assert drawn.burn_in[0].ravel().tolist() == [4, 5]
    assert drawn.burns_in.tolist() == [True]
    assert drawn.states[0].tolist() == [[4, 0]]  # before the burn-in
    assert drawn.observations[0].ravel().tolist() == [6, 7, 8, 9, 10]
    assert drawn.lengths.tolist() == [5]
    assert drawn.steps.tolist() == [0, 1, 2, 3]
    assert drawn.actions.tolist() == [0, 1, 2, 0]
    assert drawn.rewards.tolist() == [6 + 3.5, 7 + 4, 8 + 4.5, 9]
    assert drawn.ahead.tolist() == [2, 2, 2, 1]
    assert drawn.discounts.tolist() == [0.25, 0.25, 0.25, 0.5]
    assert drawn.places.tolist() == [4] * 4


def test_episodes_that_end_inside_by_hand() -> None:
    """Steps 0 … 5 terminate, 6 … 8 are truncated, 9 goes on."""
    replay = replay_of(14, starts=[0, 6, 9], terminated=[5], truncated=[8], finals=[[77.0]], n_step=2)
    first = at(replay, 0)
    assert first.observations[0].ravel().tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert not first.burns_in.any()  # an episode starts there
    assert first.states[0].tolist() == [[0, 0]]
    assert first.rewards.tolist() == [0.5, 2, 3.5, 5, 6.5, 5]
    assert first.discounts.tolist() == [0.25] * 4 + [0, 0]
    second = at(replay, 4)  # steps 4 and 5 are burn-in of an episode that ends there: left out
    assert second.observations[0].ravel().tolist() == [6, 7, 8, 77, 9, 10]
    assert second.lengths.tolist() == [4, 2]
    assert second.states[0].tolist() == [[-1, -1], [-1, -1]]
    assert not second.burns_in.any()
    assert second.burn_in[0].size == 0
    assert second.steps.tolist() == [0, 1, 2, 4]
    assert second.rewards.tolist() == [6 + 3.5, 7 + 4, 8, 9]
    assert second.ahead.tolist() == [2, 2, 1, 1]
    assert second.discounts.tolist() == [0.25, 0.25, 0.5, 0.5]
    both = at(replay, 0, 4)
    for name in ("lengths", "steps", "ahead", "rewards"):
        offset = 7 if name == "steps" else 0
        joined = [*getattr(first, name), *(getattr(second, name) + offset)]
        assert getattr(both, name).tolist() == joined


def test_without_burn_in() -> None:
    drawn = at(replay_of(14, starts=[0, 6], terminated=[5], burn_in=0), 4)
    assert drawn.observations[0].ravel().tolist() == [4, 5, 6, 6, 7, 8]
    assert drawn.lengths.tolist() == [3, 3]
    assert drawn.states[0].tolist() == [[4, 0], [-1, -1]]
    assert drawn.discounts.tolist() == [0.5, 0, 0.5, 0.5]
    assert not drawn.burns_in.any()


def test_returns_that_are_cut_at_rewards_do_not_cut_the_sequence() -> None:
    """`over` ends returns where the episode goes on."""
    replay = Replay(NUMBERS, {0: 1}, 40, 2, gamma=0.5, recurrence=Recurrence(INITIAL, 4, 0))
    fragment = with_states(numbered(0, 8, starts=[0]), 0, 4)
    replay.add(fragment, over=np.arange(8)[:, None] == 1)
    drawn = at(replay, 0)
    assert drawn.lengths.tolist() == [5]
    assert drawn.rewards.tolist() == [0.5, 1, 3.5, 3]
    assert drawn.discounts.tolist() == [0, 0, 0.25, 0.5]


def test_a_sequence_starts_where_a_state_was_recorded() -> None:
    replay = Replay(NUMBERS, {0: 2, 1: 1}, 60, recurrence=Recurrence(INITIAL, 4, 2))
    rng = np.random.default_rng(0)
    assert not replay.is_ready
    for first in range(0, 60, 6):  # states before 0, 4, 6, 10, 12, …
        for group, lanes in ((0, 2), (1, 1)):
            replay.add(with_states(steps_of(group, first, 6, rng, lanes), first, 4))
    assert len(replay) == 3 * 5  # 20 slots: before 40, 42, 46, 48 and 52 (54 + 6 is not known yet)
    drawn = replay.sample(300, rng)
    assert isinstance(drawn, Sequences)
    times, lanes = drawn.states[0][drawn.burns_in].T
    assert set(times.tolist()) <= {42, 46, 48, 52}
    firsts = drawn.observations[0][np.cumsum(drawn.lengths) - drawn.lengths][drawn.burns_in]
    assert np.array_equal(firsts.ravel() % 100, times + 2)
    assert set((firsts.ravel() % 1000 // 100 == lanes).tolist()) == {True}
    assert min(min(by_step) for by_step in replay.states) == 40  # older states are dropped


@pytest.mark.parametrize("alpha", [None, 0.7])
def test_what_was_saved_comes_back_and_what_is_undone_too(alpha: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.replay.ring._SEGMENT_BYTES", 100)
    spec = ReplaySpec(NUMBERS, 120, n_step=2, alpha=alpha, recurrence=Recurrence(INITIAL, 4, 2))
    rng, groups = np.random.default_rng(1), {0: 2, 1: 2}
    replay = spec.make(groups)

    def add(to: Replay, first: int, rng: np.random.Generator) -> None:
        for group in groups:
            to.add(with_states(steps_of(group, first, 6, rng), first, 4))

    def drawn(of: Replay, seed: int) -> dict[str, Any]:
        sample = of.sample(5, np.random.default_rng(seed), 0.5)
        return {n: [a.tobytes() for a in v] if isinstance(v, tuple) else v.tobytes() for n, v in vars(sample).items()}

    for first in range(0, 90, 6):
        add(replay, first, rng)
        if first > 12:
            sample = replay.sample(4, rng)
            replay.update(sample.places, rng.normal(size=len(sample.places)))
    again = spec.make(groups)
    again.load(*replay.state())
    for name, arrays in sorted(stored(replay).items()):
        again.write(name, arrays)
    for seed in range(20):
        assert drawn(again, seed) == drawn(replay, seed)
    before = [drawn(replay, seed) for seed in range(20)]
    undo = replay.remember()
    add(replay, 90, rng)
    sample = replay.sample(4, rng)
    replay.update(sample.places, np.full(len(sample.places), 100.0))
    assert [drawn(replay, seed) for seed in range(20)] != before
    undo()
    assert [drawn(replay, seed) for seed in range(20)] == before
    for other in (replay, again):
        add(other, 90, np.random.default_rng(5))
    assert drawn(replay, 0) == drawn(again, 0)
    assert replay.state()[0] == again.state()[0]


def test_frames_are_stacked_again() -> None:
    replay = Replay(IMAGES, {0: 1}, 40, stack=3, recurrence=Recurrence(INITIAL, 4, 2))
    replay.add(with_states(steps_of(0, 0, 20, np.random.default_rng(0), lanes=1, images=True), 0, 4))
    drawn = at(replay, 4)  # burn-in that ends with an episode, and the next episode, which is truncated after step 9
    assert drawn.observations[0][:, :, 0, 0].tolist() == [
        [5, 5, 5], [5, 5, 6], [5, 6, 7], [6, 7, 8], [7, 8, 9], [8, 9, 10]
    ]  # fmt: skip
    assert drawn.observations[0][-1].tolist() == replay.finals[0][9][0].tolist()
    assert at(replay, 12).burn_in[0][:, :, 0, 0].tolist() == [[10, 11, 12], [11, 12, 13]]


def test_states_of_a_damaged_checkpoint_are_refused() -> None:
    spec = ReplaySpec(NUMBERS, 60, recurrence=Recurrence(INITIAL, 4, 2))
    replay = spec.make({0: 2})
    replay.add(with_states(steps_of(0, 0, 20, np.random.default_rng(0)), 0, 4))
    [(name, arrays)] = stored(replay).items()
    check_segment(spec, 2, name, arrays, None)
    for damage, message in (
        ({"states.0": arrays["states.0"][:, :1]}, "states.0"),
        ({"states.0": arrays["states.0"][1:], "states.keys": arrays["states.keys"][1:]}, "states of some lanes"),
        ({"states.keys": arrays["states.keys"] + 100}, "a step that is not in it"),
    ):
        with pytest.raises(ValueError, match=message):
            check_segment(spec, 2, name, {**arrays, **damage}, None)


def test_the_priority_of_a_sequence() -> None:
    """R2D2: 0.9 times the largest TD error and 0.1 times their mean."""
    spec = ReplaySpec(NUMBERS, 40, alpha=1.0, recurrence=Recurrence(INITIAL, 4, 0))
    replay = spec.make({0: 1})
    replay.add(with_states(numbered(0, 14, starts=[0]), 0, 4))
    assert replay.state()[1]["priorities.0"].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]
    replay.update(np.repeat([4, 8], 4), np.array([1, -3, 0, 0, 2, 2, 2, 2]))
    assert replay.state()[1]["priorities.0"][[4, 8]] == pytest.approx([0.9 * 3 + 0.1, 2], abs=1e-5)
    drawn = replay.sample(10_000, np.random.default_rng(0))
    counts = np.bincount(drawn.places[::4], minlength=9)
    assert counts[[0, 4, 8]] / 10_000 == pytest.approx(np.array([1, 2.8, 2]) / 5.8, abs=0.01)
    # A buffer without priorities, with another burn-in: all sequences get the highest priority so far.
    plain = replace(spec, alpha=None).make({0: 1})
    plain.add(with_states(numbered(0, 14, starts=[0]), 0, 4))
    loaded = replace(spec, recurrence=Recurrence(INITIAL, 4, 2)).make({0: 1})
    loaded.load(*plain.state())
    for name, arrays in stored(plain).items():
        loaded.write(name, arrays)
    assert loaded.state()[1]["priorities.0"].tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
