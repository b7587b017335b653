"""Variables of a space as Optuna sees them: a distribution, and numbers that stand for values.

Each value has exactly one number, and decoding the number gives the value. So a study that is rebuilt from values is
the same study.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from outplay.errors import ConfigError
from outplay.tune.domains import Categorical, Computed, Domain, Float, Grid, Integer, Normal
from outplay.tune.spaces import Space, _children, _join

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Number = int | float

_QUANTILES = 2**20  # of a normal distribution: the outermost are 4.8 standard deviations from the mean


@dataclass(frozen=True)
class Variable:
    """`encode` raises ValueError or TypeError for values outside the domain."""

    name: str
    domain: Domain
    distribution: BaseDistribution
    encode: Callable[[Any], Number]
    decode: Callable[[Any], Any]

    def ask(self, trial: Trial) -> Number:
        """The number that Optuna chooses."""
        d: Any = self.distribution
        if isinstance(self.domain, Categorical):
            index: int = trial.suggest_categorical(self.name, d.choices)
            return index
        suggest = trial.suggest_int if isinstance(d.low, int) else trial.suggest_float
        return suggest(self.name, d.low, d.high, log=d.log)

    def value(self, number: Number, given: Any) -> Any:
        """A value that was given, as the domain has it: values of `choice` may contain variables."""
        return self.decode(number) if isinstance(self.domain, Categorical) else given

    def canonical(self, number: Number) -> Number:
        """The one number of all those that are decoded to the same value."""
        return self.encode(self.decode(number))


class Variables:
    """All variables of a space, also those that exist only if a value of `choice` is chosen."""

    def __init__(self, space: Space, owner: str) -> None:
        self.by_path: dict[str, list[Variable]] = {}
        self.by_name: dict[str, Variable] = {}
        for path, domain in _every(space.template, ""):
            known = self.by_path.setdefault(path, [])
            if any(_is_same(variable.domain, domain) for variable in known):
                continue
            if isinstance(domain, Grid):
                raise ConfigError(f"{path}: grid_search cannot be combined with {owner}; use choice, or no search_alg")
            variable = _variable(path if not known else f"{path}#{len(known) + 1}", domain)
            known.append(variable)
            self.by_name[variable.name] = variable
        self.is_conditional = set(self.by_name) != set(space.names)

    def find(self, path: str, domain: Domain) -> Variable:
        return next(variable for variable in self.by_path[path] if _is_same(variable.domain, domain))

    def encoded(self, values: dict[str, Any]) -> dict[str, Number]:
        """Numbers by names. Variables whose value is outside their domain are left out."""
        found = {}
        for path, value in values.items():
            for variable in self.by_path.get(path, ()):
                try:
                    found[variable.name] = variable.encode(value)
                except (ValueError, TypeError, OverflowError):
                    continue
        return found


def _every(value: Any, path: str) -> Iterator[tuple[str, Domain]]:
    if isinstance(value, Domain):
        if isinstance(value, Computed):
            return
        yield path, value
        for choice in value.values if isinstance(value, Categorical) else ():
            if not isinstance(choice, Domain):
                yield from _every(choice, path)
    for key, child in _children(value):
        yield from _every(child, _join(path, key))


def _is_same(one: Domain, other: Domain) -> bool:
    """Values of `choice` can be anything, so they are not compared."""
    return one is other or (type(one) is type(other) and not isinstance(one, Categorical | Grid) and one == other)


def _variable(name: str, domain: Domain) -> Variable:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Categorical):
        count = CategoricalDistribution(tuple(range(len(domain.values))))
        return Variable(name, domain, count, lambda v: _position(domain.values, v), lambda i: domain.values[i])
    if isinstance(domain, Normal):
        return _normal(name, domain)
    assert isinstance(domain, Float | Integer)
    number = int if isinstance(domain, Integer) else float
    if domain.q is not None and domain.q != 1 and not domain.log:
        return _multiples(name, domain, domain.q, number)
    low, high = number(domain.low), number(domain.last if isinstance(domain, Integer) else domain.high)
    if isinstance(domain, Integer):
        distribution: BaseDistribution = IntDistribution(int(low), int(high), log=domain.log)
    else:
        distribution = FloatDistribution(low, high, log=domain.log)
    q = domain.q if isinstance(domain, Float) or domain.q > 1 else None

    def encode(value: Any) -> Number:
        if number(value) != value or not low <= value <= high:
            raise ValueError(value)
        return number(value)

    def decode(value: Any) -> Number:
        return number(value) if q is None else number(min(max(_round(value, q), low), high))

    return Variable(name, domain, distribution, encode, decode)


def _round(value: float, q: float) -> float:
    return round(round(value / q) * q, 12)  # as in outplay.tune.spaces: 0.3, not 0.30000000000000004


def _multiples(name: str, domain: Domain, q: float, number: type[int] | type[float]) -> Variable:
    """Multiples of q. Optuna chooses the factor."""
    from optuna.distributions import IntDistribution

    assert isinstance(domain, Float | Integer)
    first, last = math.ceil(domain.low / q - 1e-9), math.floor(domain.high / q + 1e-9)

    def encode(value: Any) -> int:
        factor = round(float(value) / q)
        if not first <= factor <= last or not math.isclose(factor * q, value, abs_tol=1e-9 * q):
            raise ValueError(value)
        return factor

    return Variable(name, domain, IntDistribution(first, last), encode, lambda factor: number(round(factor * q, 12)))


def _normal(name: str, domain: Normal) -> Variable:
    """Optuna has no normal distribution: it chooses one of 2^20 quantiles."""
    from optuna.distributions import IntDistribution

    normal, q = NormalDist(domain.mean, domain.sd), domain.q

    def encode(value: Any) -> int:
        return min(max(round(normal.cdf(value) * _QUANTILES), 1), _QUANTILES - 1)

    def decode(quantile: int) -> float:
        value = normal.inv_cdf(quantile / _QUANTILES)
        return value if q is None else _round(value, q)

    return Variable(name, domain, IntDistribution(1, _QUANTILES - 1), encode, decode)


def _position(values: tuple[Any, ...], value: Any) -> int:
    """The index of a value, also of one that was written as JSON and read again. 1, 1.0 and True are different."""
    for i, known in enumerate(values):
        if known is value:
            return i
    for i, known in enumerate(values):
        if type(known) is type(value) and repr(known) == repr(value):
            return i
    written = [json.dumps(known, default=repr) for known in (*values, value)]
    return written.index(written.pop())
