"""TuneBOHB: the model of BOHB, for a scheduler that stops trials after different budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune.objective import Objective
from outplay.tune.search.optuna_search import OptunaSearch
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from outplay.tune.analysis import ExperimentAnalysis


class TuneBOHB(OptunaSearch):
    """TPE on the results of one budget: the largest one that enough trials have reached (Falkner et al. 2018).

    >>> tune.run(train, search_alg=TuneBOHB(), scheduler=HyperBandForBOHB(max_t=81), metric="loss", mode="min")

    The budget of a result is its `training_iteration`. With d variables, a model needs d + 3 results.
    """

    def __init__(
        self,
        *,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        warm_start: Iterable[Any] | ExperimentAnalysis | str | Path | None = None,
        time_attr: str = "training_iteration",
        min_points_in_model: int | None = None,
        random_fraction: float = 1 / 3,
    ) -> None:
        """`min_points_in_model`: N_min of the paper, d + 1 if None; a model needs two more results.

        `random_fraction`: the share of random suggestions.
        """
        super().__init__(
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            seed=seed,
            sampler=_tpe,
            warm_start=warm_start,
        )
        if min_points_in_model is not None and min_points_in_model < 1:
            raise ConfigError(f"min_points_in_model must be at least 1, not {min_points_in_model}")
        if not 0 <= random_fraction <= 1:
            raise ConfigError(f"random_fraction must be from 0 to 1, not {random_fraction}")
        self.time_attr, self.min_points, self.random_fraction = time_attr, min_points_in_model, random_fraction

    def setup(self, space: Space, objective: Objective, seed: int) -> None:
        if len(self.own_objective.agreed(objective, type(self).__name__).metrics) > 1:
            raise ConfigError("TuneBOHB optimises one metric; use OptunaSearch for several")
        self.known: dict[str, Values] = {}
        self.waiting: set[str] = set()  # trials without any result
        self.results: dict[float, dict[str, float]] = {}  # by budget and trial
        super().setup(space, objective, seed)

    @property
    def budget(self) -> float | None:
        """The budget that is modelled; None if there are too few results."""
        needed = (len(self.space.names) + 1 if self.min_points is None else self.min_points) + 2
        return max((budget for budget, results in self.results.items() if len(results) >= needed), default=None)

    def learn(self, name: str, values: Values, result: Metrics) -> None:
        self.known[name] = values
        self.on_complete(name, result)

    def suggest(self, trial_id: str) -> Values | None:
        is_random = stream(self.seed, "bohb", self.suggested).random() < self.random_fraction
        self._rebuild(None if is_random else self.budget)
        values = super().suggest(trial_id)
        assert values is not None
        self._add(trial_id, values)
        return values

    def repeat(self, trial_id: str, values: Values) -> None:
        self._add(trial_id, values)
        self.suggested += 1

    def _add(self, trial_id: str, values: Values) -> None:
        self.known[trial_id] = values
        self.waiting.add(trial_id)

    def on_result(self, trial_id: str, result: Metrics) -> None:
        budget, score = result.get(self.time_attr), self.objective.value(result)
        if isinstance(budget, int | float) and not math.isnan(score):
            self.results.setdefault(budget, {})[trial_id] = score
            self.waiting.discard(trial_id)

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        if result and not error:
            self.on_result(trial_id, result)
        self.waiting.discard(trial_id)

    def _rebuild(self, budget: float | None) -> None:
        """Optuna's study with the results of one budget. Trials without a result are running ones."""
        from optuna.trial import TrialState, create_trial

        from outplay.tune.search.storage import open_study

        self.study, self.storage = open_study(None, None, self.objective.modes, self.sampler)
        if budget is None:
            return
        scores = self.results[budget]
        for trial_id, values in self.known.items():
            params = self._encoded(values)
            if params is None or (trial_id not in scores and trial_id not in self.waiting):
                continue
            self.study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if trial_id in scores else TrialState.RUNNING,
                    value=scores.get(trial_id),
                    params=params,
                    distributions={name: self.variables.by_name[name].distribution for name in params},
                )
            )


def _tpe(seed: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)
