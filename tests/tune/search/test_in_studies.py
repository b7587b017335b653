"""Searchers in real studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay import tune
from outplay.errors import OutplayError
from outplay.tune import ExperimentAnalysis
from outplay.tune.objective import Objective, pareto_front
from outplay.tune.search import ConcurrencyLimiter, OptunaSearch

Run = Callable[..., ExperimentAnalysis]
CONFIG = {"x": tune.uniform(-5.0, 5.0), "kind": tune.choice([{"name": "a", "y": tune.randint(0, 5)}, "b"])}


def train(config: dict[str, Any]) -> None:
    y = config["kind"]["y"] if isinstance(config["kind"], dict) else 6
    tune.report(loss=(config["x"] - 1) ** 2 + y, size=y)


def values(analysis: ExperimentAnalysis) -> list[Any]:
    return [trial.values for trial in analysis.trials]


def test_a_study_that_is_continued_goes_on_as_one_that_was_not_interrupted(run: Run) -> None:
    def study(name: str, num_samples: int, resume: bool = False) -> list[Any]:
        return values(
            run(
                train, config=CONFIG, search_alg=ConcurrencyLimiter(OptunaSearch(), 1), num_samples=num_samples,
                metric="loss", mode="min", name=name, resume=resume, seed=4,
            )
        )  # fmt: skip

    undisturbed = study("undisturbed", 18)
    assert len(undisturbed) == 18
    assert study("continued", 12) == undisturbed[:12]
    assert study("continued", 18, resume=True) == undisturbed


def test_two_metrics_then_a_warm_start_from_that_study(run: Run, tmp_path: Path) -> None:
    first = run(
        train, config=CONFIG, search_alg=OptunaSearch(metric=["loss", "size"], mode=["min", "max"]), num_samples=12,
        name="first",
    )  # fmt: skip
    objective = Objective.of(["loss", "size"], ["min", "max"])
    front = pareto_front(first.trials, objective)
    assert front
    assert min(trial.last_result["loss"] for trial in first.trials) in [t.last_result["loss"] for t in front]
    for source in (first, first.trials, str(first.path), Path(first.path)):
        searcher = OptunaSearch(warm_start=source)
        searcher.setup(tune.spaces.Space(CONFIG), Objective.of("loss", "min"), 0)
        assert [trial.value for trial in searcher.study.get_trials()] == [t.last_result["loss"] for t in first.trials]


def test_a_warm_start_from_a_folder_without_a_study_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutplayError, match="missing") as caught:
        OptunaSearch(warm_start=tmp_path / "missing")
    assert "\n" not in str(caught.value)
