"""OptunaSearch: values chosen by a sampler of Optuna."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outplay.errors import ConfigError, nearest
from outplay.tune.domains import Domain
from outplay.tune.objective import Objective, number
from outplay.tune.search.base import Searcher
from outplay.tune.search.variables import Variables
from outplay.tune.spaces import Space, Values
from outplay.tune.text import domain_text
from outplay.tune.trial import Metrics

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    from outplay.tune.analysis import ExperimentAnalysis

log = logging.getLogger("outplay")

Constraints = Callable[[Metrics], Sequence[float]]
_TAG = "outplay_trial"  # user attribute of a trial in a shared storage: driver and trial


class OptunaSearch(Searcher):
    """Search with a sampler of Optuna.

    >>> OptunaSearch(sampler="tpe")
    >>> OptunaSearch(sampler=lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=20))
    >>> OptunaSearch(metric=["return", "time"], mode=["max", "min"], sampler="nsga2")
    >>> OptunaSearch(constraints=lambda result: [result["memory_gb"] - 8])
    >>> OptunaSearch(storage="postgresql://user@host/database", study_name="cartpole")

    A new sampler is made for each suggestion, with a seed of its own. So suggestions follow from the seed and from the
    results so far, and a resumed study goes on as an undisturbed one. Trials without a result are known to the sampler
    as running ones. Failed trials, and those whose metric is not a number, are told as failed.
    """

    def __init__(
        self,
        *,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float | Sequence[float]] | None = None,
        sampler: str | Callable[[int], BaseSampler] = "tpe",
        seed: int | None = None,
        constraints: Constraints | None = None,
        warm_start: Iterable[Any] | ExperimentAnalysis | str | Path | None = None,
        storage: str | BaseStorage | None = None,
        study_name: str | None = None,
    ) -> None:
        """`metric`, `mode`, `seed`: None for those of the study.

        `points_to_evaluate`: values to try first; variables that are not named are chosen by the sampler.
        `evaluated_rewards`: the metric for each of these points, which are then not tried.
        `sampler`: "tpe", "gp", "cmaes", "nsga2", "nsga3", "qmc", "random", or a function of a seed.
        `constraints`: a function of a trial's last result. The trial is feasible if all its numbers are at most 0.
        `warm_start`: earlier trials, see the method of this name.
        `storage`: an SQLAlchemy URL or a storage of Optuna, for drivers that share results; None: in memory.
        """
        self.own_objective = Objective.of(metric, mode)
        self.own_seed, self.sampler_given, self.constraints = seed, sampler, constraints
        self.points_given = [dict(point) for point in points_to_evaluate or ()]
        self.rewards = None if evaluated_rewards is None else list(evaluated_rewards)
        if self.rewards is not None and len(self.rewards) != len(self.points_given):
            raise ConfigError(
                f"evaluated_rewards has {len(self.rewards)} values for {len(self.points_given)} points_to_evaluate"
            )
        self.earlier: list[tuple[Values, Metrics]] = []
        self.storage_given, self.study_name = storage, study_name
        self.warm_start(() if warm_start is None else warm_start)

    def warm_start(self, trials: Iterable[Any] | ExperimentAnalysis | str | Path) -> OptunaSearch:
        """Learn from an earlier study: its folder, its analysis, trials, or pairs of values and result.

        To be called before the study. Trials outside the search space are not used.

        >>> OptunaSearch().warm_start("~/studies/first")
        """
        if isinstance(trials, str | Path):
            from outplay.tune.analysis import ExperimentAnalysis

            trials = ExperimentAnalysis(trials)
        trials = getattr(trials, "trials", trials)
        for trial in cast("Iterable[Any]", trials):
            values, result = trial if isinstance(trial, tuple) else (trial.values, trial.last_result)
            self.earlier.append((dict(values), dict(result or {})))
        return self

    # The study.

    def setup(self, space: Space, objective: Objective, seed: int) -> None:
        objective = self.own_objective.agreed(objective, type(self).__name__)
        if not objective.metrics:
            raise ConfigError(f"{type(self).__name__} needs a metric: metric='score', mode='max'")
        super().setup(space, objective, seed if self.own_seed is None else self.own_seed)
        from outplay.tune.search.samplers import PerSuggestion, kind_of
        from outplay.tune.search.storage import open_study

        self.variables = Variables(space, type(self).__name__)
        kind = kind_of(self.sampler_given, len(objective.metrics))
        self.sampler = PerSuggestion(
            kind, self.seed, lambda name, number: self.variables.by_name[name].canonical(number)
        )
        self.points = [self._checked(point) for point in self.points_given]
        self.suggested = 0
        self.numbers: dict[str, int] = {}  # Optuna's numbers of the trials that have not ended, by trial id
        self.study, self.storage = open_study(self.storage_given, self.study_name, objective.modes, self.sampler)
        self.driver = uuid.uuid4().hex  # of the trials in a shared storage; nothing else depends on it
        self._learn_earlier()

    def _checked(self, point: Values) -> Values:
        flat = _flat(point, self.variables.by_path)
        for path, value in flat.items():
            if path not in self.variables.by_path:
                hint = nearest(path, self.variables.by_path)
                raise ConfigError(f"points_to_evaluate: the config has no variable {path!r}{hint}")
            if not self.variables.encoded({path: value}):
                domain = self.variables.by_path[path][0].domain
                raise ConfigError(f"points_to_evaluate: {path}={value!r} is not in {domain_text(domain)}")
        return flat

    def _learn_earlier(self) -> None:
        if self.rewards is not None:
            for i, (point, reward) in enumerate(zip(self.points, self.rewards, strict=True)):
                rewards = [reward] if isinstance(reward, int | float) else list(reward)
                if len(rewards) != len(self.objective.metrics):
                    raise ConfigError(f"evaluated_rewards: {reward!r} is not one number per metric")
                if self._encoded(point) is None:
                    raise ConfigError(f"evaluated_rewards: {point!r} needs values for all variables")
                self.learn(f"evaluated/{i}", point, dict(zip(self.objective.metrics, rewards, strict=True)))
            self.points = []
        outside = useless = 0
        for i, (values, result) in enumerate(self.earlier):
            if self._encoded(values) is None:
                outside += 1
            elif self._scores(result) is None:
                useless += 1
            else:
                self.learn(f"earlier/{i}", values, result)
        if outside or useless:
            log.warning(
                "warm start: %d of %d trials are not used: %d are outside the search space, %d have no result",
                outside + useless, len(self.earlier), outside, useless,
            )  # fmt: skip

    def learn(self, name: str, values: Values, result: Metrics) -> None:
        """Take the result of a trial of another study."""
        if self._stored(name, driver="") is None:
            self._ask(name, values, is_known=True, driver="")
            self.on_complete(name, result)

    # Suggestions.

    def suggest(self, trial_id: str) -> Values | None:
        point = self.points[self.suggested] if self.suggested < len(self.points) else {}
        values = self._ask(trial_id, point)
        self.suggested += 1
        return values

    def repeat(self, trial_id: str, values: Values) -> None:
        self._ask(trial_id, values, is_known=not self.variables.is_conditional and self._encoded(values) is not None)
        self.suggested += 1

    def _ask(self, trial_id: str, given: Values, is_known: bool = False, driver: str | None = None) -> Values:
        """A new running trial in Optuna's study. Its values are those that are given, and others by the sampler."""
        if (stored := self._stored(trial_id, driver)) is not None:
            self.numbers[trial_id] = stored.number
            return self._decoded(stored.params, given)
        index = self.suggested if self.storage_given is None else None
        self.sampler.prepare(index, self.variables.encoded(given), is_known)
        trial = self.study.ask()

        def ask(path: str, domain: Domain) -> Any:
            variable = self.variables.find(path, domain)
            number = variable.ask(trial)
            return variable.value(number, given[path]) if path in given else variable.decode(number)

        try:
            values = self.space.choose(ask)
        except ValueError as error:
            if self.storage_given is None:
                raise
            raise ConfigError(f"the study {self.study_name!r} has other variables in this storage: {error}") from error
        if self.storage_given is not None:
            trial.set_user_attr(_TAG, self._tag(trial_id, driver))  # last: a trial that has it is complete
        self.numbers[trial_id] = trial.number
        return values

    def _decoded(self, params: Mapping[str, Any], given: Values) -> Values:
        def ask(path: str, domain: Domain) -> Any:
            variable = self.variables.find(path, domain)
            number = params[variable.name]
            return variable.value(number, given[path]) if path in given else variable.decode(number)

        return self.space.choose(ask)

    def _encoded(self, values: Values) -> dict[str, Any] | None:
        """The numbers of all variables; None if one is missing or outside its domain."""
        encoded = self.variables.encoded(values)
        found = {}

        def ask(path: str, domain: Domain) -> Any:
            variable = self.variables.find(path, domain)
            number = found[variable.name] = encoded[variable.name]
            return variable.value(number, values[path])

        try:
            used = self.space.choose(ask)
        except KeyError:
            return None
        return found if set(used) == set(values) else None

    # Results.

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        from optuna.trial import TrialState

        if trial_id not in self.numbers:
            raise ValueError(
                f"trial {trial_id!r} has ended already, or was not suggested by this {type(self).__name__}"
            )
        number = self.numbers.pop(trial_id)
        if self.storage_given is not None and self._trial(number).state.is_finished():
            return  # told before the driver crashed
        scores = None if error else self._scores(result or {})
        limits = [] if scores is None or self.constraints is None else self._limits(self.constraints, result or {})
        if not error and scores is None:
            log.warning(
                "trial %s: %s is not a number in its last result; the searcher counts the trial as failed",
                trial_id, " or ".join(self.objective.metrics),
            )  # fmt: skip
        if scores is None or limits is None:
            self.study.tell(number, state=TrialState.FAIL)
            return
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        optuna_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        for i, limit in enumerate(limits):  # as Trial.set_constraint stores them
            self.storage.set_trial_system_attr(optuna_id, f"constraints:{i}", limit)
        self.study.tell(number, scores)

    def _scores(self, result: Metrics) -> list[float] | None:
        scores = [number(result, metric) for metric in self.objective.metrics]
        return None if any(map(math.isnan, scores)) else scores

    def _limits(self, constraints: Constraints, result: Metrics) -> list[float] | None:
        given = constraints(result)
        try:
            limits = [float(value) for value in given]
        except (TypeError, ValueError):
            raise ConfigError(f"constraints must return a list of numbers, not {given!r}") from None
        if any(map(math.isnan, limits)):
            log.warning("constraints returned NaN; the searcher counts the trial as failed")
            return None
        return limits

    # A storage that is shared. It holds the trials, so calls that it knows of already change nothing.

    def save(self) -> dict[str, Any] | None:
        return None if self.storage_given is None else {"driver": self.driver}

    def restore(self, state: dict[str, Any]) -> None:
        self.driver = state["driver"]
        own = [t for t in self.study.get_trials(deepcopy=False) if t.user_attrs.get(_TAG, "").startswith(self.driver)]
        self.numbers = {t.user_attrs[_TAG].partition("/")[2]: t.number for t in own if not t.state.is_finished()}
        self.suggested = len(own)

    def _tag(self, trial_id: str, driver: str | None) -> str:
        return f"{self.driver if driver is None else driver}/{trial_id}"

    def _stored(self, trial_id: str, driver: str | None = None) -> Any:
        if self.storage_given is None:
            return None
        tag = self._tag(trial_id, driver)
        return next((t for t in self.study.get_trials(deepcopy=False) if t.user_attrs.get(_TAG) == tag), None)

    def _trial(self, number: int) -> Any:
        return self.study.get_trials(deepcopy=False)[number]


def _flat(config: Mapping[str, Any], paths: Iterable[str], prefix: str = "") -> Values:
    """A point that is written like the config: {"model": {"layers": 2}} is {"model/layers": 2}."""
    found: Values = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in paths:
            found |= _flat(value, paths, f"{path}/")
        else:
            found[path] = value
    return found
