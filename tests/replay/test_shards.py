"""A replay buffer over several actors draws as one does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outplay.replay import ReplaySpec, ShardedReplay
from tests.replay.fragments import NUMBERS, numbered


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
