"""WarmUp: chooses the population of population-based training among more trials."""

from __future__ import annotations

import math

from outplay.errors import ConfigError
from outplay.tune.schedulers.base import CONTINUE, NOTHING, PAUSE, STOP, Decision, Decisions
from outplay.tune.schedulers.measure import check


class WarmUp:
    """The first `trials` trials run to `time`; the best `keep` of them continue when all of them are there.

    With no trials there is no warm-up: all trials continue.
    """

    def __init__(self, trials: int = 0, keep: int = 0, time: float = math.inf) -> None:
        self.trials, self.keep, self.time = trials, keep, time
        self._running: set[str] = set()  # on their way to `time`
        self._added = 0
        self._arrived: dict[str, float] = {}  # the best so far, with their scores

    @classmethod
    def of(cls, who: str, initial_trials: int | None, population_size: int | None, warm_up_t: float | None) -> WarmUp:
        given = {"initial_trials": initial_trials, "population_size": population_size, "warm_up_t": warm_up_t}
        if missing := [name for name, value in given.items() if value is None]:
            if len(missing) < len(given):
                raise ConfigError(f"{who}: {', '.join(given)} belong together; {missing[0]} is missing")
            return cls()
        assert initial_trials is not None and population_size is not None and warm_up_t is not None  # noqa: PT018
        check(who, "population_size", population_size, least=1)
        check(who, "initial_trials", initial_trials, least=population_size)
        check(who, "warm_up_t", warm_up_t, above=0)
        return cls(initial_trials, population_size, warm_up_t)

    def add(self, trial_id: str) -> None:
        if self._added < self.trials:
            self._added += 1
            self._running.add(trial_id)

    def has(self, trial_id: str) -> bool:
        """Whether a trial is still on its way."""
        return trial_id in self._running

    def arrive(self, trial_id: str, score: float) -> Decisions:
        """A trial has reached the time. The worst stops as soon as there are too many: it will not be chosen."""
        self._running.discard(trial_id)
        self._arrived[trial_id] = score
        decisions: dict[str, Decision] = {trial_id: PAUSE}
        if len(self._arrived) > self.keep:
            worst = min(reversed(self._arrived), key=lambda each: self._arrived[each])  # the last to come, if equal
            del self._arrived[worst]
            decisions[worst] = STOP
        return {**decisions, **self._finished()}

    def leave(self, trial_id: str) -> Decisions:
        """A trial has ended by itself."""
        if trial_id not in self._running:
            return NOTHING
        self._running.discard(trial_id)
        return self._finished()

    def finish(self) -> Decisions:
        """No more trials come."""
        chosen, self._arrived, self._added = self._arrived, {}, self.trials
        return dict.fromkeys(chosen, CONTINUE)

    def _finished(self) -> Decisions:
        return self.finish() if self._added == self.trials and not self._running else NOTHING
