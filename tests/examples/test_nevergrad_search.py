"""The searcher of examples/nevergrad_search.py passes the suite for searchers, and finds a minimum."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import tune
from outplay.testing import SearcherConformance
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.search import Searcher
from outplay.tune.spaces import Space

pytest.importorskip("nevergrad", reason="nevergrad is not installed")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def example() -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLES))
    import nevergrad_search

    yield nevergrad_search
    sys.path.remove(str(EXAMPLES))


class TestNevergrad(SearcherConformance):
    is_conditional = False

    def make(self) -> Searcher:
        from nevergrad_search import NevergradSearch  # type: ignore[import-not-found]

        searcher: Searcher = NevergradSearch()
        return searcher


def test_it_fits_on_a_page() -> None:
    assert len((EXAMPLES / "nevergrad_search.py").read_text().splitlines()) <= 60


def test_it_finds_a_minimum(example: Any) -> None:
    searcher = example.NevergradSearch("OnePlusOne", budget=100)
    space = Space({"x": domains.uniform(-5, 5), "y": domains.randn(0.0, 2.0), "n": domains.lograndint(1, 100)})
    searcher.setup(space, Objective.of("loss", "min"), 0)
    losses = []
    for i in range(100):
        values = searcher.suggest(f"{i:05}")
        losses.append((values["x"] - 1) ** 2 + (values["y"] + 1) ** 2 + abs(values["n"] - 20) / 20)
        searcher.on_complete(f"{i:05}", {"loss": losses[-1]})
    assert min(losses) < 0.2
    assert min(losses) < min(losses[:10]) / 3


def test_it_runs_a_study(example: Any, tmp_path: Path) -> None:
    outplay.shutdown()  # that of another test
    outplay.init("inline")
    try:
        found = tune.run(
            lambda config: {"loss": (config["x"] - 1) ** 2 + (config["kind"] == "b")},
            config={"x": tune.uniform(-5, 5), "kind": tune.choice(["a", "b"])},
            search_alg=example.NevergradSearch(budget=30),
            num_samples=30,
            metric="loss",
            mode="min",
            storage_path=tmp_path,
            verbose=0,
        )
    finally:
        outplay.shutdown()
    assert len(found) == 30
    assert found.best_result["loss"] < 1
