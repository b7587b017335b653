"""The suite for searchers notices what is wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from outplay.testing import SearcherConformance
from outplay.tune.search import FINISHED, OptunaSearch, Variants
from outplay.tune.spaces import Values
from outplay.tune.trial import Metrics


class NumPyNumbers(Variants):
    def suggest(self, trial_id: str) -> Any:
        return {name: np.float64(v) if isinstance(v, float) else v for name, v in super().suggest(trial_id).items()}  # type: ignore[union-attr]


class OutsideTheSpace(Variants):
    def suggest(self, trial_id: str) -> Any:
        return {**super().suggest(trial_id), "lr": 7.0}  # type: ignore[dict-item]


class OneBranch(Variants):
    """Never chooses the second of two values."""

    def suggest(self, trial_id: str) -> Any:
        values: Any = super().suggest(trial_id)
        while "optimizer/beta" in values:
            values = super().suggest(trial_id)
        return values


class AllVariables(Variants):
    """Does not know that variables can be conditional."""

    def suggest(self, trial_id: str) -> Any:
        return {"optimizer/beta": 0.9, "optimizer/momentum": 0.9, **super().suggest(trial_id)}  # type: ignore[dict-item]


class Unseeded(Variants):
    def suggest(self, trial_id: str) -> Any:
        return {**super().suggest(trial_id), "lr": random.uniform(1e-5, 1e-1)}  # type: ignore[dict-item]


class SameSeed(OptunaSearch):
    def __init__(self) -> None:
        super().__init__(seed=1)


class ForgetsSuggestions(Variants):
    """Begins anew when it is resumed."""

    def repeat(self, trial_id: str, values: Values) -> None:
        pass


class ForgetsResults(OptunaSearch):
    """Saves how many suggestions there were, but not the results."""

    def save(self) -> Any:
        return {"suggested": self.suggested, "running": list(self.numbers)}

    def restore(self, state: Any) -> None:
        for trial_id in state["running"]:
            self.suggest(trial_id)
        self.suggested = state["suggested"]


class NeedsResults(Variants):
    """Believes that trials never fail."""

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        assert result is not None
        assert isinstance(result["score"], float | int)


class Waits(Variants):
    def suggest(self, trial_id: str) -> Any:
        return None if int(trial_id) >= 3 else super().suggest(trial_id)


class EndsOnce(Variants):
    ended = False

    def suggest(self, trial_id: str) -> Any:
        values = super().suggest(trial_id)
        if values is FINISHED and not self.ended:
            self.ended = True
            return values
        return {} if values is FINISHED else values


@pytest.mark.parametrize(
    ("searcher", "test", "arguments"),
    [
        (NumPyNumbers, "test_suggestions_lie_in_the_space", ()),
        (OutsideTheSpace, "test_suggestions_lie_in_the_space", ()),
        (OneBranch, "test_conditional_variables_exist_only_if_their_value_is_chosen", ()),
        (AllVariables, "test_conditional_variables_exist_only_if_their_value_is_chosen", ()),
        (Unseeded, "test_the_same_calls_give_the_same_suggestions", (1,)),
        (SameSeed, "test_another_seed_gives_other_suggestions", ()),
        (ForgetsSuggestions, "test_a_resumed_study_goes_on_as_an_undisturbed_one", (0.5, 1)),
        (ForgetsResults, "test_a_resumed_study_goes_on_as_an_undisturbed_one", (0.8, 1)),
        (NeedsResults, "test_trials_that_fail_do_not_stop_the_search", (None,)),
        (NeedsResults, "test_trials_that_fail_do_not_stop_the_search", ({"score": None},)),
        (Waits, "test_it_ends_with_finished_and_waits_only_for_results", ()),
        (EndsOnce, "test_it_ends_with_finished_and_waits_only_for_results", ()),
    ],
)
def test_a_searcher_with_a_flaw_fails(searcher: type[Any], test: str, arguments: Any) -> None:
    class Suite(SearcherConformance):
        def make(self) -> Any:
            return (
                searcher(num_samples=15 if searcher is EndsOnce else -1)
                if issubclass(searcher, Variants)
                else searcher()
            )

    with pytest.raises((AssertionError, ValueError)):
        getattr(Suite(), test)(*arguments)


def test_a_sampler_whose_position_is_lost_fails(monkeypatch: Any) -> None:
    """QMC keeps its position in the study: a suggestion that is not asked for again is lost."""
    from dataclasses import replace

    from outplay.tune.search import samplers

    class Suite(SearcherConformance):
        def make(self) -> OptunaSearch:
            return OptunaSearch(sampler="qmc")

    Suite().test_a_resumed_study_goes_on_as_an_undisturbed_one(0.5, 1)
    monkeypatch.setitem(samplers.KINDS, "qmc", replace(samplers.KINDS["qmc"], is_stateless=True))
    with pytest.raises(AssertionError):
        Suite().test_a_resumed_study_goes_on_as_an_undisturbed_one(0.5, 1)
