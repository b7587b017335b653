"""Replay: steps added and transitions drawn per second, beside Stable-Baselines3's buffer and a deque of tuples.

    python benchmarks/replay.py [--rounds 3]

8 environments, 16,000 steps kept, 256 transitions drawn at a time; observations of 8 numbers, and Atari's 84 × 84 × 4.
Each side runs in a process of its own; figures are medians over the rounds. Outplay takes steps in as it collects them,
64 of each environment at a time; it keeps each frame of Atari's once, the others keep each stack twice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from others import call, install
from replay_sides import BATCH, LANES, SHAPES, STEPS, experience, rate

HERE = Path(__file__).resolve().parent
SIDES = ("outplay", "prioritized", "sb3", "deque")
TITLES = ("Outplay", "Outplay, by priority", "Stable-Baselines3", "deque of tuples")
AT_A_TIME = 64


def ours(kind: str, prioritized: bool) -> dict[str, float]:
    import gymnasium

    from outplay.fragments import Fragment
    from outplay.replay import PrioritizedReplay, Replay
    from outplay.spaces import leaves

    shape, dtype = SHAPES[kind]
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8) if dtype == np.uint8 else gymnasium.spaces.Box(-9, 9, shape)
    observations, actions, rewards, ends = experience(kind)
    stack = 4 if kind == "atari" else 1
    cls = PrioritizedReplay if prioritized else Replay
    replay = cls(leaves(space), {0: LANES}, STEPS * LANES, stack=stack)
    starts = np.concatenate([np.ones((1, LANES), bool), ends[:-1]])

    def fragment(begin: int) -> Fragment:
        part = slice(begin, begin + AT_A_TIME)
        nothing = np.zeros(0, np.int64)
        return Fragment(
            0, 0, (observations[part],), actions[part], rewards[part], ends[part], np.zeros_like(ends[part]),
            np.ones_like(ends[part]), starts[part], {}, (observations[part.stop],), (observations[:0, 0],),
            nothing, nothing, number=begin // AT_A_TIME,
        )  # fmt: skip

    fragments = [fragment(begin) for begin in range(0, STEPS - AT_A_TIME, AT_A_TIME)]
    rng, added = np.random.default_rng(0), 0
    fragments[-1] = replace(fragments[-1], last_observations=(observations[0],))

    def add() -> int:
        nonlocal added
        for each in fragments:  # round and round: the first one goes on from the last
            replay.add(replace(each, number=added))
            added += 1
        return len(fragments) * AT_A_TIME * LANES

    def draw() -> int:
        drawn = replay.sample(BATCH, rng)
        if isinstance(replay, PrioritizedReplay):
            replay.update(drawn.places, drawn.rewards)
        return BATCH

    return {"added": rate(add), "drawn": rate(draw)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(ours(args.side[1], args.side[0] == "prioritized")))
        return
    others = install("sb3")
    commands = {
        "outplay": [sys.executable, __file__, "--side", "outplay"],
        "prioritized": [sys.executable, __file__, "--side", "prioritized"],
        "sb3": [str(others), str(HERE / "replay_sides.py"), "sb3"],
        "deque": [sys.executable, str(HERE / "replay_sides.py"), "deque"],
    }
    load = os.getloadavg()[0]
    for kind in SHAPES:
        rounds = [
            {side: json.loads(call([*commands[side], kind]).splitlines()[-1]) for side in SIDES}
            for _ in range(args.rounds)
        ]
        for what in ("added", "drawn"):
            medians = {side: statistics.median(r[side][what] for r in rounds) for side in SIDES}
            print(f"{kind}, {what} per second")
            for side, title in zip(SIDES, TITLES, strict=True):
                over = "".join(f"{medians[side] / medians[other]:>10.1f}x {other}" for other in ("sb3", "deque"))
                print(f"  {title:22}{medians[side]:>14,.0f}{over if side in ('outplay', 'prioritized') else ''}")
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")


if __name__ == "__main__":
    main()
