"""Optuna's samplers by name, each made anew for every suggestion.

A sampler that lives for one suggestion has no state of its own. So suggestions follow from the trials in the study and
from the seed, and a study can be rebuilt without pickles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from optuna import Study, samplers
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from outplay.errors import ConfigError, nearest
from outplay.streams import seed_for

Factory = Callable[[int], BaseSampler]


@dataclass(frozen=True)
class Kind:
    """`make`: a sampler of a seed for this suggestion, and of one for the whole study.

    `is_stateless`: nothing is kept in the study but its trials' parameters and values, so that a known suggestion need
    not be asked for again.
    """

    make: Callable[[int, int], BaseSampler]
    is_stateless: bool = False
    objectives: int | None = None  # the largest number of them
    needs: tuple[str, ...] = ()  # modules
    has_after_trial: bool = False  # whether the sampler must be told of ended trials


def _qmc(seed: int, study_seed: int) -> BaseSampler:
    independent = samplers.RandomSampler(seed=seed)  # for the first trial, and for conditional variables
    return samplers.QMCSampler(
        scramble=True, seed=study_seed, independent_sampler=independent, warn_independent_sampling=False
    )


KINDS: dict[str, Kind] = {
    "tpe": Kind(lambda seed, _: samplers.TPESampler(seed=seed, constant_liar=True), is_stateless=True),
    "gp": Kind(
        lambda seed, _: samplers.GPSampler(seed=seed, warn_independent_sampling=False),
        is_stateless=True, needs=("scipy", "torch"),
    ),
    "cmaes": Kind(
        lambda seed, _: samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        objectives=1, needs=("cmaes",),
    ),
    "nsga2": Kind(lambda seed, _: samplers.NSGAIISampler(seed=seed)),
    "nsga3": Kind(lambda seed, _: samplers.NSGAIIISampler(seed=seed)),
    "qmc": Kind(_qmc, needs=("scipy",)),  # the study holds the position in the sequence
    "random": Kind(lambda seed, _: samplers.RandomSampler(seed=seed), is_stateless=True),
}  # fmt: skip


def kind_of(sampler: str | Factory, objectives: int) -> Kind:
    """Raises ConfigError if there is no such sampler, or if it cannot be used."""
    if isinstance(sampler, BaseSampler) or not (callable(sampler) or isinstance(sampler, str)):
        name = type(sampler).__name__
        raise ConfigError(
            "sampler must be a name or a function of a seed, which is called for each suggestion: "
            f"sampler=lambda seed: {name}(seed=seed), not {sampler!r}"
        )
    if not isinstance(sampler, str):
        return Kind(lambda seed, _: sampler(seed), has_after_trial=True)
    if sampler not in KINDS:
        raise ConfigError(f"there is no sampler {sampler!r}{nearest(sampler, KINDS)}")
    kind = KINDS[sampler]
    if kind.objectives is not None and objectives > kind.objectives:
        raise ConfigError(f"sampler={sampler!r} optimises one metric, not {objectives}; use 'nsga2', 'tpe' or 'gp'")
    if missing := [module for module in kind.needs if find_spec(module) is None]:
        raise ConfigError(f"sampler={sampler!r} needs {missing[0]}: pip install 'outplay[tune]'")
    return kind


class PerSuggestion(BaseSampler):
    """A sampler that makes another one for each suggestion. Some or all values can be given.

    Values of the other sampler are made canonical: numbers that stand for the same value become the same number.
    """

    def __init__(self, kind: Kind, seed: int, canonical: Callable[[str, Any], Any]) -> None:
        self.kind, self.seed, self.canonical = kind, seed, canonical
        self.prepare(0, {})

    def prepare(self, index: int | None, given: Mapping[str, Any], is_known: bool = False) -> None:
        """For the next suggestion. `index`: of its seed; None for the trial's number. `is_known`: all are given."""
        self.index, self.given = index, given
        self.is_asked = not (is_known and self.kind.is_stateless)

    def _make(self, index: int) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # else one per suggestion
            return self.kind.make(seed_for(self.seed, "optuna", index), seed_for(self.seed, "optuna"))

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.sampler = self._make(trial.number if self.index is None else self.index)
        if self.is_asked:
            self.sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.sampler.infer_relative_search_space(study, trial) if self.is_asked else {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not self.is_asked:
            return {}
        found = self.sampler.sample_relative(study, trial, search_space)
        canonical = {name: self.canonical(name, value) for name, value in found.items()}
        return canonical | {name: value for name, value in self.given.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if param_name in self.given:
            return self.given[param_name]
        return self.canonical(param_name, self.sampler.sample_independent(study, trial, param_name, param_distribution))

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if self.kind.has_after_trial:
            self._make(trial.number).after_trial(study, trial, state, values)
