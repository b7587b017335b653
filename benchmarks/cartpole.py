"""CartPole-v1 solved by Outplay, by Stable-Baselines3 and by RLlib, on one machine, in one run; with PPO, DQN or PQN.

    python benchmarks/cartpole.py [--seeds 5] [--only outplay,sb3,rllib] [--cache FOLDER] [--json FILE]
    python benchmarks/cartpole.py --algorithm dqn [--plot FILE]
    python benchmarks/cartpole.py --algorithm pqn [--plot FILE]

Solved: the mean return of the last 20 finished training episodes is 475, within 200,000 steps; with DQN (beside
Stable-Baselines3 alone) within 50,000; with PQN (Outplay alone) that of the last 100. Each library trains with
the settings that its own authors tuned for CartPole-v1. For each seed the libraries run one after the other, each in a
fresh process. "Training" is what the library reports from the first step to solved, without imports and construction;
"wall" is the whole process, timed from outside. Each figure is the median over the seeds; a ratio is a library's time
over Outplay's (how many times faster Outplay is).

A run that does not solve it is listed, and counts with its time as a lower bound: ">=" marks what depends on one.

The other libraries are installed on first use, each in a virtual environment of its own under --cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from figures import label, panels
from others import CACHE, call, install

HERE = Path(__file__).resolve().parent
GOAL = 475
LIMIT_S = 1800  # a run that takes longer has failed

MODULES = {"outplay": "outplay", "sb3": "stable_baselines3", "rllib": "ray"}
TITLES = {"outplay": "Outplay", "sb3": "Stable-Baselines3", "rllib": "RLlib"}
# Of each algorithm: Outplay's recipe, the steps within which it counts as solved, who is compared, and over how many
# episodes the mean return is taken.
ALGORITHMS = {
    "ppo": ("cartpole", 200_000, ["outplay", "sb3", "rllib"], 20),
    "dqn": ("cartpole-dqn", 50_000, ["outplay", "sb3"], 20),
    "pqn": ("cartpole-pqn", 200_000, ["outplay"], 100),
}


@dataclass
class Run:
    library: str
    seed: int
    solved: bool
    steps: int
    train_s: float
    wall_s: float
    trouble: str = ""  # why it did not solve it
    curve: list[tuple[int, float]] = field(default_factory=list)  # steps, mean return; of Outplay alone


@dataclass
class Median:
    """Of figures some of which may be lower bounds. It is one itself if it would be larger were those infinite."""

    value: float
    bound: bool

    @classmethod
    def of(cls, runs: list[Run], figure: str) -> Median:
        values = [getattr(run, figure) for run in runs]
        value = statistics.median(values)
        if all(run.solved for run in runs):
            return cls(value, False)
        largest = statistics.median(v if run.solved else math.inf for v, run in zip(values, runs, strict=True))
        return cls(value, value != largest)

    def __str__(self) -> str:
        return f"{'>=' if self.bound else ''}{self.value:,.{0 if self.value >= 1000 else 2}f}"


def versions(name: str, python: Path) -> dict[str, str]:
    """Of the library and what it stands on. Imports them all, so that the first run timed does not read a cold disk."""
    modules = [MODULES[name], "torch", "gymnasium", "numpy"]
    program = f"import json, {', '.join(modules)}; print(json.dumps({{m: eval(m).__version__ for m in {modules}}}))"
    return {"python": platform.python_version(), **json.loads(call([str(python), "-c", program]).splitlines()[-1])}


def run(algorithm: str, name: str, python: Path, seed: int) -> Run:
    recipe, most_steps, *_ = ALGORITHMS[algorithm]
    with tempfile.TemporaryDirectory() as results:
        if name == "outplay":
            what = ["-m", "outplay", "train", recipe, "--json", "--results-dir", results]
        else:
            what = [str(HERE / f"cartpole_{name}.py"), *(["--algorithm", algorithm] if name == "sb3" else [])]
        command = [str(python), *what, "--seed", str(seed)]
        begin = time.perf_counter()
        output, errors, code = finish(command)
        wall = time.perf_counter() - begin
    solved, steps, train_s, curve = read(name, output, most_steps)
    trouble = ""
    if code is None:
        trouble = f"stopped after {LIMIT_S} s"
    elif code:
        said = errors.strip().splitlines() or ["nothing on standard error"]
        trouble = f"exit code {code}: {said[-1]}"
    elif not solved:
        trouble = f"not solved within {most_steps:,} steps"
    return Run(name, seed, not trouble, steps, train_s, wall, trouble, curve)


def finish(command: list[str]) -> tuple[str, str, int | None]:
    """What a program printed, what it printed as errors, and its exit code: none if it ran into the limit."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            return *program.communicate(timeout=LIMIT_S), program.returncode
        except subprocess.TimeoutExpired:
            program.terminate()  # it may have processes of its own to end
            return *program.communicate(), None


