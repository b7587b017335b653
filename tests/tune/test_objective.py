"""Objectives that must agree, and the Pareto front of trials."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outplay.errors import ConfigError
from outplay.tune.objective import Objective, pareto_front
from outplay.tune.trial import Trial


def trials(*results: dict[str, Any]) -> list[Trial]:
    return [Trial(f"{i:05}", i, {}, {}, last_result=result) for i, result in enumerate(results)]


def test_the_front_has_the_trials_that_none_dominates() -> None:
    found = pareto_front(
        trials(
            {"return": 5, "time": 5},
            {"return": 6, "time": 5},  # better than the first
            {"return": 6, "time": 5},  # equal: both are kept
            {"return": 1, "time": 1},
            {"return": 1, "time": 2},  # slower than the one before
            {"return": 99, "time": math.nan},
            {"return": 99},
            {},
        ),
        Objective.of(["return", "time"], ["max", "min"]),
    )
    assert [trial.index for trial in found] == [1, 2, 3]


def test_the_front_of_one_metric_is_the_best() -> None:
    found = pareto_front(trials({"a/b": 3}, {"a": {"b": 1}}, {"a": {"b": 2}}), Objective.of("a/b", "min"))
    assert [trial.index for trial in found] == [1]
    assert pareto_front([], Objective.of("a", "min")) == []


def test_a_searchers_own_metric_must_be_that_of_the_study() -> None:
    none, loss = Objective.of(None, None), Objective.of("loss", "min")
    assert none.agreed(loss, "S") == loss.agreed(none, "S") == loss.agreed(loss, "S") == loss
    with pytest.raises(
        ConfigError, match="S has metric='loss', mode='max', but the study has metric='loss', mode='min'"
    ):
        Objective.of("loss", "max").agreed(loss, "S")
    with pytest.raises(ConfigError, match=r"metric=\['a', 'b'\], mode=\['max', 'max'\]"):
        Objective.of(["a", "b"], None).agreed(loss, "S")
