"""PB2: population-based bandits (Parker-Holder et al. 2020, https://arxiv.org/abs/2002.02518)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outplay.errors import ConfigError
from outplay.tune.domains import Float, Integer
from outplay.tune.objective import Objective
from outplay.tune.schedulers.base import Decisions
from outplay.tune.schedulers.pbt import Explore, Member, PopulationBasedTraining
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics, Trial

Array = npt.NDArray[np.float64]

_MOST = 200  # observations that the Gaussian process is fitted to: the newest
_FEWEST = 3
_LENGTHS = (0.4, 0.1, 0.2, 0.8)  # length scales of values, whose range is 1
_FADING = (32.0, 2.0, 8.0, 1000.0)  # τ, in intervals
_NOISE = (1e-2, 1e-3, 1e-1)


class PB2(PopulationBasedTraining):
    """Population-based training whose new values are chosen by a model rather than at random.

    A Gaussian process models how fast the score rises, given the values and the time. The new values of a copy maximise
    its upper confidence bound within `hyperparam_bounds`. PB2 needs fewer trials than `PopulationBasedTraining`.

    >>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1)}, metric="score", mode="max", num_samples=4,
    ...          stop={"training_iteration": 100},
    ...          scheduler=PB2(time_attr="training_iteration", perturbation_interval=5,
    ...                        hyperparam_bounds={"lr": [1e-5, 1e-1]}))

    `hyperparam_bounds`: [lowest, highest] of each setting that may change. If the config says `loguniform` or
    `lograndint`, the model sees its logarithm. All other parameters are those of `PopulationBasedTraining`.
    PB2 needs scikit-learn: `pip install 'outplay[tune]'`.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Explore | None = None,
        initial_trials: int | None = None,
        population_size: int | None = None,
        warm_up_t: float | None = None,
    ) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError("PB2 needs scikit-learn, which is not installed: pip install 'outplay[tune]'")
        if not hyperparam_bounds:
            raise ConfigError("PB2 needs hyperparam_bounds: {'lr': [1e-5, 1e-1]}")
        super().__init__(
            time_attr,
            metric,
            mode,
            perturbation_interval,
            hyperparam_mutations=_ranges(hyperparam_bounds),
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            require_attrs=require_attrs,
            synch=synch,
            initial_trials=initial_trials,
            population_size=population_size,
            warm_up_t=warm_up_t,
        )
        self._newest: dict[str, tuple[float, float]] = {}  # by trial: time and score of its newest result
        self._saved: dict[str, tuple[float, float]] = {}  # the same of its newest checkpoint
        self._start: dict[str, tuple[float, float]] = {}  # the same at the start of its interval
        self._observed: list[tuple[Array, float, float]] = []  # values, time, rise of the score per interval

    def setup(self, objective: Objective, space: Space, seed: int) -> None:
        super().setup(objective, space, seed)
        self._axes = [_Axis.of(name, domain, space) for name, domain in self.mutations.items()]

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        if self.measure.is_in(result):
            now = self.measure.time(trial, result), self.measure.score(trial, result)
            self._newest[trial.id] = now
            self._start.setdefault(trial.id, now)
            if trial.checkpoints and trial.checkpoint_iteration >= trial.iteration:
                self._saved[trial.id] = now
        return super().on_result(trial, result)

    def rate(self, member: Member, score: float) -> None:
        super().rate(member, score)
        (start, before), now = self._start[member.id], self._newest[member.id]
        self._start[member.id] = now
        if now[0] > start and math.isfinite(score) and math.isfinite(before):
            rise = (score - before) / (now[0] - start) * self.perturbation_interval
            self._observed.append((self._point(member.values), start / self.perturbation_interval, rise))

    def explore(self, member: Member, source: Member, rng: np.random.Generator) -> Values:
        self._start[member.id] = self._saved[member.id] = self._saved[source.id]
        observed = self._observed[-_MOST:]
        if len(observed) < _FEWEST:
            point = rng.random(len(self._axes))
        else:
            points, times, rises = (np.array(column) for column in zip(*observed, strict=True))
            # Copies whose values have not been observed yet: the others need not try the same.
            pending = [self._point(m.values) for m in self._members.values() if m.is_copy and m.id != member.id]
            point = propose(points, times, rises, pending, self._saved[source.id][0] / self.perturbation_interval, rng)
        chosen = {axis.name: axis.value(float(u)) for axis, u in zip(self._axes, point, strict=True)}
        return {**source.values, **{name: value for name, value in chosen.items() if name in source.values}}

    def _point(self, values: Values) -> Array:
        return np.array([axis.position(values[axis.name]) if axis.name in values else 0.5 for axis in self._axes])


