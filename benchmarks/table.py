"""Returns of shipped defaults and recipes beside published ones, at the same number of steps: benchmarks/TABLE.md.

    python benchmarks/table.py --list
    python benchmarks/table.py --only CartPole-v1 --only LunarLander-v3/PPO --seeds 3 --parallel 2
    python benchmarks/table.py --write --plots docs/table      # draws the curves, too

Each cell (table_cells.py) is trained with the defaults or a recipe, unchanged, for the published number of steps: whole
iterations, as many as fit. Then the final policy plays evaluation episodes without exploration, on seeds that training
does not use. Each (cell, seed) is a process with one thread. Finished ones are appended to the results file, from which
TABLE.md beside it is written; they are not trained again unless the settings have changed. Unfinished ones are runs in
the work folder: the same command resumes them. Result files of several machines are put together with cat.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from table_cells import CELLS, Cell, chosen
from table_pages import draw, write_table

HERE = Path(__file__).resolve().parent
POINTS = 100  # of a curve
EVERY_S = 120.0  # between checkpoints


def settings_of(cell: Cell) -> tuple[str, dict[str, Any]]:
    """(algorithm, its settings): those of the recipe, without its stop conditions, or the defaults."""
    from outplay.runs.experiments import load_recipe

    run = cell.run or cell.algorithm
    if cell.recipe is None:
        return run, {"distributional": "qr"} if cell.algorithm == "QR-DQN" else {}
    recipe = load_recipe(cell.recipe)
    if (recipe.env, recipe.run) != (cell.env, run):
        raise SystemExit(f"{cell.name}: the recipe {cell.recipe} is {recipe.run} on {recipe.env}")
    return run, recipe.config


def all_settings(cell: Cell) -> dict[str, Any]:
    """All settings of a cell, defaults included, as JSON; those that a newer version adds are not compared."""
    from outplay.algorithms import find_algorithm

    run, config = settings_of(cell)
    config_class = find_algorithm(run).Config
    dumped: dict[str, Any] = json.loads(config_class(**{"env": cell.env, **config}).model_dump_json(by_alias=True))
    return {name: value for name, value in dumped.items() if name not in ("env", "seed", "num_workers", "num_gpus")}


def is_current(result: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether a result was trained with these settings."""
    return _agree(result["settings"], settings)


def _agree(recorded: Any, present: Any) -> bool:
    if isinstance(recorded, dict) and isinstance(present, dict):
        return all(_agree(value, present.get(name)) for name, value in recorded.items())
    return bool(recorded == present)


def machine_name(is_gpu: bool) -> str:
    """The CPU, its cores and the GPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = f"{names[0] if names else sys.platform}, {cores} cores"
    if is_gpu:
        import torch

        name += f", {torch.cuda.get_device_name()}"
    return name


# One cell and seed, in a process of its own.


def train(cell: Cell, seed: int, work: Path, is_gpu: bool) -> dict[str, Any]:
    """Train, or continue training, one cell with one seed, and evaluate it. Returns its result."""
    from outplay import Run

    name, config = settings_of(cell)
    config = {**config, "seed": seed, "num_workers": 0, "num_gpus": int(is_gpu)}
    folder = work / f"{cell.name.replace('/', '_')}_{seed}"
    experiment = {"name": "table", "env": cell.env, "run": name, "config": config, "stop": {}}
    experiment |= {"checkpoint_every_s": EVERY_S, "keep_checkpoints": 1, "checkpoint_at_end": False}
    is_new = not (folder / "config.yaml").exists()
    run = Run.create(experiment, folder=folder) if is_new else Run.resume(folder)
    try:
        algorithm = run.algorithm
        per_iteration = least_steps(algorithm.config)
        while algorithm.timesteps + per_iteration <= cell.steps:
            run.step()
        window = algorithm.episodes.metrics()
        evaluation = algorithm.evaluate(episodes=cell.episodes)
        results = list(run.folder.metrics().results)
        return {
            "cell": cell.name,
            "seed": seed,
            "steps": algorithm.timesteps,
            "return": evaluation["episode_return_mean"],
            "episodes": cell.episodes,
            "last_100": window["episode_return_mean"],
            "curve": curve(results),
            "train_s": round(algorithm.seconds, 1),
            "machine": machine_name(is_gpu),
            "date": datetime.now(UTC).date().isoformat(),
            "settings": all_settings(cell),
        }
    finally:
        run.close()


def least_steps(config: Any) -> int:
    """The steps of an iteration, which collects whole Fragments."""
    fragment = config.fragment_length * config.total_envs
    return int(-(-config.least_steps // fragment) * fragment)


def curve(results: list[dict[str, Any]]) -> list[list[float]]:
    """[steps, mean return of the last 100 training episodes], evenly spaced."""
    known = [r for r in results if isinstance(r.get("episode_return_mean"), (int, float))]
    indices = sorted({round(i * (len(known) - 1) / (POINTS - 1)) for i in range(POINTS)}) if known else []
    return [[known[i]["timesteps_total"], round(known[i]["episode_return_mean"], 2)] for i in indices]


# All of them.


def read(path: Path) -> list[dict[str, Any]]:
    """The results of a file; a line that an interruption has cut is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            print(f"{path}: a damaged line is left out", file=sys.stderr)
    return found