def read(name: str, output: str, most_steps: int) -> tuple[bool, int, float, list[tuple[int, float]]]:
    """Whether the program solved it, its steps, its training seconds and its curve: all zero if it got nowhere."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    if not lines:
        return False, 0, 0.0, []
    last = lines[-1]
    if name != "outplay":
        return last["solved"], last["steps"], last["train_s"], []
    curve = [(one["timesteps_total"], one["episode_return_mean"]) for one in lines if one["episode_return_mean"]]
    steps, mean = last["timesteps_total"], last["episode_return_mean"]
    return mean is not None and mean >= GOAL and steps <= most_steps, steps, last["time_total_s"], curve


def ratio(theirs: Median, ours: Median) -> str:
    if not ours.value or (theirs.bound and ours.bound):
        return "?"
    sign = ">=" if theirs.bound else "<=" if ours.bound else ""
    return f"{sign}{theirs.value / ours.value:.1f}"


def table(runs: list[Run], names: list[str]) -> str:
    heads = ["", "steps/s", "steps", "training s", "wall s", "solved", "ratio training", "ratio wall"]
    rows = [heads if "outplay" in names else heads[:-2]]
    medians = {}
    for name in names:
        own = [r for r in runs if r.library == name]
        medians[name] = tuple(Median.of(own, figure) for figure in ("steps", "train_s", "wall_s"))
        rates = [r.steps / r.train_s for r in own if r.train_s]
        rate = f"{statistics.median(rates):,.0f}" if rates else "?"
        row = [TITLES[name], rate, *map(str, medians[name]), f"{sum(r.solved for r in own)} of {len(own)}"]
        if "outplay" in medians:
            row += [ratio(medians[name][i], medians["outplay"][i]) for i in (1, 2)]
        rows.append(row)
    widths = [18, 10, 12, 13, 11, 10, 17, 13]
    return "\n".join("".join(cell.rjust(w) for cell, w in zip(row, widths, strict=False)) for row in rows)


def plot(runs: list[Run], path: Path, episodes: int) -> None:
    with panels(path, 1, 5, 3) as (axis,):
        for one in runs:
            if one.curve:
                steps, means = zip(*one.curve, strict=True)
                axis.plot([step / 1000 for step in steps], means, linewidth=1.2, label=f"seed {one.seed}")
        label(axis, GOAL, y=f"mean return, last {episodes} episodes", legend=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), default="ppo")
    parser.add_argument("--plot", type=Path, help="draw Outplay's curves into this file")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--only", default=",".join(TITLES), help="which libraries, with commas between")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--json", type=Path, help="write every run into this file, too")
    args = parser.parse_args()
    asked = args.only.split(",")
    if args.seeds < 1 or not set(asked) <= set(TITLES):
        parser.error(f"--seeds takes 1 or more, --only takes some of {','.join(TITLES)}")
    names = [name for name in ALGORITHMS[args.algorithm][2] if name in asked]  # Outplay first: the ratios need it
    pythons = {name: Path(sys.executable) if name == "outplay" else install(name, args.cache) for name in names}
    stands_on = {name: versions(name, pythons[name]) for name in names}
    load = os.getloadavg()[0]
    runs = []
    for seed in range(args.seeds):
        for name in names:
            runs.append(run(args.algorithm, name, pythons[name], seed))
            print(describe(runs[-1]), file=sys.stderr)
    print(table(runs, names))
    for failed in (r for r in runs if not r.solved):
        print(describe(failed))
    for name in names:
        print(f"{TITLES[name]}: {', '.join(f'{part} {version}' for part, version in stands_on[name].items())}")
    print(f"{os.cpu_count()} cores, load {load:.2f} at the start")
    if args.plot:
        plot(runs, args.plot, ALGORITHMS[args.algorithm][3])
    if args.json:
        machine = {"platform": platform.platform(), "cores": os.cpu_count(), "load": load}
        whole = {"machine": machine, "versions": stands_on, "runs": [asdict(r) for r in runs]}
        args.json.write_text(json.dumps(whole, indent=1) + "\n")


def describe(done: Run) -> str:
    outcome = done.trouble or f"solved in {done.steps:,} steps"
    seconds = f"{done.train_s:.1f} s training, {done.wall_s:.1f} s wall"
    return f"{TITLES[done.library]}, seed {done.seed}: {outcome}, {seconds}"


if __name__ == "__main__":
    main()
