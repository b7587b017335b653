"""Grid and random search."""

from __future__ import annotations

from collections.abc import Sequence

from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune.objective import Objective
from outplay.tune.search.base import FINISHED, Finished, Searcher
from outplay.tune.spaces import Space, Values, checked_point


class Variants(Searcher):
    """All combinations of the grids, `num_samples` times; other variables are random.

    The values of trial i depend on the seed and on i alone, not on how many trials run at once.
    """

    allows_grids = True

    def __init__(self, num_samples: int = 1, points_to_evaluate: Sequence[Values] | None = None) -> None:
        """`num_samples`: -1 for no end. `points_to_evaluate`: values to try first; the others are random.

        They count as samples, as in Ray. With grids they are tried before the grids, of which nothing is left out.
        """
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or (num_samples < 1 and num_samples != -1):
            raise ConfigError(f"num_samples must be an integer of at least 1, or -1 for no limit, not {num_samples!r}")
        self.num_samples = num_samples
        self.points = list(points_to_evaluate or [])
        self.suggested = 0

    def setup(self, space: Space, objective: Objective, seed: int) -> None:
        super().setup(space, objective, seed)
        self.points = [checked_point(point, space) for point in self.points]

    @property
    def total(self) -> int | None:
        """The number of trials; None if there is no end."""
        if self.num_samples < 0:
            return None
        number = self.num_samples * self.space.grid_size
        return len(self.points) + number if self.space.grids else max(len(self.points), number)

    def suggest(self, trial_id: str) -> Values | Finished:
        index = self.suggested
        if self.total is not None and index >= self.total:
            return FINISHED
        self.suggested += 1
        rng = stream(self.seed, "tune", index)
        if index < len(self.points):
            return self.space.sample(rng, self.points[index])
        return self.space.sample(rng, self.space.grid_point((index - len(self.points)) % self.space.grid_size))