def append(path: Path, result: dict[str, Any]) -> None:
    """Append a line in one write: several processes append to the same file."""
    before = path.read_bytes()[-1:] if path.exists() else b""
    line = (b"" if before in (b"", b"\n") else b"\n") + json.dumps(result, separators=(",", ":")).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(line)


def run_all(jobs: list[tuple[Cell, int]], arguments: argparse.Namespace) -> list[str]:
    """Run jobs as processes, `--parallel` at a time. Returns the names of those that failed."""
    waiting, running, failed = list(jobs), {}, []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes are ended, too
    try:
        while waiting or running:
            while waiting and len(running) < arguments.parallel:
                cell, seed = waiting.pop(0)
                command = [sys.executable, str(Path(__file__).resolve()), "--one", cell.name, str(seed)]
                command += ["--work", str(arguments.work), "--results", str(arguments.results)]
                process = subprocess.Popen([*command, *(["--gpu"] if arguments.gpu else [])], env=environment)
                running[process] = f"{cell.name}, seed {seed}"
            for process in [p for p in running if p.poll() is not None]:
                name = running.pop(process)
                if process.returncode:
                    failed.append(name)
                    print(f"{name}: failed with exit code {process.returncode}", flush=True)
            time.sleep(0.2)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return failed


def one(name: str, seed: int, arguments: argparse.Namespace) -> None:
    """Train one cell with one seed and append its result."""
    import shutil

    (cell,) = [cell for cell in CELLS if cell.name == name]
    arguments.work.mkdir(parents=True, exist_ok=True)
    result = train(cell, seed, arguments.work, arguments.gpu)
    append(arguments.results, result)
    shutil.rmtree(arguments.work / f"{cell.name.replace('/', '_')}_{seed}", ignore_errors=True)
    print(
        f"{name}, seed {seed}: {result['return']:.1f} after {result['steps']:,} steps (published {cell.published:g}; "
        f"last 100 episodes of training {result['last_100']:.1f}; {result['train_s']:.0f} s)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="environment[/algorithm[/steps]]; repeatable"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N − 1 of each cell")
    parser.add_argument("--parallel", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--gpu", action="store_true", help="learn on the GPU; the machine is recorded with it")
    parser.add_argument("--results", type=Path, default=HERE / "table.jsonl", help="results are appended here")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/outplay-table", help="unfinished runs")
    parser.add_argument("--list", action="store_true", help="print the cells and how many seeds are done")
    parser.add_argument("--write", action="store_true", help="only rewrite TABLE.md from the results file")
    parser.add_argument("--plots", type=Path, help="a folder for the curves, one figure per environment")
    parser.add_argument("--one", nargs=2, metavar=("CELL", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one[0], int(arguments.one[1]), arguments)
        return
    cells = chosen(arguments.only)
    if not cells:
        parser.error(f"no cell matches {arguments.only}; --list prints them")
    results = read(arguments.results)
    done = {cell.name: {r["seed"] for r in results if r["cell"] == cell.name} for cell in cells}
    if not arguments.write:
        for cell in cells:
            present = all_settings(cell)
            done[cell.name] = {r["seed"] for r in results if r["cell"] == cell.name and is_current(r, present)}
    if arguments.list:
        for cell in cells:
            print(f"{cell.name:<40}{cell.published:>9g}  {cell.settings:<32}{len(done[cell.name])} seeds done")
        return
    failed = []
    if not arguments.write:
        # All cells with one seed come before any with two.
        jobs = [(cell, seed) for seed in range(arguments.seeds) for cell in cells if seed not in done[cell.name]]
        failed = run_all(jobs, arguments)
        results = read(arguments.results)
    current = [r for cell in CELLS for r in _latest(results, cell)]
    if arguments.plots is not None:
        draw(current, arguments.plots)
    plots = arguments.plots or HERE.parent / "docs/table"
    write_table(current, arguments.results.with_name("TABLE.md"), plots)
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


def _latest(results: list[dict[str, Any]], cell: Cell) -> list[dict[str, Any]]:
    """The results of a cell with its present settings, by seed; of several of a seed, the last one."""
    present = all_settings(cell)
    found = {r["seed"]: r for r in results if r["cell"] == cell.name and is_current(r, present)}
    return [found[seed] for seed in sorted(found)]


if __name__ == "__main__":
    main()
