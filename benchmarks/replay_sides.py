"""Sides of replay.py that stand alone: Stable-Baselines3's buffer, and a deque of tuples as tutorials have it.

    python benchmarks/replay_sides.py sb3 vector|atari
    python benchmarks/replay_sides.py deque vector|atari

Prints one line of JSON: steps added per second and transitions drawn per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

LANES, STEPS, BATCH = 8, 2_000, 256
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {"vector": ((8,), np.float32), "atari": ((4, 84, 84), np.uint8)}
SECONDS = 1.0


def experience(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Observations (STEPS, LANES, …) of which each follows the one before, actions, rewards, ends."""
    rng = np.random.default_rng(0)
    shape, dtype = SHAPES[kind]
    if kind == "atari":
        frames = rng.integers(0, 255, (STEPS + 3, LANES, *shape[1:]), dtype=np.uint8)
        observations = np.stack([frames[k : k + STEPS] for k in range(4)], 2)
    else:
        observations = rng.normal(size=(STEPS, LANES, *shape)).astype(dtype)
    ends = rng.random((STEPS, LANES)) < 0.005
    return observations, rng.integers(0, 4, (STEPS, LANES)), rng.random((STEPS, LANES)).astype(np.float32), ends


def rate(function: Callable[[], int]) -> float:
    """What the function counts, per second."""
    function()
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < SECONDS:
        count += function()
    return count / passed


def sb3(kind: str) -> dict[str, float]:
    import gymnasium
    from stable_baselines3.common.buffers import ReplayBuffer

    shape, dtype = SHAPES[kind]
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    space = gymnasium.spaces.Box(low, high, shape, dtype)  # type: ignore[arg-type]
    buffer = ReplayBuffer(STEPS * LANES, space, gymnasium.spaces.Discrete(4), device="cpu", n_envs=LANES)
    observations, actions, rewards, ends = experience(kind)
    infos: list[dict[str, Any]] = [{} for _ in range(LANES)]

    def add() -> int:
        for t in range(STEPS - 1):
            buffer.add(observations[t], observations[t + 1], actions[t], rewards[t], ends[t], infos)
        return (STEPS - 1) * LANES

    def draw() -> int:
        buffer.sample(BATCH)
        return BATCH

    return {"added": rate(add), "drawn": rate(draw)}


def tuples(kind: str) -> dict[str, float]:
    buffer: deque[Any] = deque(maxlen=STEPS * LANES)
    observations, actions, rewards, ends = experience(kind)
    dtype = SHAPES[kind][1]
    rng = np.random.default_rng(0)

    def add() -> int:
        for lane in range(LANES):
            state = observations[0, lane].astype(dtype)
            for t in range(STEPS - 1):
                next_state = observations[t + 1, lane].astype(dtype)  # a copy of its own, as a step returns it
                buffer.append((state, actions[t, lane], rewards[t, lane], next_state, ends[t, lane]))
                state = next_state
        return (STEPS - 1) * LANES

    def draw() -> int:
        columns: list[list[Any]] = [[], [], [], [], []]
        for i in rng.choice(len(buffer), BATCH):
            for column, part in zip(columns, buffer[i], strict=True):
                column.append(np.asarray(part))
        for column in columns:
            np.array(column)
        return BATCH

    return {"added": rate(add), "drawn": rate(draw)}


if __name__ == "__main__":
    print(json.dumps({"sb3": sb3, "deque": tuples}[sys.argv[1]](sys.argv[2])))
