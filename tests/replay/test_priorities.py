"""Priorities: the sum tree, and drawing in proportion to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.replay import PrioritizedReplay, SumTree
from tests.replay.fragments import NUMBERS, numbered


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
