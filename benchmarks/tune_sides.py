"""The sides of tune.py: one part of the benchmark with one library. Each prints one line of JSON.

    python benchmarks/tune_sides.py outplay overhead '{"trials": 1000}'

Ray Tune runs in an environment of its own; Outplay and Optuna in that of Outplay.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tune_problems as problems
from tune_problems import FUNCTIONS, GRID

SLOTS = 2
Figures = dict[str, Any]


def sleeping(config: dict[str, Any]) -> Figures:
    time.sleep(config["seconds"])
    return {"score": problems.grid_score(config["x"], config["y"])}


def instant(config: dict[str, Any]) -> Figures:
    return {"score": config["x"]}


def resident() -> Figures:
    """Megabytes of this process: now, and at most so far."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[name].split()[0]) / 1024 for key, name in (("now", "VmRSS"), ("peak", "VmHWM"))}


def timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


class CurveSteps:
    """Trains nothing: reports a learning curve. `steps` counts the iterations of all trials, repeated ones included."""

    def setup(self, config: dict[str, Any]) -> None:
        self.curve, self.steps, self.t = problems.Curve.of(config["seed"], config["index"]), config["steps"], 0

    def step(self) -> Figures:
        self.t += 1
        count(self.steps)
        return {"score": self.curve.score(self.t)}

    def reset_config(self, new_config: dict[str, Any]) -> bool:  # so that Ray Tune can reuse its processes
        CurveSteps.setup(self, new_config)
        return True

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "state").write_text(str(self.t))

    def load_checkpoint(self, folder: str) -> None:
        self.t = int((Path(folder) / "state").read_text())


class ScheduleSteps:
    """Trains nothing: its score rises as far as its learning rate fits the score."""

    def setup(self, config: dict[str, Any]) -> None:
        self.lr, self.steps, self.score = config["lr"], config["steps"], 0.0

    def step(self) -> Figures:
        self.score = problems.progress(self.score, self.lr)
        count(self.steps)
        return {"score": self.score}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        ScheduleSteps.setup(self, new_config)
        return True

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "state").write_text(repr(self.score))

    def load_checkpoint(self, folder: str) -> None:
        self.score = float((Path(folder) / "state").read_text())


def count(path: str) -> None:
    with Path(path).open("ab", buffering=0) as file:
        file.write(b".")


class Library(ABC):
    """Outplay and Ray Tune: the same names, so the same code. They differ in how a study is run."""

    tune: Any

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.steps = ""  # the file in which iterations are counted

    @abstractmethod
    def study(self, trainable: Any, config: dict[str, Any], trials: int = 1, **more: Any) -> tuple[Any, Figures]:
        """Run a study. Returns the best trial's config and its last result."""

    def grid(self, seconds: float) -> Figures:
        config = {"x": self.tune.grid_search(GRID), "y": self.tune.grid_search(GRID), "seconds": seconds}
        return {"seconds": timed(lambda: self.study(sleeping, config, mode="min"))}

    def overhead(self, trials: int) -> Figures:
        seconds = timed(lambda: self.study(instant, {"x": self.tune.uniform(0, 1)}, trials))
        return {"trials": trials, "per_trial": seconds / trials}

    def memory(self, trials: int) -> Figures:
        before = resident()["now"]
        self.overhead(trials)
        return {"trials": trials, "before": before, **resident()}

    def regret(self, scheduler: str, seed: int) -> Figures:
        self.steps = f"{self.folder}/steps_{scheduler}_{seed}"
        regret = self._pbt(seed) if scheduler == "PBT" else self._halving(scheduler, seed)
        return {"regret": regret, "iterations": Path(self.steps).stat().st_size}

    def _halving(self, name: str, seed: int) -> float:
        schedulers = self.tune.schedulers
        scheduler = (
            schedulers.ASHAScheduler(max_t=problems.MAX_T, grace_period=1, reduction_factor=3)
            if name == "ASHA"
            else schedulers.HyperBandScheduler(max_t=problems.MAX_T, reduction_factor=3)
        )
        config = {"index": self.tune.grid_search(list(range(problems.CURVES))), "seed": seed, "steps": self.steps}
        best, _ = self.study(CurveSteps, config, scheduler=scheduler, stop={"training_iteration": problems.MAX_T})
        return problems.curve_regret(seed, best["index"])

    def _pbt(self, seed: int) -> float:
        scheduler = self.tune.schedulers.PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=problems.INTERVAL,
            hyperparam_mutations={"lr": self.tune.loguniform(*problems.LR)},
        )
        config = {"lr": self.tune.loguniform(*problems.LR), "steps": self.steps}
        points = [{"lr": lr} for lr in problems.population_rates(seed)]
        stop = {"training_iteration": problems.PBT_T}
        _, result = self.study(
            ScheduleSteps, config, problems.POPULATION, scheduler=scheduler, points=points, stop=stop, seed=seed
        )
        return problems.pbt_regret(result["score"])


