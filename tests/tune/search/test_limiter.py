"""ConcurrencyLimiter: at most so many trials at once, one by one or in batches."""

from __future__ import annotations

from typing import Any

import pytest

from outplay.errors import ConfigError
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.search import FINISHED, ConcurrencyLimiter, Searcher, Variants
from outplay.tune.spaces import Space
from outplay.tune.trial import Metrics


class Recording(Variants):
    def __init__(self) -> None:
        super().__init__(num_samples=5)
        self.told: list[str] = []

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        self.told.append(trial_id)


def started(batch: bool = False) -> tuple[ConcurrencyLimiter, Recording]:
    inner = Recording()
    limiter = ConcurrencyLimiter(inner, 2, batch=batch)
    limiter.setup(Space({"x": domains.uniform(0, 1)}), Objective.of("a", "max"), 0)
    return limiter, inner


def test_a_trial_that_ends_makes_room_for_one() -> None:
    limiter, inner = started()
    assert isinstance(limiter.suggest("0"), dict)
    assert isinstance(limiter.suggest("1"), dict)
    assert limiter.suggest("2") is None
    limiter.on_complete("0", {"a": 1})
    assert inner.told == ["0"]
    assert isinstance(limiter.suggest("2"), dict)
    assert limiter.suggest("3") is None


def test_a_batch_ends_as_a_whole() -> None:
    limiter, inner = started(batch=True)
    for trial_id in ("0", "1"):
        limiter.suggest(trial_id)
    limiter.on_complete("1", {"a": 1})
    assert inner.told == []
    assert limiter.suggest("2") is None
    limiter.on_complete("0", None, error=True)
    assert inner.told == ["1", "0"]
    assert isinstance(limiter.suggest("2"), dict)


def test_the_end_is_that_of_the_searcher() -> None:
    limiter, _ = started()
    for i in range(5):
        limiter.suggest(str(i))
        limiter.on_complete(str(i), {"a": 1})
    assert limiter.suggest("5") is FINISHED


def test_a_searcher_with_a_state_keeps_it() -> None:
    class Counting(Searcher):
        count = 0

        def suggest(self, trial_id: str) -> Any:
            self.count += 1
            return {"x": 0.5}

        def save(self) -> dict[str, Any]:
            return {"count": self.count}

        def restore(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    first, second = ConcurrencyLimiter(Counting(), 2), ConcurrencyLimiter(Counting(), 2)
    for limiter in (first, second):
        limiter.setup(Space({"x": domains.uniform(0, 1)}), Objective.of("a", "max"), 0)
    first.suggest("0")
    first.suggest("1")
    state = first.save()
    assert state is not None
    second.restore(state)
    assert second.suggest("2") is None
    second.on_complete("1", None)
    assert isinstance(second.suggest("2"), dict)
    assert second.save() == {"searcher": {"count": 3}, "running": ["0", "2"], "ended": []}


@pytest.mark.parametrize(("searcher", "limit"), [(Variants(), 0), (Variants(), True), (Variants(), 1.5), (None, 1)])
def test_wrong_arguments_are_one_sentence(searcher: Any, limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_concurrent must be|takes a Searcher"):
        ConcurrencyLimiter(searcher, limit)
