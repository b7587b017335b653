"""All searchers pass the suite for searchers of other packages. Quick: one sampler without a state, one with one."""

from __future__ import annotations

from typing import Any

import pytest

from outplay.testing import SearcherConformance
from outplay.tune.objective import Objective
from outplay.tune.search import ConcurrencyLimiter, OptunaSearch, Searcher, TuneBOHB, Variants

BOTH = Objective.of(["score", "time"], ["max", "min"])


class TestVariants(SearcherConformance):
    def make(self) -> Searcher:
        return Variants(num_samples=15)


class TestTPE(SearcherConformance):
    def make(self) -> Searcher:
        return OptunaSearch(points_to_evaluate=[{"lr": 0.01}])


@pytest.mark.slow
class TestTPEOfTwoMetrics(SearcherConformance):
    objective = BOTH

    def make(self) -> Searcher:
        return OptunaSearch(sampler="tpe", constraints=lambda result: [result["score"] - 3, -1])


@pytest.mark.slow
class TestGP(SearcherConformance):
    trials = 14

    def make(self) -> Searcher:
        return OptunaSearch(sampler="gp")


class TestCMAES(SearcherConformance):
    trials = 30

    def make(self) -> Searcher:
        return OptunaSearch(sampler="cmaes", points_to_evaluate=[{"lr": 0.01}])


@pytest.mark.slow
class TestNSGA2(SearcherConformance):
    """The factory's population is small, so that there are several generations."""

    objective = BOTH
    trials = 30

    def make(self) -> Searcher:
        return OptunaSearch(sampler=small_nsga2)


@pytest.mark.slow
class TestNSGA3(SearcherConformance):
    objective = BOTH
    trials = 70  # a generation has 50 trials

    def make(self) -> Searcher:
        return OptunaSearch(sampler="nsga3")


@pytest.mark.slow
class TestQMC(SearcherConformance):
    def make(self) -> Searcher:
        return OptunaSearch(sampler="qmc")


@pytest.mark.slow
class TestRandom(SearcherConformance):
    def make(self) -> Searcher:
        return OptunaSearch(sampler="random")


class TestBOHB(SearcherConformance):
    def make(self) -> Searcher:
        return TuneBOHB(points_to_evaluate=[{"lr": 0.01}])


@pytest.mark.slow
class TestLimited(SearcherConformance):
    def make(self) -> Searcher:
        return ConcurrencyLimiter(OptunaSearch(), max_concurrent=2)


@pytest.mark.slow
class TestLimitedBatches(SearcherConformance):
    def make(self) -> Searcher:
        return ConcurrencyLimiter(OptunaSearch(), max_concurrent=2, batch=True)


@pytest.mark.slow
class TestShared(SearcherConformance):
    """In a database. Each searcher of a test has a study of its own, apart from the one that is resumed."""

    trials = 14

    @pytest.fixture(autouse=True)
    def _storage(self, tmp_path: Any) -> None:
        self.url, self.made = f"sqlite:///{tmp_path}/study.db", 0

    def make(self) -> Searcher:
        self.made += 1
        return OptunaSearch(storage=self.url, study_name=f"study {min(self.made, 2)}")


def small_nsga2(seed: int) -> Any:
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=seed, population_size=6)
