"""Fragments made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from outplay.fragments import Fragment
from outplay.replay import Replay
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


def stored(replay: Replay) -> dict[str, Any]:
    """What a checkpoint would hold."""
    return {name: read() for name, read in replay.segments(()).items()}
