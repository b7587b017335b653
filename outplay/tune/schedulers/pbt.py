"""Population-based training (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune.objective import Objective
from outplay.tune.schedulers import mutation
from outplay.tune.schedulers.base import CONTINUE, PAUSE, YIELD, Clone, Decision, Decisions, Scheduler
from outplay.tune.schedulers.measure import Measure, check
from outplay.tune.schedulers.warmup import WarmUp
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics, Trial

Explore = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Member:
    """A trial of the population."""

    id: str
    index: int
    values: Values
    time: float = 0.0  # of its newest result
    saved: float | None = None  # of its newest checkpoint
    since: float = 0.0  # when its interval began
    score: float | None = None  # at the end of its last interval
    is_copy: bool = False  # of another one, since then
    clones: int = 0  # how often it became a copy
    waits: bool = False  # for the others, in synchronous training


class PopulationBasedTraining(Scheduler):
    """Trains all trials as one population: bad trials continue as copies of good ones, with other values.

    After each `perturbation_interval`, a trial whose score is in the lowest quantile becomes a copy of a random trial
    of the highest one: it loads its checkpoint, and its values change.

    >>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1), "layers": 2}, metric="score", mode="max",
    ...          num_samples=8, stop={"training_iteration": 100},
    ...          scheduler=PopulationBasedTraining(
    ...              time_attr="training_iteration", perturbation_interval=5,
    ...              hyperparam_mutations={"lr": tune.loguniform(1e-5, 1e-1), "layers": [1, 2, 3]}))

    - `hyperparam_mutations`: what may change. By setting: a list, whose neighbours a value moves to; a Domain such as
      `tune.uniform(0, 1)` or a function without arguments, which give new values. Numbers are multiplied by one of the
      `perturbation_factors` and stay within the Domain's bounds. With `resample_probability`, the new value is random.
      A setting that is not a variable of the config becomes one.
    - `custom_explore_fn`: a function that gets the config with the changed values and returns the config to train with.
    - `quantile_fraction`: the share of the population that is copied, and that is replaced. At most 0.5.
    - `burn_in_period`: nothing changes before this time.
    - `synch`: all trials wait for each other at the end of an interval. If not, each is compared with the newest
      scores of the others. If there are fewer slots than trials, trials take turns after each interval.
    - `require_attrs`: if false, results without the metric or the time are skipped.
    - `log_config`: has no effect, since the lineage of all trials is recorded. See `PopulationBasedTrainingReplay`.

    **A population from a search.** With `initial_trials`, `population_size` and `warm_up_t`, the first `initial_trials`
    trials, whose values are suggested by any searcher, run to the time `warm_up_t`. The best `population_size` of them
    become the population, the others stop. A trial stops as soon as `population_size` others are better, so the
    searcher can learn from it.

    >>> space = {"lr": tune.loguniform(1e-5, 1e-1)}
    >>> tune.run(train, config=space, metric="score", mode="max", num_samples=32, search_alg=OptunaSearch(),
    ...          scheduler=PopulationBasedTraining(
    ...              time_attr="training_iteration", perturbation_interval=5, hyperparam_mutations=space,
    ...              initial_trials=32, population_size=8, warm_up_t=10))
    """

    measure: Measure

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Explore | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        initial_trials: int | None = None,
        population_size: int | None = None,
        warm_up_t: float | None = None,
    ) -> None:
        who = type(self).__name__
        self.measure = Measure(who, time_attr, metric, mode)
        check(who, "perturbation_interval", perturbation_interval, above=0)
        check(who, "burn_in_period", burn_in_period, least=0)
        for name, share, most in (
            ("quantile_fraction", quantile_fraction, 0.5),
            ("resample_probability", resample_probability, 1),
        ):
            if not isinstance(share, int | float) or not 0 <= share <= most:
                raise ConfigError(f"{who}: {name} must be from 0 to {most:g}, not {share!r}")
        if not perturbation_factors or not all(isinstance(each, int | float) for each in perturbation_factors):
            raise ConfigError(f"{who}: perturbation_factors must be numbers, not {perturbation_factors!r}")
        if not hyperparam_mutations and custom_explore_fn is None:
            raise ConfigError(f"{who} needs hyperparam_mutations or custom_explore_fn: else no value would change")
        self.perturbation_interval, self.burn_in_period = perturbation_interval, burn_in_period
        self.quantile_fraction, self.resample_probability = quantile_fraction, resample_probability
        self.perturbation_factors, self.custom_explore_fn = tuple(perturbation_factors), custom_explore_fn
        self.require_attrs, self.synch = require_attrs, synch
        self.mutations = mutation.domains(who, hyperparam_mutations or {})
        self.warm_up = WarmUp.of(who, initial_trials, population_size, warm_up_t)
        self._members: dict[str, Member] = {}  # those that have not ended
        self._longest = 0.0  # time of all results
        self._compares = False  # whether an interval, or the warm-up, of a trial has ended

    @property
    def needs_checkpoints(self) -> bool:
        return True

    def prepare(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return mutation.with_variables(config, self.mutations)

    def setup(self, objective: Objective, space: Space, seed: int) -> None:
        super().setup(objective, space, seed)
        mutation.check_variables(f"{self.measure.who}.hyperparam_mutations", self.mutations, space)

    def on_add(self, trial: Trial) -> None:
        self._members[trial.id] = Member(trial.id, trial.index, dict(trial.values))
        self.warm_up.add(trial.id)

    def wants_checkpoint(self, trial: Trial, result: Metrics) -> bool:
        if not self.require_attrs and not self.measure.is_in(result):
            return False
        return self._is_due(self._members[trial.id], self.measure.time(trial, result))

    def annotated(self, trial: Trial, result: Metrics) -> Metrics:
        if not self.warm_up.has(trial.id) or not self.wants_checkpoint(trial, result):
            return result
        return {**result, "hyperband_info": {"budget": self.warm_up.time}}

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        if not self.require_attrs and not self.measure.is_in(result):
            return {trial.id: CONTINUE}
        time, score = self.measure.time(trial, result), self.measure.score(trial, result)
        member = self._members[trial.id]
        member.time, self._longest = time, max(time, self._longest)
        if trial.checkpoints and trial.checkpoint_iteration >= trial.iteration:
            member.saved = time
        if not self._is_due(member, time):
            return {trial.id: CONTINUE}
        self._compares = True
        if self.warm_up.has(trial.id):
            return self._warmed_up(self.warm_up.arrive(trial.id, score))
        self.rate(member, score)
        if self.synch:
            member.waits = True
            return {trial.id: PAUSE}
        return {trial.id: self._next(member, *self._quantiles(), otherwise=YIELD)}

    def on_complete(self, trial: Trial, result: Metrics) -> Decisions:
        self._members.pop(trial.id, None)
        return self._warmed_up(self.warm_up.leave(trial.id))

    def on_stall(self) -> Decisions:
        """All trials wait at the end of their interval, or of the warm-up. Those that ended are not waited for."""
        if decisions := self._warmed_up(self.warm_up.finish()):
            return decisions
        lowest, highest = self._quantiles()
        waiting = [member for member in self._members.values() if member.waits]
        return {member.id: self._next(member, lowest, highest, otherwise=CONTINUE) for member in waiting}

    def choose(self, runnable: Sequence[Trial]) -> Trial | None:
        """The trial that has been trained least, so that scores of about the same age are compared."""
        return min(runnable, key=lambda trial: (self._members[trial.id].time, trial.index), default=None)

    def rate(self, member: Member, score: float) -> None:
        """The end of a member's interval."""
        member.score, member.is_copy = score, False

    def explore(self, member: Member, source: Member, rng: np.random.Generator) -> Values:
        """The values that `member` continues with, as a copy of `source`."""
        values = dict(source.values)
        for name, domain in self.mutations.items():
            if name in values:  # others are within a value of `choice` that was not chosen
                values[name] = mutation.mutated(
                    values[name], domain, rng, self.resample_probability, self.perturbation_factors
                )
        return values

    def status(self) -> dict[str, Any]:
        return {"population": len(self._members), "copies": sum(member.clones for member in self._members.values())}

    def remark(self) -> str:
        if self._compares or not self._longest:
            return ""
        limits = {"perturbation_interval": self.perturbation_interval, "burn_in_period": self.burn_in_period}
        if self.warm_up.trials:
            limits = {"warm_up_t": self.warm_up.time}
        name = max(limits, key=lambda each: limits[each])
        return self.measure.unreached(name, limits[name], self._longest)

    def _is_due(self, member: Member, time: float) -> bool:
        """Whether this is the end of a member's interval, or of its warm-up."""
        if self.warm_up.has(member.id):
            return time >= self.warm_up.time
        return time >= self.burn_in_period and time - member.since >= self.perturbation_interval

    def _next(
        self, member: Member, lowest: Sequence[Member], highest: Sequence[Member], otherwise: Decision
    ) -> Decision:
        """What becomes of a member at the end of its interval."""
        member.since, member.waits = member.time, False
        if member not in lowest or not highest:
            return otherwise
        rng = stream(self.seed, "pbt", member.index, member.clones)
        source = highest[int(rng.integers(len(highest)))]
        if source.saved is None:
            raise ConfigError(
                f"{self.measure.who}: trial {source.id} is to be copied, but it has no checkpoint. Save one at least "
                f"every perturbation_interval; functions do it with tune.report(…, checkpoint=…)"
            )
        values = self.explore(member, source, rng)
        if self.custom_explore_fn is not None:
            values = mutation.customised(values, self.custom_explore_fn, self.space, rng)
        # Its time is that of the checkpoint. It keeps its old score, so that no others fall into the lowest quantile.
        member.values, member.time, member.since, member.saved = values, source.saved, source.saved, source.saved
        member.is_copy = True
        member.clones += 1
        return Clone(source.id, dict(values))

    def _quantiles(self) -> tuple[list[Member], list[Member]]:
        """The members with the lowest scores, and those with the highest that can be copied."""
        rated = [member for member in self._members.values() if member.score is not None]
        rated.sort(key=lambda member: (member.score, -member.index))
        count = min(math.ceil(len(rated) * self.quantile_fraction), len(rated) // 2)
        if count == 0:
            return [], []
        return rated[:count], [member for member in rated[-count:] if member.score != -math.inf and not member.is_copy]

    def _warmed_up(self, decisions: Decisions) -> Decisions:
        for trial_id, decision in decisions.items():
            if decision is CONTINUE:
                self._members[trial_id].since = self._members[trial_id].time
            elif decision is not PAUSE:
                self._members.pop(trial_id)
        return decisions
