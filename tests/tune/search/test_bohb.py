"""TuneBOHB models the largest budget with enough results."""

from __future__ import annotations

from typing import Any

import pytest

from outplay.errors import ConfigError
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.search import TuneBOHB
from outplay.tune.spaces import Space

SPACE = Space({"x": domains.uniform(0, 1), "n": domains.randint(0, 4)})
LOSS = Objective.of("loss", "min")


def started(**settings: Any) -> TuneBOHB:
    searcher = TuneBOHB(**settings)
    searcher.setup(SPACE, LOSS, 5)
    return searcher


def report(searcher: TuneBOHB, trial: int, budget: int, loss: float) -> None:
    searcher.on_result(f"{trial:05}", {"training_iteration": budget, "loss": loss})


def test_the_budget_is_the_largest_one_with_three_results_more_than_variables() -> None:
    searcher = started()
    for i in range(8):
        searcher.suggest(f"{i:05}")
    for i in range(4):
        report(searcher, i, 1, i)
    assert searcher.budget is None
    report(searcher, 4, 1, 4)  # five results: two variables, and three
    assert searcher.budget == 1
    for i in range(4):
        report(searcher, i, 3, i)
    assert searcher.budget == 1
    report(searcher, 3, 3, 0)  # the same trial again
    assert searcher.budget == 1
    searcher.on_complete("00004", {"training_iteration": 3, "loss": 0.5})  # its last result counts
    assert searcher.budget == 3
    assert started(min_points_in_model=1).budget is None


def test_the_model_learns_from_that_budget_alone() -> None:
    """Small x are best after one iteration, large x after nine."""

    def mean(budgets: list[int]) -> float:
        searcher = started(random_fraction=0.0)
        for i in range(30):
            values = searcher.suggest(f"{i:05}")
            assert values is not None
            for budget in budgets:
                report(searcher, i, budget, values["x"] if budget == 1 else 1 - values["x"])
        new = [searcher.suggest(f"{i:05}") for i in range(30, 40)]
        return sum(values["x"] for values in new if values is not None) / 10

    assert mean([1]) < 0.4
    assert mean([1, 9]) > 0.6


def test_trials_without_a_result_are_running_ones_and_failed_ones_are_none() -> None:
    searcher = started(random_fraction=0.0)
    for i in range(10):
        searcher.suggest(f"{i:05}")
    for i in range(6):
        report(searcher, i, 1, i)
    for i in range(5):
        report(searcher, i, 3, i)
    searcher.on_complete("00006", None, error=True)
    searcher.on_complete("00007", {"training_iteration": 1, "loss": float("nan")})
    searcher.suggest("00010")
    states = [trial.state.name for trial in searcher.study.get_trials()]
    assert states == ["COMPLETE"] * 5 + ["RUNNING"] * 3  # 8 and 9, and the new one; 5 was stopped after one iteration


def test_a_third_of_the_suggestions_is_random() -> None:
    searcher = started()
    for i in range(8):
        searcher.suggest(f"{i:05}")
        report(searcher, i, 1, i)
    modelled = 0
    for i in range(8, 98):
        searcher.suggest(f"{i:05}")
        modelled += len(searcher.study.get_trials()) > 1
        searcher.on_complete(f"{i:05}", None, error=True)
    assert 45 <= modelled <= 75


def test_earlier_results_count_at_their_budget() -> None:
    earlier = [({"x": i / 10, "n": 1}, {"training_iteration": 9, "loss": i}) for i in range(5)]
    assert started(warm_start=earlier).budget == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_fraction": 2}, "random_fraction must be from 0 to 1"),
        ({"min_points_in_model": 0}, "min_points_in_model must be at least 1"),
        ({"metric": ["a", "b"], "mode": "max"}, "TuneBOHB optimises one metric"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], message: str) -> None:
    searcher_objective = Objective.of(None, None)
    with pytest.raises(ConfigError, match=message):
        TuneBOHB(**settings).setup(SPACE, searcher_objective, 0)