class Outplay(Library):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        import outplay
        from outplay import tune

        outplay.init("process", num_cpus=SLOTS)
        self.tune = tune

    def study(self, trainable: Any, config: dict[str, Any], trials: int = 1, **more: Any) -> tuple[Any, Figures]:
        points = more.pop("points", None)
        settings = {"metric": "score", "mode": "max", "storage_path": self.folder, "verbose": 0, **more}
        if points is not None:

            class Points(self.tune.Searcher):  # type: ignore[misc, name-defined]
                def suggest(self, trial_id: str) -> dict[str, Any]:
                    return dict(points[int(trial_id)])

            settings["search_alg"] = Points()
        analysis = self.tune.run(trainable, config=config, num_samples=trials, **settings)
        return analysis.best_config, analysis.best_result

    def quality(self, function: str, trials: int, seed: int) -> Figures:
        problem = FUNCTIONS[function]

        def trial(config: dict[str, Any]) -> Figures:
            return {"score": problem.value([config[name] for name in problem.names])}

        config = {n: self.tune.uniform(*bounds) for n, bounds in zip(problem.names, problem.bounds, strict=True)}
        search = self.tune.search.OptunaSearch(sampler="tpe")
        _, result = self.study(trial, config, trials, mode="min", search_alg=search, max_concurrent_trials=1, seed=seed)
        return {"best": result["score"] - problem.minimum}


class Ray(Library):
    def __init__(self, folder: str, reuse_actors: bool = False) -> None:
        super().__init__(folder)
        self.reuse_actors = reuse_actors
        import ray
        from ray import tune

        ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self.tune = tune

    def study(self, trainable: Any, config: dict[str, Any], trials: int = 1, **more: Any) -> tuple[Any, Figures]:
        from ray.tune.search.basic_variant import BasicVariantGenerator

        if isinstance(trainable, type):  # Ray Tune checks the base class
            trainable = type(trainable.__name__, (trainable, self.tune.Trainable), {})
        search = BasicVariantGenerator(points_to_evaluate=more.get("points"), random_state=more.get("seed", 0))
        settings = self.tune.TuneConfig(
            metric="score",
            mode=more.get("mode", "max"),
            num_samples=trials,
            scheduler=more.get("scheduler"),
            search_alg=search,
            reuse_actors=self.reuse_actors,
        )
        run = self.tune.RunConfig(storage_path=self.folder, verbose=0, stop=more.get("stop"))
        found = self.tune.Tuner(trainable, param_space=config, tune_config=settings, run_config=run).fit()
        best = found.get_best_result()
        return best.config, best.metrics


class Optuna:
    def __init__(self, storage: str | None = None) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.storage = optuna, storage

    def study(self, trial: Callable[[Any], float], sampler: Any, trials: int, **more: Any) -> Any:
        study = self.optuna.create_study(sampler=sampler, storage=self.storage)
        study.optimize(trial, n_trials=trials, **more)
        return study

    def grid(self, seconds: float) -> Figures:
        def trial(trial: Any) -> float:
            x, y = (trial.suggest_float(name, -1, 1) for name in "xy")
            return float(sleeping({"x": x, "y": y, "seconds": seconds})["score"])

        sampler = self.optuna.samplers.GridSampler({"x": GRID, "y": GRID}, seed=0)
        return {"seconds": timed(lambda: self.study(trial, sampler, len(GRID) ** 2, n_jobs=SLOTS))}

    def overhead(self, trials: int) -> Figures:
        sampler = self.optuna.samplers.RandomSampler(seed=0)
        seconds = timed(lambda: self.study(lambda trial: trial.suggest_float("x", 0, 1), sampler, trials))
        return {"trials": trials, "per_trial": seconds / trials}

    def memory(self, trials: int) -> Figures:
        before = resident()["now"]
        sampler = self.optuna.samplers.RandomSampler(seed=0)
        study = self.study(lambda trial: trial.suggest_float("x", 0, 1), sampler, trials)
        return {"trials": len(study.trials), "before": before, **resident()}

    def quality(self, function: str, trials: int, seed: int) -> Figures:
        problem = FUNCTIONS[function]

        def trial(trial: Any) -> float:
            pairs = zip(problem.names, problem.bounds, strict=True)
            return problem.value([trial.suggest_float(name, *bounds) for name, bounds in pairs])

        study = self.study(trial, self.optuna.samplers.TPESampler(seed=seed), trials)
        return {"best": study.best_value - problem.minimum}


@contextmanager
def library(side: str) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        if side == "outplay":
            yield Outplay(folder)
        elif side in ("ray", "reused"):
            yield Ray(folder, reuse_actors=side == "reused")
        else:
            yield Optuna(f"sqlite:///{folder}/optuna.db" if side == "sqlite" else None)


def main() -> None:
    side, part, given = sys.argv[1:]
    with library(side) as made:
        figures = [getattr(made, part)(**each) for each in json.loads(given)]
    sys.stdout.flush()
    print(json.dumps(figures), flush=True)
    if side in ("ray", "reused"):
        import ray

        ray.shutdown()


if __name__ == "__main__":
    main()
