"""Maze: the goal is far away, and the only reward is there. For curricula."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium import spaces

from outplay.envs.tasks import TaskSettableEnv
from outplay.errors import ConfigError

_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
_WALL, _FLOOR, _GOAL, _SEEKER = (40, 44, 52), (236, 239, 244), (163, 190, 140), (191, 97, 106)
_PIXELS = 16  # of a cell in a rendered image

Cell = tuple[int, int]


class Maze(TaskSettableEnv[Any, Any]):
    """A seeker looks for the goal of a maze. The reward is 1 at the goal, else 0.

    The task is the distance of the start from the goal, in steps: the start is a random cell at this distance. Without
    a task, or if no cell is that far, it is the largest distance (`distances[-1]`). Episodes are truncated after
    `max_steps`. A random walk from the farthest cell hardly ever reaches the goal in that time.

    Mazes have one path between any two cells. `layout` selects one of them: equal layouts are equal mazes. The
    observation is the number of the seeker's cell, row by row.

    >>> levels = {"levels": [2, 4, 8, 16, 32], "promote_when": {"episode_return_mean": 0.8}}
    >>> trainer = PPO("outplay.envs.examples:Maze", curriculum=levels)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, size: int = 8, layout: int = 0, max_steps: int = 100, render_mode: str | None = None) -> None:
        if size < 2:
            raise ConfigError(f"Maze: size must be at least 2, not {size}")
        self.size, self.max_steps, self.render_mode = size, max_steps, render_mode
        self.observation_space = spaces.Discrete(size * size)
        self.action_space = spaces.Discrete(4)
        self.goal: Cell = (0, 0)
        self._doors = _carved(size, np.random.default_rng(layout))
        self._cells = _by_distance(self._doors, self.goal)
        self._task = self.distances[-1]

    @property
    def distances(self) -> list[int]:
        """The distances from the goal at which there are cells, without 0."""
        return sorted(self._cells)[1:]

    def get_task(self) -> int:
        return self._task

    def set_task(self, task: int) -> None:
        if not isinstance(task, int) or task < 1:
            raise ConfigError(f"Maze: a task is the distance of the start from the goal, at least 1, not {task!r}")
        self._task = min(task, self.distances[-1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        starts = self._cells[self._task]
        self._seeker = starts[int(self.np_random.integers(len(starts)))]
        self._steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        there = _neighbour(self._seeker, _MOVES[int(action)])
        if there in self._doors[self._seeker]:
            self._seeker = there
        self._steps += 1
        is_there = self._seeker == self.goal
        return self._observation(), float(is_there), is_there, not is_there and self._steps >= self.max_steps, {}

    def _observation(self) -> int:
        return self._seeker[0] * self.size + self._seeker[1]

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        image = np.full((2 * self.size + 1, 2 * self.size + 1, 3), _WALL, np.uint8)
        for (row, column), doors in self._doors.items():
            image[2 * row + 1, 2 * column + 1] = _FLOOR
            for other_row, other_column in doors:
                image[row + other_row + 1, column + other_column + 1] = _FLOOR
        for (row, column), colour in ((self.goal, _GOAL), (self._seeker, _SEEKER)):
            image[2 * row + 1, 2 * column + 1] = colour
        return image.repeat(_PIXELS, 0).repeat(_PIXELS, 1)


def _neighbour(cell: Cell, move: tuple[int, int]) -> Cell:
    return cell[0] + move[0], cell[1] + move[1]


def _carved(size: int, rng: np.random.Generator) -> dict[Cell, set[Cell]]:
    """For each cell, the neighbours that can be reached: a depth-first walk through all cells carves the maze."""
    doors: dict[Cell, set[Cell]] = {(row, column): set() for row in range(size) for column in range(size)}
    path = [(0, 0)]
    seen = set(path)
    while path:
        cell = path[-1]
        unseen = [there for move in _MOVES if (there := _neighbour(cell, move)) in doors and there not in seen]
        if not unseen:
            path.pop()
            continue
        there = unseen[int(rng.integers(len(unseen)))]
        doors[cell].add(there)
        doors[there].add(cell)
        seen.add(there)
        path.append(there)
    return doors


def _by_distance(doors: dict[Cell, set[Cell]], goal: Cell) -> dict[int, list[Cell]]:
    """The cells at each distance from the goal, in a fixed order."""
    distances, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for there in sorted(doors[cell] - distances.keys()):
            distances[there] = distances[cell] + 1
            queue.append(there)
    found: dict[int, list[Cell]] = {}
    for cell, distance in distances.items():
        found.setdefault(distance, []).append(cell)
    return found
