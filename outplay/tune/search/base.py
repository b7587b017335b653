"""The Searcher protocol: what chooses the values of the next trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from outplay.errors import ConfigError
from outplay.tune.domains import Grid
from outplay.tune.objective import Objective
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics


class Finished:
    """What `suggest` returns if there will be no more suggestions."""

    def __repr__(self) -> str:
        return "FINISHED"


FINISHED = Finished()


class Searcher(ABC):
    """Chooses the values of variables. Subclass it to use a search tool of your own.

    >>> class Halving(Searcher):
    ...     def suggest(self, trial_id):
    ...         return {"lr": 0.1 / 2 ** int(trial_id)}

    A study that is resumed repeats all calls in the same order: `repeat` for each suggestion, `on_result`,
    `on_complete`. So a searcher whose suggestions follow from these calls and from `seed` need not save anything. For
    one that has more state, such as a random generator of its own, `save` returns it. It is written to the journal at
    the start and after each suggestion that changed it, and given to `restore` at that point of the repetition.
    """

    space: Space
    objective: Objective
    seed: int
    allows_grids = False

    def setup(self, space: Space, objective: Objective, seed: int) -> None:
        """Called once, before all other methods. Raises ConfigError if the space cannot be searched."""
        self.space, self.objective, self.seed = space, objective, seed
        for name, domain in space.domains.items():
            if isinstance(domain, Grid) and not self.allows_grids:
                raise ConfigError(
                    f"{name}: grid_search cannot be combined with {type(self).__name__}; use choice, or no search_alg"
                )

    @abstractmethod
    def suggest(self, trial_id: str) -> Values | Finished | None:
        """The values for a new trial; None if results are needed first; FINISHED if there are no more."""

    def on_result(self, trial_id: str, result: Metrics) -> None:
        """A trial has reported a result."""

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        """A trial has ended, with this last result. `error`: it failed."""

    def repeat(self, trial_id: str, values: Values) -> None:
        """The study is resumed, and had got these values for this trial."""
        self.suggest(trial_id)

    def save(self) -> dict[str, Any] | None:
        """The state, as JSON can hold it; None if it follows from the calls."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with a saved state."""
        raise NotImplementedError(f"{type(self).__name__}.save returns a state, so it needs a method restore(state)")
