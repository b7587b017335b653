"""The process engine against Ray, on one machine, in one run.

    make bench            or            python benchmarks/engine.py [--rounds 5] [--quick]

Both sides run the same two programs (calls; large objects), each in a process of its own, alternately, `--rounds`
times; each figure is the median over the rounds of the median within a round. Ratios are Ray's time over ours (how
many times faster).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

MODEL_FLOATS = 5 * 1024 * 1024 // 8  # 5 MB
SIDES = ("process", "ray")

# name, unit, whether less is better, the ratio that the process engine is to reach
FIGURES: dict[str, tuple[str, bool, float | None]] = {
    "start-up: init and a first task": ("s", True, 5),
    "call of an actor, there and back": ("µs", True, 10),
    "task, there and back": ("µs", True, None),
    "calls of an actor, one after another sent": ("1/s", False, None),
    "tasks, one after another sent": ("1/s", False, None),
    "put 5 MB and broadcast it to two actors": ("ms", True, 8),
    "return 5 MB from an actor": ("ms", True, None),
    "resident memory, driver and all it started": ("MB", True, None),
    "put an array of 1 GiB, the first": ("ms", True, 1),
    "put an array of 1 GiB, when one was let go": ("ms", True, 1),
    "put 100 MB of bytes, when some were let go": ("ms", True, 1),
    "get 100 MB of bytes": ("ms", True, 1),
}


def start(name: str) -> Any:
    if name == "process":
        import outplay as engine

        engine.init("process", num_cpus=2)
    else:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray as engine

        engine.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")
    return engine


def calls(name: str, quick: bool) -> dict[str, float]:
    begin = time.perf_counter()
    engine = start(name)
    remote = engine.remote
    actor = engine.remote if name == "process" else engine.remote(num_cpus=0)  # like ours: an actor holds no slot

    @remote
    def nothing() -> None: ...

    engine.get(nothing.remote())
    figures = {"start-up: init and a first task": time.perf_counter() - begin}

    @actor
    class Actor:
        def nothing(self) -> None: ...

        def take(self, model: np.ndarray) -> float:
            return float(model[0] + model[-1])

        def give(self) -> np.ndarray:
            return np.ones(MODEL_FLOATS)

    actors = [Actor.remote() for _ in range(2)]
    engine.get([a.nothing.remote() for a in actors])
    model = np.random.default_rng(0).random(MODEL_FLOATS)

    def broadcast() -> None:
        ref = engine.put(model)
        engine.get([a.take.remote(ref) for a in actors])

    few, many = (50, 500) if quick else (200, 3000)
    figures["call of an actor, there and back"] = median(lambda: engine.get(actors[0].nothing.remote()), many) * 1e6
    figures["task, there and back"] = median(lambda: engine.get(nothing.remote()), many // 3) * 1e6
    figures["calls of an actor, one after another sent"] = rate(actors[0].nothing, engine.get, many)
    figures["tasks, one after another sent"] = rate(nothing, engine.get, many // 3)
    figures["put 5 MB and broadcast it to two actors"] = median(broadcast, few) * 1e3
    figures["return 5 MB from an actor"] = median(lambda: engine.get(actors[0].give.remote()), few) * 1e3
    me = psutil.Process()
    # Shared pages count once for each process here, on both sides alike.
    resident = sum(process.memory_info().rss for process in [me, *me.children(recursive=True)])
    figures["resident memory, driver and all it started"] = resident / 1e6
    engine.shutdown()
    return figures


def large_objects(name: str, quick: bool) -> dict[str, float]:
    engine = start(name)
    times = 5 if quick else 15
    gibibyte = np.ones(2**30 // 8)
    text = np.random.default_rng(0).bytes(100_000_000)
    begin = time.perf_counter()
    ref = engine.put(gibibyte)
    first = time.perf_counter() - begin
    del ref
    stored = engine.put(text)
    figures = {
        "put an array of 1 GiB, the first": first * 1e3,
        "put an array of 1 GiB, when one was let go": median(lambda: engine.put(gibibyte), times) * 1e3,
        "put 100 MB of bytes, when some were let go": median(lambda: engine.put(text), times) * 1e3,
        "get 100 MB of bytes": median(lambda: engine.get(stored), times) * 1e3,
    }
    engine.shutdown()
    return figures


PROGRAMS = {"calls": calls, "large_objects": large_objects}


def median(function: Callable[[], Any], times: int) -> float:
    for _ in range(5):
        function()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def rate(target: Any, get: Callable[[list[Any]], Any], times: int) -> float:
    begin = time.perf_counter()
    get([target.remote() for _ in range(times)])
    return times / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(PROGRAMS[args.program](args.side, args.quick)))
        return
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for round_number in range(args.rounds):
        for name in SIDES:
            figures: dict[str, float] = {}
            for program in PROGRAMS:
                command = [sys.executable, __file__, "--side", name, "--program", program]
                command += ["--quick"] if args.quick else []
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                figures |= json.loads(output.splitlines()[-1])
            measured[name].append(figures)
        print(f"round {round_number + 1} of {args.rounds} done", file=sys.stderr)
    print(f"{'':<44}{'process':>10}{'Ray':>10}        ratio   aim")
    for figure, (unit, less_is_better, aim) in FIGURES.items():
        ours, rays = (statistics.median(m[figure] for m in measured[name]) for name in SIDES)
        ratio = rays / ours if less_is_better else ours / rays
        wanted = f"{aim:>5g} {'reached' if ratio >= aim else 'missed'}" if aim else ""
        print(f"{figure:<44}{ours:>10.4g}{rays:>10.4g} {unit:<4}{ratio:>8.1f} {wanted}")


if __name__ == "__main__":
    main()
