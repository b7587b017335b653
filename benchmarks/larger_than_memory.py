"""Recorded data that is larger than the memory that a process may use: preprocessors, shuffling, learning, trainers.

    python benchmarks/larger_than_memory.py [--gigabytes 3.75] [--limit-mb 2000] [--only fit,shuffle] [--work DIR]

It writes a Parquet data set of transitions (random float32 numbers, which do not compress) into a temporary folder.
Each part is a process with its workers, in a control group (cgroup) whose memory is limited to `--limit-mb`. The limit
counts the page cache, too, which the kernel reclaims. A process that needs more is killed: the part "control", which
reads all rows into memory, shows it. Without a writable cgroup, memory is only measured.

"peak" is the largest sum of anonymous and shared memory over all processes of the part, sampled ten times per second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from memory_limit import limited

WIDTH, ACTIONS, EPISODE = 128, 4, 200
CHUNK, ROWS_PER_FILE = 10_000, 200_000
ROW_BYTES = 2 * 4 * WIDTH + 8 + 4 + 2 + 4 * 8 + 4 + 4  # in memory
KINDS = 12
GREEDY = 0.75  # share of greedy actions of the recorded policy


class Wide(gymnasium.Env[np.ndarray, np.int64]):
    """An environment with the spaces of the data. Its observations are random."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self.np_random.standard_normal(WIDTH, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._steps += 1
        return self.np_random.standard_normal(WIDTH, np.float32), 0.0, self._steps == EPISODE, False, {}


def greedy_actions(observations: np.ndarray) -> np.ndarray:
    weights = np.random.default_rng(99).standard_normal((WIDTH, ACTIONS)).astype(np.float32)
    actions: np.ndarray = (observations @ weights).argmax(1)
    return actions


# The data.


def chunk_of(first: int, number: int) -> dict[str, np.ndarray]:
    """The rows first … first + number. Observations drift with the row, so their order on disk matters."""
    rng = np.random.default_rng(first)
    observations = rng.standard_normal((number + 1, WIDTH), np.float32)
    row = np.arange(first, first + number)
    best = greedy_actions(observations[:-1])
    is_random = rng.random(number) >= GREEDY
    action = np.where(is_random, rng.integers(ACTIONS, size=number), best)
    sensor = rng.standard_normal(number, np.float32) + 5
    sensor[rng.random(number) < 0.1] = np.nan
    probability = np.where(action == best, GREEDY + (1 - GREEDY) / ACTIONS, (1 - GREEDY) / ACTIONS)
    return {
        "observation": observations[:-1],
        "next_observation": observations[1:],
        "action": action,
        "reward": (action == best).astype(np.float32),
        "terminated": row % EPISODE == EPISODE - 1,
        "truncated": np.zeros(number, bool),
        "episode_id": row // EPISODE,
        "step": row % EPISODE,
        "action_logp": np.log(probability).astype(np.float32),
        "row": row,
        "kind": rng.integers(KINDS, size=number) * 3,
        "sensor": sensor,
    }


def write(folder: Path, rows: int) -> int:
    """Write the data set. Returns its size on disk."""
    from outplay.data.columns import columns_of
    from outplay.data.parquet import FileWriter

    folder.mkdir(parents=True)
    for first in range(0, rows, ROWS_PER_FILE):
        path = folder / f"part-{first:09d}.parquet"
        with FileWriter(path, columns_of(chunk_of(0, 1)), {}) as file:
            for start in range(first, min(first + ROWS_PER_FILE, rows), CHUNK):
                file.write(chunk_of(start, min(CHUNK, rows - start)))
        with path.open("rb") as written:  # parts read it from disk, and pay for their own page cache
            os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(path.stat().st_size for path in folder.iterdir())


# The parts. Each returns what is printed of it; a failed assertion, or the end of its process, is a FAIL.


def control(folder: Path) -> dict[str, Any]:
    """All rows in memory."""
    from outplay import data

    return {"rows": len(data.read_parquet(folder).to_arrays()["row"])}