@dataclass(frozen=True)
class _Axis:
    """A variable that the model sees as a number from 0 to 1."""

    name: str
    low: float
    high: float
    log: bool
    is_integer: bool

    @classmethod
    def of(cls, name: str, bounds: Any, space: Space) -> _Axis:
        domain = space.domains.get(name)
        log = isinstance(domain, Float | Integer) and domain.log
        if log and bounds.low <= 0:
            raise ConfigError(f"PB2: the lower bound of {name!r} must be above 0, since its logarithm is searched")
        whole = [value for value in getattr(domain, "values", ()) if isinstance(value, int)]
        return cls(name, bounds.low, bounds.high, log, isinstance(domain, Integer) or bool(whole))

    def position(self, value: float) -> float:
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, self._within(value)))
        return (at - low) / (high - low)

    def value(self, position: float) -> float:
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        value = low + position * (high - low)
        value = self._within(math.exp(value) if self.log else value)
        return round(value) if self.is_integer else value

    def _within(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def propose(
    points: Array, times: Array, rises: Array, pending: Sequence[Array], now: float, rng: np.random.Generator
) -> Array:
    """The point whose upper confidence bound at the time `now` is highest: μ + √β σ, β = 0.2 + log(0.4 n).

    μ is the mean given the observations. For σ, the `pending` points count as observed, too: where they are, there is
    less to learn (Desautels et al. 2014). `points`: n × d, from 0 to 1. `times`: in intervals.
    """
    scale = float(rises.std()) or 1.0
    x, y = np.column_stack([points, times]), (rises - rises.mean()) / scale
    model = _fitted(x, y)
    both = model
    if pending:
        guessed = np.column_stack([np.array(pending), np.full(len(pending), now)])
        both = _regressor(model.kernel).fit(np.vstack([x, guessed]), np.append(y, model.predict(guessed)))
    root_beta = math.sqrt(0.2 + max(0.0, math.log(0.4 * len(x))))

    def best(candidates: Array) -> Array:
        at = np.column_stack([candidates, np.full(len(candidates), now)])
        bound = model.predict(at) + root_beta * both.predict(at, return_std=True)[1]
        chosen: Array = candidates[int(np.argmax(bound))]
        return chosen

    dimensions = points.shape[1]
    found = best(rng.random((1000, dimensions)))
    near = np.clip(found + rng.normal(0, 0.03, (200, dimensions)), 0, 1)
    return best(np.vstack([found, near]))


def _fitted(x: Array, y: Array) -> Any:
    """The Gaussian process with the highest likelihood, found for one parameter after the other.

    Its kernel is that of the paper: squared exponential in the values, times (1 - ε)^(|t - t'| / 2) in the time, so
    that old observations count less. The latter is exp(-|t - t'| / τ) with τ = -2 / log(1 - ε), which is the Matérn
    kernel of ν = 1/2.
    """
    from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

    values = x.shape[1] - 1

    def fit(length: float, fading: float, noise: float) -> Any:
        similar = RBF([length] * values + [math.inf], "fixed")
        recent = Matern([math.inf] * values + [fading], "fixed", nu=0.5)
        return _regressor(similar * recent + WhiteKernel(noise, "fixed")).fit(x, y)

    chosen = [_LENGTHS[0], _FADING[0], _NOISE[0]]
    model = fit(*chosen)
    for position, choices in enumerate((_LENGTHS, _FADING, _NOISE)):
        for choice in choices[1:]:
            tried = [*chosen[:position], choice, *chosen[position + 1 :]]
            if (other := fit(*tried)).log_marginal_likelihood_value_ > model.log_marginal_likelihood_value_:
                model, chosen = other, tried
    return model


def _regressor(kernel: Any) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(kernel, optimizer=None)


def _ranges(bounds: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, given in bounds.items():
        if isinstance(given, Mapping):
            found[name] = _ranges(given, f"{path}{name}/")
            continue
        wrong = f"PB2: hyperparam_bounds of {f'{path}{name}'!r} must be [lowest, highest], not {given!r}"
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise ConfigError(wrong)
        try:
            found[name] = Float(*given)
        except ConfigError as error:
            raise ConfigError(wrong) from error
    return found
