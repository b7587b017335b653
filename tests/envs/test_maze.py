"""The maze of outplay.envs.examples."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

import outplay
from outplay import ConfigError
from outplay.envs.examples import Maze


def distance(maze: Maze, start: int) -> int:
    """Steps from a cell to the goal, found by walking: every action in every cell."""
    seen, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for action in range(4):
            maze.reset(seed=0)
            maze._seeker = divmod(here, maze.size)
            there, reward, terminated, _, _ = maze.step(action)
            assert (reward == 1.0) == terminated == (there == 0)
            if there not in seen:
                seen[there] = seen[here] + 1
                queue.append(there)
    assert len(seen) == maze.size**2  # every cell can be reached
    return seen[0]


@pytest.mark.parametrize("layout", range(3))
def test_the_start_is_as_far_as_the_task_says(layout: int) -> None:
    maze = Maze(size=5, layout=layout)
    assert maze.get_task() == maze.distances[-1] > 8
    for task in maze.distances:
        maze.set_task(task)
        assert maze.get_task() == task
        starts = {maze.reset(seed=seed)[0] for seed in range(20)}
        assert {distance(maze, start) for start in starts} == {task}
    maze.set_task(1000)
    assert maze.get_task() == maze.distances[-1]


def test_a_layout_is_always_the_same_maze() -> None:
    images = [Maze(layout=layout, render_mode="rgb_array") for layout in (0, 0, 1)]
    for maze in images:
        maze.reset(seed=0)
    first, again, other = (maze.render() for maze in images)
    assert first is not None
    assert first.shape == (17 * 16, 17 * 16, 3)
    assert np.array_equal(first, again)  # type: ignore[arg-type]
    assert not np.array_equal(first, other)  # type: ignore[arg-type]


def test_an_episode_is_truncated_after_max_steps() -> None:
    maze = Maze(max_steps=5)
    maze.reset(seed=0)
    assert [maze.step(0)[2:4] for _ in range(5)] == [(False, False)] * 4 + [(False, True)]


def test_it_follows_the_api_and_is_deterministic() -> None:
    found = dict.fromkeys(kind for kind, _ in outplay.check_env("outplay.envs.examples:Maze"))
    assert "problem" not in found
    assert ("ok", "it has set_task(task): it can have a curriculum") in list(outplay.check_env(Maze))


@pytest.mark.parametrize("task", [0, -3, 2.5, "far", None])
def test_a_wrong_task_is_refused(task: object) -> None:
    with pytest.raises(ConfigError, match="a task is the distance of the start from the goal, at least 1, not"):
        Maze().set_task(task)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="size must be at least 2"):
        Maze(size=1)
