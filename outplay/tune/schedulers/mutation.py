"""How population-based training changes values: by a factor, to a neighbour in a list, or to a random value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from outplay.errors import ConfigError, nearest
from outplay.tune.domains import Categorical, Computed, Domain, Float, Grid, Integer, rounded
from outplay.tune.spaces import Space, Values


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[None]:
    """Seed `random` and `np.random`, which functions of users take random numbers from, and restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    seed = int(rng.integers(2**32))
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@dataclass(frozen=True)
class Drawn(Domain):
    """The values of a function without arguments, such as `lambda: random.uniform(0, 1)`."""

    function: Callable[[], Any]

    def sample(self, rng: np.random.Generator) -> Any:
        with seeded(rng):
            return self.function()


def domains(who: str, mutations: Mapping[str, Any], path: str = "") -> dict[str, Domain]:
    """The Domain of each setting that may change, by its path: {"model": {"lr": [1, 2]}} has "model/lr"."""
    found: dict[str, Domain] = {}
    for key, given in mutations.items():
        name = f"{path}{key}"
        if isinstance(given, Mapping):
            found |= domains(who, given, f"{name}/")
        elif isinstance(given, Domain) and not isinstance(given, Computed):
            found[name] = given
        elif isinstance(given, list | tuple) and given:
            found[name] = Categorical(tuple(given))
        elif callable(given):
            found[name] = Drawn(given)
        else:
            raise ConfigError(
                f"{who}: {name!r} must be a list, a Domain such as tune.uniform(0, 1), or a function, not {given!r}"
            )
    return found


def with_variables(config: Mapping[str, Any], changed: Mapping[str, Domain]) -> dict[str, Any]:
    """The config, with variables in the place of settings that may change.

    A setting that has a value in the config starts with it; one that the config does not have starts at random.
    """
    new = dict(config)
    for name, domain in changed.items():
        _make_variable(new, name.split("/"), domain)
    return new


def _make_variable(config: dict[str, Any], path: Sequence[str], domain: Domain) -> None:
    key, *rest = path
    given = config.get(key)
    if rest and isinstance(given, Mapping | None):
        config[key] = dict(given or {})
        _make_variable(config[key], rest, domain)
    elif key not in config:
        config[key] = domain
    elif (
        not rest
        and not isinstance(given, Domain)
        and not (isinstance(given, Mapping) and set(given) == {"grid_search"})
    ):
        config[key] = Categorical((given,))


def _is_grid(given: Any) -> bool:
    return isinstance(given, Mapping) and set(given) == {"grid_search"}


def check_variables(who: str, names: Mapping[str, Any], space: Space) -> None:
    """Raises ConfigError if a setting that is to change is not a variable of the config."""
    for name in names:
        parts = name.split("/")
        if not any("/".join(parts[: i + 1]) in space.domains for i in range(len(parts))):  # or within a `choice`
            raise ConfigError(
                f"{who}: {name!r} is not a variable of the config{nearest(name, space.names)}. "
                f"Write a search space, such as tune.uniform(0, 1)"
            )


def mutated(
    value: Any, domain: Domain, rng: np.random.Generator, resample_probability: float, factors: Sequence[float]
) -> Any:
    """Another value: a neighbour in a list, a number times one of the factors, within bounds, or a random one."""
    resample = rng.random() < resample_probability
    if isinstance(domain, Categorical | Grid):
        if resample or value not in domain.values:
            return domain.sample(rng)
        position = domain.values.index(value) + (1 if rng.random() < 0.5 else -1)
        return domain.values[min(max(position, 0), len(domain.values) - 1)]
    if resample or isinstance(value, bool) or not isinstance(value, int | float):
        return domain.sample(rng)
    return perturbed(value, factors[int(rng.integers(len(factors)))], domain)


def perturbed(value: float, factor: float, domain: Domain) -> float:
    """`value * factor`, within the bounds of the Domain. Integers change by at least one step, if they can."""
    q = getattr(domain, "q", None)
    if isinstance(value, int):
        step = int(q or 1)
        changed: float = round(value * factor / step) * step
        if changed == value and factor != 1:
            changed += step if (factor > 1) == (value >= 0) else -step
    else:
        changed = value * factor
    return clipped(changed, domain)


def clipped(value: float, domain: Domain) -> float:
    """The nearest value of the Domain."""
    if isinstance(domain, Integer):
        return int(rounded(value, domain.q, domain.low, domain.last))
    if isinstance(domain, Float):
        if domain.q is not None:
            return rounded(value, domain.q, domain.low, domain.high)
        return min(max(value, domain.low), domain.high)
    return value


def customised(
    values: Values, function: Callable[[dict[str, Any]], dict[str, Any]], space: Space, rng: np.random.Generator
) -> Values:
    """The values after a user's function has changed the config. It may change variables only."""
    before = space.config(values)
    with seeded(rng):
        after = function(space.config(values))
    if not isinstance(after, Mapping):
        raise ConfigError(f"custom_explore_fn must return the config, not {after!r}")
    # A value of `choice` may contain variables; then these are what has changed.
    names = [name for name in values if not any(other.startswith(f"{name}/") for other in values)]
    changed = {name: _at(after, name) for name in names if _at(after, name) != _at(before, name)}
    for leaf, value in _leaves(after).items():
        is_variable = any(f"{leaf}/".startswith(f"{name}/") or name.startswith(f"{leaf}/") for name in values)
        if not is_variable and _at(before, leaf) != value:
            raise ConfigError(
                f"custom_explore_fn has changed {leaf!r}, which is not a variable of the config{nearest(leaf, values)}"
            )
    return {**values, **changed}


def _at(config: Any, path: str) -> Any:
    for part in path.split("/"):
        if isinstance(config, Mapping):
            config = config.get(part)
        elif isinstance(config, list | tuple) and part.isdigit() and int(part) < len(config):
            config = config[int(part)]
        else:
            return None
    return config


def _leaves(config: Any, path: str = "") -> dict[str, Any]:
    """All settings by their paths; lists are settings, not what is in them."""
    if not isinstance(config, Mapping):
        return {path: config}
    return {
        name: leaf
        for key, value in config.items()
        for name, leaf in _leaves(value, f"{path}/{key}" if path else str(key)).items()
    }
