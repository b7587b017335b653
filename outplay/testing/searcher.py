"""Conformance suite for searchers: values within the space, determinism, resuming, failed trials, the end."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune import domains
from outplay.tune.domains import Domain
from outplay.tune.objective import Objective
from outplay.tune.search import FINISHED, Finished, Searcher
from outplay.tune.spaces import Space, Values

FLAT: dict[str, Any] = {
    "lr": domains.loguniform(1e-5, 1e-1),
    "model": {"layers": domains.randint(1, 5), "dropout": domains.quniform(0.0, 0.5, 0.1)},
    "activation": domains.choice(["relu", "tanh", "silu"]),
    "env": "CartPole-v1",
}
CONDITIONAL: dict[str, Any] = {
    "lr": domains.uniform(0.0, 1.0),
    "optimizer": domains.choice(
        [{"name": "sgd", "momentum": domains.uniform(0.5, 0.99)}, {"name": "adam", "beta": domains.uniform(0.9, 0.999)}]
    ),
}
Event = tuple[Any, ...]


class SearcherConformance:
    """Tests of a searcher. Set how one is made.

    >>> class TestMine(SearcherConformance):
    ...     def make(self):
    ...         return Mine()
    """

    # A space that the searcher supports.
    config: ClassVar[Mapping[str, Any]] = FLAT
    objective: ClassVar[Objective] = Objective.of("score", "max")
    # Trials of each test: enough that the searcher uses what it has learned.
    trials: ClassVar[int] = 20
    # False for a searcher that needs every variable in every trial: `setup` must raise ConfigError if one is missing.
    is_conditional: ClassVar[bool] = True
    # False for a searcher without random numbers: other seeds may give the same suggestions.
    is_random: ClassVar[bool] = True

    @abstractmethod
    def make(self) -> Searcher:
        """A new searcher, always with the same settings."""

    def study(self, config: Mapping[str, Any] | None = None, seed: int = 7, at_once: int = 1) -> SimulatedStudy:
        searcher = self.make()
        searcher.setup(Space(self.config if config is None else config), self.objective, seed)
        return SimulatedStudy(searcher, self.objective, at_once)

    # Values.

    def test_suggestions_lie_in_the_space(self) -> None:
        study = self.study().run(self.trials)
        assert study.suggested
        check_values(Space(self.config), study.suggested.values())

    def test_conditional_variables_exist_only_if_their_value_is_chosen(self) -> None:
        if not self.is_conditional:
            with pytest.raises(ConfigError) as caught:
                self.study(CONDITIONAL)
            assert "\n" not in str(caught.value)
            return
        study = self.study(CONDITIONAL).run(self.trials)
        check_values(Space(CONDITIONAL), study.suggested.values())
        kinds = {tuple(sorted(values)) for values in study.suggested.values()}
        assert kinds <= {("lr", "optimizer", "optimizer/momentum"), ("lr", "optimizer", "optimizer/beta")}
        assert len(kinds) == 2, "only one of two values was ever chosen"

    def test_grids_are_combined_or_refused(self) -> None:
        config = {"lr": domains.uniform(0.0, 1.0), "layers": domains.grid_search([1, 2])}
        if self.make().allows_grids:
            study = self.study(config).run(self.trials)
            assert {values["layers"] for values in study.suggested.values()} == {1, 2}
            return
        with pytest.raises(ConfigError, match="grid_search"):
            self.study(config)

    # Determinism.

    @pytest.mark.parametrize("at_once", [1, 3])
    def test_the_same_calls_give_the_same_suggestions(self, at_once: int) -> None:
        first, second = (self.study(at_once=at_once).run(self.trials) for _ in range(2))
        assert first.suggested == second.suggested

    def test_another_seed_gives_other_suggestions(self) -> None:
        if not self.is_random:
            pytest.skip("it has no random numbers")
        first, second = (self.study(seed=seed).run(self.trials) for seed in (1, 2))
        assert first.suggested != second.suggested

    @pytest.mark.parametrize("at_once", [1, 3])
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8])
    def test_a_resumed_study_goes_on_as_an_undisturbed_one(self, share: float, at_once: int) -> None:
        self.check_resuming(self.config, share, at_once)

    @pytest.mark.parametrize("at_once", [1, 3])
    def test_a_resumed_study_with_conditional_variables_goes_on_as_an_undisturbed_one(self, at_once: int) -> None:
        if not self.is_conditional:
            pytest.skip("it does not support them")
        self.check_resuming(CONDITIONAL, 0.6, at_once)

    def check_resuming(self, config: Mapping[str, Any], share: float, at_once: int) -> None:
        undisturbed = self.study(config, at_once=at_once).run(self.trials)
        killed = self.study(config, at_once=at_once).run(self.trials, events=int(share * len(undisturbed.journal)))
        resumed = killed.resumed(self.study(config, at_once=at_once).searcher).run(self.trials)
        assert resumed.journal == undisturbed.journal

    # Trials that fail, and the end.

    @pytest.mark.parametrize("result", [None, {}, {"score": math.nan}, {"score": None}, {"score": 1.0}])
    def test_trials_that_fail_do_not_stop_the_search(self, result: dict[str, Any] | None) -> None:
        study = self.study()
        for i in range(self.trials):
            values = study.searcher.suggest(f"{i:05}")
            if isinstance(values, Finished):
                break
            assert values is not None, "it waits for results, but no trial runs"
            study.searcher.on_complete(f"{i:05}", result, error=result is None or result == {"score": 1.0})
        study.next_index = self.trials
        study.run(3)

    def test_it_ends_with_finished_and_waits_only_for_results(self) -> None:
        study = self.study(at_once=10**6)
        study.run(self.trials, events=self.trials)  # trials that all run at once
        while study.running:
            study.finish()
        values = study.searcher.suggest(f"{self.trials:05}")
        assert isinstance(values, dict | Finished), "it waits for results, but no trial runs"
        if study.is_finished or values is FINISHED:
            assert values is FINISHED, "it has said FINISHED before"
            assert study.searcher.suggest(f"{self.trials + 1:05}") is FINISHED


@dataclass
class SimulatedStudy:
    """Calls a searcher as a study does: trials run side by side, report twice, end in any order, and some fail."""

    searcher: Searcher
    objective: Objective
    at_once: int
    journal: list[Event] = field(default_factory=list)
    suggested: dict[str, Values] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    next_index: int = 0
    is_finished: bool = False

    def run(self, trials: int, events: float = math.inf) -> SimulatedStudy:
        """Up to this many trials more than it began with, or up to this many events in total."""
        last = self.next_index - len(self.suggested) + trials
        while len(self.journal) < events:
            may_start = len(self.running) < self.at_once and self.next_index < last and not self.is_finished
            if may_start and self.start():
                continue
            if not self.running:
                assert not may_start or self.is_finished, "it waits for results, but no trial runs"
                break
            self.finish()
        return self

    def start(self) -> bool:
        trial_id = f"{self.next_index:05}"
        values = self.searcher.suggest(trial_id)
        if isinstance(values, Finished):
            self.is_finished = True
        if not isinstance(values, dict):
            return False
        self.next_index += 1
        self.running.append(trial_id)
        self.suggested[trial_id] = values
        self.journal.append(("suggest", trial_id, values))
        return True

    def finish(self) -> None:
        """The next result of a trial that runs; the last one ends it."""
        rng = stream(0, "simulated study", len(self.journal))
        trial_id = self.running[int(rng.integers(len(self.running)))]
        seen = sum(event[0] == "result" and event[1] == trial_id for event in self.journal)
        result = results(self.suggested[trial_id], self.objective, seen + 1)
        if seen < 2:
            self.searcher.on_result(trial_id, result)
            self.journal.append(("result", trial_id, result))
            return
        failed = int(trial_id) % 7 == 3
        result = results(self.suggested[trial_id], self.objective, 2)
        self.running.remove(trial_id)
        self.searcher.on_complete(trial_id, None if failed else result, failed)
        self.journal.append(("complete", trial_id, None if failed else result, failed))

    def resumed(self, searcher: Searcher) -> SimulatedStudy:
        """The study as a new driver continues it."""
        if (state := self.searcher.save()) is not None:
            searcher.restore(json.loads(json.dumps(state)))
        else:
            calls: dict[str, Callable[..., None]] = {
                "suggest": searcher.repeat, "result": searcher.on_result, "complete": searcher.on_complete,
            }  # fmt: skip
            for name, *arguments in self.journal:
                calls[name](*arguments)
        return SimulatedStudy(
            searcher, self.objective, self.at_once, list(self.journal), dict(self.suggested), list(self.running),
            self.next_index, self.is_finished,
        )  # fmt: skip


def results(values: Values, objective: Objective, iteration: int) -> dict[str, Any]:
    """A result that depends on the values, in the same way in each run."""
    numbers = [value for value in values.values() if isinstance(value, int | float)]
    scores = {
        metric: sum((-1) ** i * (number - i) ** 2 for number in numbers) * iteration + i
        for i, metric in enumerate(objective.metrics)
    }
    return {"training_iteration": iteration, **scores}


def check_values(space: Space, suggestions: Iterable[Values]) -> None:
    """All variables have values, of plain types, within their domains."""
    for values in suggestions:
        space.config(values)  # raises if one is missing or unknown

        def check(name: str, domain: Domain, values: Values = values) -> Any:
            assert is_in(values[name], domain), f"{name}={values[name]!r} is not in {domain}"
            return values[name]

        space.choose(check)


def is_in(value: Any, domain: Domain) -> bool:
    """Numbers must be Python's own: NumPy's cannot be written as JSON."""
    if isinstance(domain, domains.Categorical | domains.Grid):
        return any(value is known or (type(value) is type(known) and value == known) for known in domain.values)
    if isinstance(domain, domains.Normal):
        return type(value) is float and math.isfinite(value)
    if isinstance(domain, domains.Integer):
        return type(value) is int and domain.low <= value <= domain.last and value % domain.q == 0
    assert isinstance(domain, domains.Float)
    on_grid = domain.q is None or math.isclose(round(value / domain.q) * domain.q, value, abs_tol=1e-9)
    return type(value) is float and domain.low <= value <= domain.high and on_grid
