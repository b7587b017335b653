"""What a search finds, beside PPO's defaults, on seeds that the search has not used.

    python benchmarks/tuned.py tune-cartpole tune-lunarlander

Each recipe (outplay/recipes/tune-*.yml) is searched as `outplay tune -f RECIPE` does; with --results, a study of that
name that is there already is taken. Then the best settings and the defaults, the first point of the search, are
trained with other seeds until the environment is solved (Gymnasium's threshold), at most --limit steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from outplay import tune
from outplay.tune.files import SearchFile, recipes

SOLVED = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
UNSEEN = 1_000  # the seed that the seeds of the comparison follow from; the search has another one


def searched(search: SearchFile, name: str, results: Path) -> tune.ExperimentAnalysis:
    """The study of a recipe, run if it is not there."""
    if tune.Tuner.can_restore(results / name):
        return tune.ExperimentAnalysis(results / name)
    return search.tuner(name, results).fit().analysis


def steps(config: dict[str, Any], seeds: int, limit: int, results: Path) -> list[int]:
    """Steps until the environment is solved, for each seed."""
    stop = {"episode_return_mean": SOLVED[config["env"]], "timesteps_total": limit}
    found = tune.run(
        "PPO", {**config, "stop": stop}, metric="timesteps_total", mode="min", seeds=seeds, seed=UNSEEN,
        storage_path=results, verbose=0,
    )  # fmt: skip
    per_seed: list[int] = found.best_result["timesteps_total_per_seed"]
    return per_seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="+", choices=list(recipes()))
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--limit", type=int, default=300_000)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    print(f"steps until solved, {args.seeds} seeds; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    for name in args.recipe:
        with tempfile.TemporaryDirectory() as folder:
            search = SearchFile.load(recipes()[name])
            study = searched(search, name, args.results or Path(folder))
            defaults = study.trials[0]
            medians = []
            for title, trial in (("defaults", defaults), ("best found", study.best_trial)):
                taken = steps(trial.config, args.seeds, args.limit, Path(folder))
                medians.append(statistics.median(taken))
                values = ", ".join(f"{key.removeprefix('config/')} {value:.4g}" for key, value in trial.values.items())
                print(f"{name}, {title:10}  median {medians[-1]:>9,.0f}   {' '.join(f'{n:,}' for n in sorted(taken))}")
                print(f"    {values}")
            print(f"    ratio {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
