"""Searchers: what chooses the values of the next trial."""

from outplay.tune.search.base import FINISHED, Finished, Searcher
from outplay.tune.search.bohb import TuneBOHB
from outplay.tune.search.limiter import ConcurrencyLimiter
from outplay.tune.search.optuna_search import OptunaSearch
from outplay.tune.search.variants import Variants

__all__ = ["FINISHED", "ConcurrencyLimiter", "Finished", "OptunaSearch", "Searcher", "TuneBOHB", "Variants"]
