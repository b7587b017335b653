"""Searchers: what chooses the values of the next trial."""

from outplay.tune.search.base import FINISHED, Finished, Searcher
from outplay.tune.search.variants import Variants

__all__ = ["FINISHED", "Finished", "Searcher", "Variants"]
