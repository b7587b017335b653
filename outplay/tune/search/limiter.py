"""ConcurrencyLimiter: limits the number of unfinished trials of a searcher."""

from __future__ import annotations

from typing import Any

from outplay.errors import ConfigError
from outplay.tune.objective import Objective
from outplay.tune.search.base import Finished, Searcher
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics


class ConcurrencyLimiter(Searcher):
    """Limits the number of trials that wait for a result, so that a searcher learns more between its suggestions.

    >>> ConcurrencyLimiter(OptunaSearch(), max_concurrent=4)
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        """`batch`: the next trials begin when all trials of a batch have ended; their results are told at once."""
        if not isinstance(searcher, Searcher):
            raise ConfigError(f"ConcurrencyLimiter takes a Searcher, not {searcher!r}")
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 1:
            raise ConfigError(f"max_concurrent must be an integer of at least 1, not {max_concurrent!r}")
        self.searcher, self.max_concurrent, self.batch = searcher, max_concurrent, batch

    def setup(self, space: Space, objective: Objective, seed: int) -> None:
        self.searcher.setup(space, objective, seed)
        self.space, self.objective, self.seed = space, self.searcher.objective, self.searcher.seed
        self.running: list[str] = []
        self.ended: list[tuple[str, Metrics | None, bool]] = []  # of this batch, not told yet

    def suggest(self, trial_id: str) -> Values | Finished | None:
        if len(self.running) + len(self.ended) >= self.max_concurrent:
            return None
        values = self.searcher.suggest(trial_id)
        if isinstance(values, dict):
            self.running.append(trial_id)
        return values

    def on_result(self, trial_id: str, result: Metrics) -> None:
        self.searcher.on_result(trial_id, result)

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        self.running.remove(trial_id)
        self.ended.append((trial_id, result, error))
        if self.batch and self.running:
            return
        for each in self.ended:
            self.searcher.on_complete(*each)
        self.ended = []

    def repeat(self, trial_id: str, values: Values) -> None:
        self.searcher.repeat(trial_id, values)
        self.running.append(trial_id)

    def save(self) -> dict[str, Any] | None:
        state = self.searcher.save()
        return None if state is None else {"searcher": state, "running": list(self.running), "ended": list(self.ended)}

    def restore(self, state: dict[str, Any]) -> None:
        self.searcher.restore(state["searcher"])
        self.running = list(state["running"])
        self.ended = [(trial_id, result, error) for trial_id, result, error in state["ended"]]
