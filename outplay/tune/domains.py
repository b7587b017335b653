"""The values of variables: `uniform`, `choice`, `grid_search` and the others."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outplay.errors import ConfigError


class Domain(ABC):
    """The values of a variable. Domains are not changed."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Any:
        """One value at random."""


@dataclass(frozen=True)
class Float(Domain):
    """Floats from `low` to `high`; with `log`, uniform in their logarithm; with `q`, multiples of `q`."""

    low: float
    high: float
    log: bool = False
    q: float | None = None

    def __post_init__(self) -> None:
        name = ("q" if self.q is not None else "") + ("log" if self.log else "") + "uniform"
        _check_range(self.low, self.high, self.log, self.q, name)

    def sample(self, rng: np.random.Generator) -> float:
        value = _between(rng, self.low, self.high, self.log)
        return value if self.q is None else rounded(value, self.q, self.low, self.high)


@dataclass(frozen=True)
class Integer(Domain):
    """Integers from `low` to `high`, without `high`; with `q`, multiples of `q`, `high` included."""

    low: int
    high: int
    log: bool = False
    q: int = 1

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high), ("q", self.q)):
            if isinstance(value, bool) or int(value) != value:
                raise ConfigError(f"{name} of randint must be an integer, not {value!r}")
        name = ("q" if self.q != 1 else "") + ("log" if self.log else "") + "randint"
        _check_range(self.low, self.high, self.log, self.q, name)

    @property
    def last(self) -> int:
        """The largest value."""
        return self.high - 1 if self.q == 1 else self.high // self.q * self.q

    def sample(self, rng: np.random.Generator) -> int:
        if not self.log and self.q == 1:
            return int(rng.integers(self.low, self.high))
        value = _between(rng, self.low, self.high, self.log)
        return int(min(rounded(value, self.q, self.low, self.high) if self.q > 1 else math.floor(value), self.last))


@dataclass(frozen=True)
class Normal(Domain):
    """Normally distributed floats; with `q`, multiples of `q`."""

    mean: float
    sd: float
    q: float | None = None

    def __post_init__(self) -> None:
        numbers = [value for value in (self.mean, self.sd, self.q) if value is not None]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers):
            raise ConfigError(f"randn takes numbers, not {self.mean!r} and {self.sd!r}")
        if self.sd <= 0 or (self.q is not None and self.q <= 0):
            raise ConfigError(f"randn: the standard deviation and q must be above 0, not {self.sd!r} and {self.q!r}")

    def sample(self, rng: np.random.Generator) -> float:
        value = float(rng.normal(self.mean, self.sd))
        return value if self.q is None else rounded(value, self.q, -math.inf, math.inf)


@dataclass(frozen=True)
class Categorical(Domain):
    """One of several values, of any type."""

    values: tuple[Any, ...]

    def sample(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class Grid(Domain):
    """All of several values, one after the other."""

    values: tuple[Any, ...]

    def sample(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class Computed(Domain):
    """The value of a function of the config. It sees the other variables' values."""

    function: Callable[[Any], Any]

    def sample(self, rng: np.random.Generator) -> Any:  # noqa: ARG002
        raise ConfigError("sample_from has no values of its own: it needs a config")


def uniform(low: float, high: float) -> Domain:
    """Floats from `low` to `high`."""
    return Float(low, high)


def quniform(low: float, high: float, q: float) -> Domain:
    """Multiples of `q` from `low` to `high`."""
    return Float(low, high, q=q)


def loguniform(low: float, high: float) -> Domain:
    """Floats from `low` to `high`, uniform in their logarithm."""
    return Float(low, high, log=True)


def qloguniform(low: float, high: float, q: float) -> Domain:
    """Multiples of `q` from `low` to `high`, uniform in their logarithm."""
    return Float(low, high, log=True, q=q)


def randint(low: int, high: int) -> Domain:
    """Integers from `low` to `high`, without `high`."""
    return Integer(low, high)


def qrandint(low: int, high: int, q: int = 1) -> Domain:
    """Multiples of `q` from `low` to `high`, `high` included."""
    return Integer(low, high, q=q) if q > 1 else Integer(low, high + 1)


def lograndint(low: int, high: int) -> Domain:
    """Integers from `low` to `high`, without `high`, uniform in their logarithm."""
    return Integer(low, high, log=True)


def qlograndint(low: int, high: int, q: int) -> Domain:
    """Multiples of `q` from `low` to `high`, `high` included, uniform in their logarithm."""
    return Integer(low, high, log=True, q=q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    """Normally distributed floats."""
    return Normal(mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """Normally distributed multiples of `q`."""
    return Normal(mean, sd, q)


def choice(values: Sequence[Any]) -> Domain:
    """One of the values. They may contain variables of their own."""
    return Categorical(_listed(values, "choice"))


def grid_search(values: Sequence[Any]) -> Domain:
    """Each of the values: as many trials as there are combinations of all grids."""
    return Grid(_listed(values, "grid_search"))


def sample_from(function: Callable[[Any], Any]) -> Domain:
    """The value of `function(config)`, computed when the other variables are chosen.

    >>> {"layers": choice([1, 2]), "size": sample_from(lambda config: 64 * config["layers"])}

    Ray's form `lambda spec: 64 * spec.config.layers` works, too.
    """
    if not callable(function):
        raise ConfigError(f"sample_from takes a function of the config, not {function!r}")
    return Computed(function)


# By name, for search files. These cannot contain functions, so `sample_from` is not among them.
MAKERS: dict[str, Callable[..., Domain]] = {
    "grid_search": grid_search, "choice": choice, "uniform": uniform, "quniform": quniform, "loguniform": loguniform,
    "qloguniform": qloguniform, "randint": randint, "qrandint": qrandint, "lograndint": lograndint,
    "qlograndint": qlograndint, "randn": randn, "qrandn": qrandn,
}  # fmt: skip


def _listed(values: Any, name: str) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or len(values) == 0:
        raise ConfigError(f"{name} takes a list with at least one value, not {values!r}")
    return tuple(values.tolist() if isinstance(values, np.ndarray) else values)


def _check_range(low: float, high: float, log: bool, q: float | None, name: str) -> None:
    for value in (low, high):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{name} takes two numbers, not {low!r} and {high!r}")
    if low >= high:
        raise ConfigError(f"{name}: the lower bound {low!r} must be below the upper bound {high!r}")
    if log and low <= 0:
        raise ConfigError(f"{name}: on a logarithmic scale the lower bound must be above 0, not {low!r}")
    if q is not None and q <= 0:
        raise ConfigError(f"{name}: q must be above 0, not {q!r}")
    if q is not None and math.floor(high / q + 1e-9) < math.ceil(low / q - 1e-9):
        raise ConfigError(f"{name}: no multiple of {q!r} is between {low!r} and {high!r}")


def _between(rng: np.random.Generator, low: float, high: float, log: bool) -> float:
    if log:
        return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)
    return float(rng.uniform(low, high))


def rounded(value: float, q: float, low: float, high: float) -> float:
    """The multiple of `q` that is nearest to `value`, within the bounds."""
    rounded = round(value / q) * q
    if rounded < low:
        rounded = math.ceil(low / q) * q
    if rounded > high:
        rounded = math.floor(high / q) * q
    return float(round(rounded, 12))