def fit(folder: Path) -> dict[str, Any]:
    """Preprocessors, fitted by two parallel tasks; compared with sums over the files in numpy."""
    import outplay
    from outplay import data
    from outplay.preprocessors import MinMaxScaler, OneHotEncoder, OrdinalEncoder, SimpleImputer, StandardScaler

    outplay.init("process", num_cpus=2)
    dataset = data.read_parquet(folder)
    seconds = {}

    def fitted(preprocessor: Any) -> Any:
        start = time.perf_counter()
        preprocessor.fit(dataset, num_tasks=2)
        seconds[f"{type(preprocessor).__name__} of {preprocessor.columns[0]}"] = round(time.perf_counter() - start, 1)
        return preprocessor

    standard = fitted(StandardScaler(["observation"])).learned_of("observation")
    extremes = fitted(MinMaxScaler(["observation"])).learned_of("observation")
    hot = fitted(OneHotEncoder(["kind"])).learned_of("kind")
    ordinal = fitted(OrdinalEncoder(["kind"])).learned_of("kind")
    fill = fitted(SimpleImputer(["sensor"])).learned_of("sensor")["fill"]
    frequent = fitted(SimpleImputer(["action"], "most_frequent")).learned_of("action")["fill"]
    outplay.shutdown()

    expected = streamed_sums(folder)
    np.testing.assert_allclose(standard["shift"], expected["mean"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(1 / standard["factor"], expected["deviation"], rtol=1e-9)
    np.testing.assert_array_equal(extremes["shift"], expected["low"])
    np.testing.assert_allclose(1 / extremes["factor"], expected["high"] - expected["low"], rtol=1e-12)
    np.testing.assert_array_equal(hot["categories"], np.arange(KINDS) * 3)
    np.testing.assert_array_equal(ordinal["categories"], hot["categories"])
    np.testing.assert_allclose(fill, expected["sensor"], rtol=1e-9)
    assert frequent == expected["action"]
    return {"seconds": seconds}


def streamed_sums(folder: Path) -> dict[str, Any]:
    """Moments and extremes of the observations, and others, by pyarrow and numpy alone."""
    import pyarrow.parquet as pq

    number, sums, squares = 0, np.zeros(WIDTH), np.zeros(WIDTH)
    low, high = np.full(WIDTH, np.inf), np.full(WIDTH, -np.inf)
    sensor, known, actions = 0.0, 0, np.zeros(ACTIONS, np.int64)
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(CHUNK, columns=["observation", "sensor", "action"]):
                x = batch["observation"].flatten().to_numpy().reshape(-1, WIDTH).astype(np.float64)
                number, sums, squares = number + len(x), sums + x.sum(0), squares + (x * x).sum(0)
                low, high = np.minimum(low, x.min(0)), np.maximum(high, x.max(0))
                values = batch["sensor"].to_numpy().astype(np.float64)
                sensor, known = sensor + float(np.nansum(values)), known + int((~np.isnan(values)).sum())
                actions += np.bincount(batch["action"].to_numpy(), minlength=ACTIONS)
    mean = sums / number
    deviation = np.sqrt(squares / number - mean**2)
    return {
        "mean": mean, "deviation": deviation, "low": low, "high": high, "sensor": sensor / known,
        "action": actions.argmax(),
    }  # fmt: skip


def shuffle(folder: Path) -> dict[str, Any]:
    """One shuffled pass over all columns."""
    from outplay import data

    dataset = data.read_parquet(folder)
    rows, start = len(dataset), time.perf_counter()
    order = np.empty(rows, np.int32)
    groups = []  # parts of the data, of 1 % each, in a minibatch
    first = 0
    for batch in dataset.iter_batches(256, shuffle=True, seed=1):
        order[first : first + len(batch["row"])] = batch["row"]
        first += len(batch["row"])
        groups.append(len(np.unique(batch["row"] * 100 // rows)))
    seconds = time.perf_counter() - start
    assert first == rows
    assert (np.bincount(order, minlength=rows) == 1).all(), "each row once"
    correlation = float(np.corrcoef(np.arange(rows), order)[0, 1])  # of ranks: both are permutations of 0 … rows - 1
    following = float((np.diff(order) == 1).mean())
    assert abs(correlation) < 0.2
    assert following < 0.01
    other = next(dataset.iter_batches(256, shuffle=True, seed=1, epoch=1))["row"]
    assert not np.array_equal(order[:256], other)
    return {
        "rows": rows, "rank_correlation": round(correlation, 4), "still_adjacent": round(following, 5),
        "hundredths_per_minibatch": float(np.median(groups)), "seconds": round(seconds, 1),
        "rows_per_s": round(rows / seconds),
    }  # fmt: skip


def learned(name: str, folder: Path, iterations: int, **config: Any) -> dict[str, Any]:
    """Train; the share of greedy actions of the result at new observations."""
    import outplay
    from outplay.registry import algorithms

    small = {"model": {"fcnet_hiddens": [64, 64]}, "num_workers": 0, "input": str(folder), **config}
    with algorithms.load(name)(Wide, small) as trainer:
        for _ in range(iterations):
            result = trainer.train()
        seen = np.random.default_rng(1234567).standard_normal((2000, WIDTH)).astype(np.float32)
        agreement = np.mean([trainer.compute_single_action(x, explore=False) for x in seen] == greedy_actions(seen))
        assert agreement > 0.5, f"it takes the greedy action at {agreement:.0%} of the observations"
        assert result["timesteps_total"] == iterations * 25_600
        found: dict[str, Any] = {"rows": int(result["timesteps_total"]), "agreement": round(float(agreement), 3)}
        if name == "BC":
            options = {"explore": True, "gamma": 0.9}
            estimates = trainer.estimate(str(folder), methods=["is", "wis"], **options)
            estimates |= trainer.estimate(str(folder), methods=["fqe"], fqe_updates=3000, **options)
            found["estimates"] = {method: round(each["return_mean"], 2) for method, each in estimates.items()}
    outplay.shutdown()
    return found


def bc(folder: Path) -> dict[str, Any]:
    """Cloning over more rows than the memory holds; then off-policy evaluation over all rows."""
    return learned("BC", folder, 120)


def marwil(folder: Path) -> dict[str, Any]:
    return learned("MARWIL", folder, 20)


def cql(folder: Path) -> dict[str, Any]:
    return learned("CQL", folder, 20, gamma=0.0, min_q_weight=1.0)


def trainer(folder: Path) -> dict[str, Any]:
    """`train.TorchTrainer`: one shuffled pass on two workers, behind a scaler that is fitted first."""
    import outplay
    from outplay import data, train
    from outplay.preprocessors import StandardScaler

    outplay.init("process", num_cpus=2)
    dataset = data.read_parquet(folder)
    with tempfile.TemporaryDirectory() as results:
        found = train.TorchTrainer(
            training_loop,
            train_loop_config={"lr": 0.1},
            scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=train.RunConfig(name="larger", storage_path=results, verbose=0),
            datasets={"train": dataset.select(["observation", "action", "row"])},
            preprocessor=StandardScaler(["observation"]),
        ).fit()
    outplay.shutdown()
    assert found.error is None, found.error
    metrics = found.metrics
    assert metrics["rows"] == len(dataset)
    assert metrics["row_sum"] == len(dataset) * (len(dataset) - 1) // 2
    assert metrics["accuracy"] > 0.7, "the best is GREEDY + (1 - GREEDY) / ACTIONS, 0.81"
    return {name: metrics[name] for name in ("rows", "accuracy", "seconds")}


def training_loop(config: dict[str, Any]) -> None:
    import torch
    from torch import nn

    from outplay import train

    torch.manual_seed(0)
    model = train.torch.prepare_model(nn.Linear(WIDTH, ACTIONS))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    counts, start, recent = torch.zeros(2, dtype=torch.int64), time.perf_counter(), 0.0
    shard = train.get_dataset_shard("train")
    for batch in shard.iter_torch_batches(batch_size=512, shuffle=True, seed=3):
        outputs = model(batch["observation"])
        loss = nn.functional.cross_entropy(outputs, batch["action"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        counts += torch.stack([torch.tensor(len(outputs)), batch["row"].sum()])
        recent = 0.99 * recent + 0.01 * float((outputs.argmax(1) == batch["action"]).float().mean())
    torch.distributed.all_reduce(counts)
    seconds = round(time.perf_counter() - start, 1)
    train.report({"rows": int(counts[0]), "row_sum": int(counts[1]), "accuracy": round(recent, 3), "seconds": seconds})


PARTS = {part.__name__: part for part in (control, fit, shuffle, bc, marwil, cql, trainer)}


def run(part: str, folder: Path, limit: int, size: int) -> bool:
    """Run a part in a limited process and print a line. Returns whether it passed."""
    start = time.perf_counter()
    with limited(limit) as group:
        process = group.start([sys.executable, __file__, "--part", part, "--work", str(folder)])
        while process.poll() is None:
            group.sample()
            time.sleep(0.1)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    ended = process.returncode == 0 and bool(lines)
    if part == "control":
        passed = not ended and process.returncode == -9 and group.folder is not None
        note = "killed, as it has to be" if passed else f"not killed (exit code {process.returncode})"
    else:
        passed = ended and group.peak < limit < size
        note = lines[-1] if ended else f"exit code {process.returncode}"
    seconds = time.perf_counter() - start
    peak = f"peak {group.peak / 1e6:5,.0f} MB" + ("" if group.folder is not None else " (measured, not limited)")
    print(f"{'pass' if passed else 'FAIL'}  {part:8} {peak}  {seconds:6.1f} s  {note}", flush=True)
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.75, help="size of the data set in memory")
    parser.add_argument("--limit-mb", type=int, default=2000, help="memory of a part, all its processes together")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}")
    parser.add_argument("--work", type=Path, help="where the data set is written, and kept; default: temporary")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part](args.work)))
        return
    rows = int(args.gigabytes * 1e9 / ROW_BYTES) // EPISODE * EPISODE
    work = args.work or Path(tempfile.mkdtemp(prefix="larger-than-memory-"))
    folder = work / f"rows-{rows}"
    try:
        size = sum(p.stat().st_size for p in folder.iterdir()) if folder.exists() else write(folder, rows)
        print(f"data: {rows:,} rows, {rows * ROW_BYTES / 1e6:,.0f} MB; {size / 1e6:,.0f} MB on disk; ", end="")
        print(f"limit of a part: {args.limit_mb:,} MB", flush=True)
        passed = [run(part, folder, args.limit_mb * 10**6, size) for part in args.only.split(",")]
    finally:
        if not args.work:
            shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
