"""Search spaces: values in a config that are to be chosen.

>>> space = Space({"lr": loguniform(1e-5, 1e-2), "model": {"layers": grid_search([1, 2])}, "env": "CartPole-v1"})
>>> space.names
('lr', 'model/layers')
>>> space.config({"lr": 0.001, "model/layers": 2})
{'lr': 0.001, 'model': {'layers': 2}, 'env': 'CartPole-v1'}

A variable's name is its path in the config. Values of `choice` and `grid_search` may contain variables themselves:
these exist only if that value is chosen.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from outplay.errors import ConfigError, nearest
from outplay.tune.domains import MAKERS, Categorical, Computed, Domain, Float, Grid, Integer, Normal, grid_search

Values = dict[str, Any]  # of variables, by their names


# Variables in a config.

_TAKE_LISTS = ("grid_search", "choice")


def parsed(config: Any, where: str = "") -> Any:
    """A config from a file, where variables are written as {"loguniform": [1e-5, 1e-2]}."""
    if isinstance(config, Mapping):
        if len(config) == 1 and (name := next(iter(config))) in MAKERS:
            return _made(name, config[name], where)
        return {key: parsed(value, f"{where}/{key}" if where else str(key)) for key, value in config.items()}
    if isinstance(config, list):
        return [parsed(value, f"{where}/{i}") for i, value in enumerate(config)]
    return config


def _made(name: str, given: Any, where: str) -> Domain:
    if not isinstance(given, list):
        raise ConfigError(f"{where or 'the config'}: {name} takes a list, not {given!r}")
    try:
        return MAKERS[name](parsed(given, where)) if name in _TAKE_LISTS else MAKERS[name](*given)
    except (ConfigError, TypeError) as error:
        reason = error if isinstance(error, ConfigError) else f"{name}: wrong number of values in {given!r}"
        raise ConfigError(f"{where or 'the config'}: {reason}") from error


def described(config: Any) -> Any:
    """A config with variables as in a file, for study.json. `parsed` reads it; functions and objects are text."""
    if isinstance(config, Domain):
        return _described(config)
    if isinstance(config, Mapping):
        return {str(key): described(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [described(value) for value in config]
    if type(config) in _PLAIN:
        return config
    if callable(config):
        return f"{getattr(config, '__module__', '')}:{getattr(config, '__qualname__', type(config).__qualname__)}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(config))  # the same in every process


def _described(domain: Domain) -> Any:
    match domain:
        case Float(low, high, log, q):
            name, more = ("qloguniform" if log else "quniform", [q]) if q else ("loguniform" if log else "uniform", [])
            return {name: [low, high, *more]}
        case Integer(low, high, log, q):
            name, more = ("lograndint" if log else "randint", [q] if q > 1 else [])
            name = "q" + name if q > 1 else name
            return {name: [low, high, *more]}
        case Normal(mean, sd, q):
            return {"qrandn": [mean, sd, q]} if q else {"randn": [mean, sd]}
        case Categorical(values):
            return {"choice": [described(value) for value in values]}
        case Grid(values):
            return {"grid_search": [described(value) for value in values]}
        case Computed(function):
            return {"sample_from": described(function)}
        case _:
            return repr(domain)


class Resolved(dict[str, Any]):
    """A config as `sample_from` functions see it: items, attributes, and Ray's `spec.config`."""

    def __getattr__(self, name: str) -> Any:
        if name == "config":
            return self
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(name) from None
        return Resolved(value) if type(value) is dict else value


class _Missing(Exception):  # noqa: N818 - not an error: the value of a variable is asked for
    def __init__(self, name: str, domain: Domain) -> None:
        super().__init__(name)
        self.name, self.domain = name, domain


class Space:
    """The variables of a config."""

    _ATTEMPTS: ClassVar[int] = 100

    def __init__(self, config: Mapping[str, Any]) -> None:
        if not isinstance(config, Mapping):
            raise ConfigError(f"config must be a dict, not {config!r}")
        self.template = _with_grids(config)
        found: dict[str, Domain] = {}
        for name, domain in _variables(self.template, ""):
            if name in found:
                raise ConfigError(f"two variables of the config are named {name!r}: a key contains '/'; rename it")
            found[name] = domain
        self.domains: dict[str, Domain] = {n: d for n, d in found.items() if not isinstance(d, Computed)}

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that always exist. Others may exist within the values of `choice` and `grid_search`."""
        return tuple(self.domains)

    @property
    def every_value(self) -> Any:
        """The config with lists of all values in the place of `choice` and `grid_search`."""
        return _every_value(self.template)

    @property
    def grids(self) -> dict[str, Grid]:
        return {name: domain for name, domain in self.domains.items() if isinstance(domain, Grid)}

    @property
    def grid_size(self) -> int:
        """The number of combinations of all grids."""
        return math.prod(len(grid.values) for grid in self.grids.values())

    def grid_point(self, index: int) -> Values:
        """Combination number `index` of the grids. The last grid changes fastest."""
        grids = self.grids
        positions = np.unravel_index(index, [len(grid.values) for grid in grids.values()]) if grids else ()
        return {
            name: grid.values[int(position)] for (name, grid), position in zip(grids.items(), positions, strict=True)
        }

    def choose(self, ask: Callable[[str, Domain], Any]) -> Values:
        """The values of all variables. `ask` chooses one value; it is called for those that exist, in order."""
        values: Values = {}
        for _ in range(self._ATTEMPTS):
            try:
                _filled(self.template, "", values)
            except _Missing as missing:
                values[missing.name] = ask(missing.name, missing.domain)
            else:
                return values
        raise ConfigError(f"the config has more than {self._ATTEMPTS} variables; some values contain themselves")

    def sample(self, rng: np.random.Generator, given: Values | None = None) -> Values:
        """Random values of all variables; those that are `given` are taken."""
        known = given or {}
        return self.choose(lambda name, domain: known[name] if name in known else domain.sample(rng))

    def domains_of(self, values: Values) -> dict[str, Domain]:
        """The domains of all variables that exist with these values."""
        found: dict[str, Domain] = {}

        def note(name: str, domain: Domain) -> Any:
            found[name] = domain
            if name not in values:
                raise ConfigError(f"the value of {name!r} is missing in {values!r}")
            return values[name]

        self.choose(note)
        return found

    def encode(self, values: Values) -> Values:
        """Values as JSON can hold them: a choice that it cannot hold is given by its index."""
        if all(type(value) in _PLAIN for value in values.values()):
            return values
        return {name: _encoded(values[name], domain) for name, domain in self.domains_of(values).items()}

    def decode(self, encoded: Values) -> Values:
        """Values from what `encode` returned."""
        if all(type(value) in _PLAIN for value in encoded.values()):
            return encoded
        return self.choose(lambda name, domain: _decoded(encoded[name], domain))

    def config(self, values: Values) -> dict[str, Any]:
        """The config with these values of its variables. Raises ConfigError if one is missing or unknown."""
        used: set[str] = set()
        try:
            filled = _filled(self.template, "", values, used)
        except _Missing as missing:
            raise ConfigError(f"the value of {missing.name!r} is missing in {values!r}") from None
        if unknown := [name for name in values if name not in used]:
            raise ConfigError(f"the config has no variable {unknown[0]!r}{nearest(unknown[0], self.names)}")
        config: dict[str, Any] = _computed(filled)
        return config


def _every_value(value: Any) -> Any:
    if isinstance(value, Categorical | Grid):
        value = list(value.values)
    if isinstance(value, dict):
        return {key: _every_value(child) for key, child in value.items()}
    return [_every_value(child) for child in value] if isinstance(value, list | tuple) else value


_PLAIN = (int, float, str, bool, type(None))
_INDEX = "index of the choice"


def _encoded(value: Any, domain: Domain) -> Any:
    if type(value) in _PLAIN or not isinstance(domain, Categorical | Grid):
        return value
    for same in (operator.is_, _is_equal):
        for i, each in enumerate(domain.values):
            if same(each, value):
                return {_INDEX: i}
    raise ConfigError(f"{value!r} is none of the values of {described(domain)}")


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays
        return False


def _decoded(value: Any, domain: Domain) -> Any:
    if isinstance(value, dict) and set(value) == {_INDEX} and isinstance(domain, Categorical | Grid):
        return domain.values[value[_INDEX]]
    return value


def _with_grids(config: Any) -> Any:
    """Ray writes a grid as {"grid_search": […]}; here it is a Domain."""
    if isinstance(config, Mapping):
        if set(config) == {"grid_search"}:
            return grid_search(config["grid_search"])
        return {key: _with_grids(value) for key, value in config.items()}
    if isinstance(config, list):
        return [_with_grids(value) for value in config]
    return config


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _variables(value: Any, path: str) -> Iterator[tuple[str, Domain]]:
    if isinstance(value, Domain):
        yield path, value
    for key, child in _children(value):
        yield from _variables(child, _join(path, key))


def _filled(value: Any, path: str, values: Values, used: set[str] | None = None) -> Any:
    """`value` with variables replaced by their values. Raises _Missing for the first one that has none."""
    if isinstance(value, Computed):
        return value
    if isinstance(value, Domain):
        if path not in values:
            raise _Missing(path, value)
        if used is not None:
            used.add(path)
        chosen = values[path]
        return _filled(chosen, path, values, used) if isinstance(chosen, dict | list | tuple) else chosen
    if isinstance(value, dict):
        return {key: _filled(child, _join(path, key), values, used) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(child, _join(path, i), values, used) for i, child in enumerate(value))
    return value


def _computed(config: Any) -> Any:
    """The config with the values of all `sample_from`. They may depend on each other."""
    waiting = [(path, domain) for path, domain in _paths(config, ()) if isinstance(domain, Computed)]
    for _ in range(len(waiting)):
        if not waiting:
            break
        later, error = [], None
        for path, domain in waiting:
            try:
                value = domain.function(Resolved(_without_computed(config)))
            except (KeyError, AttributeError, IndexError, TypeError) as reason:
                later.append((path, domain))
                error = reason
            else:
                _set(config, path, value)
        if error is not None and len(later) == len(waiting):
            name = "/".join(map(str, later[0][0]))
            raise ConfigError(f"sample_from of {name!r} raises {type(error).__name__}: {error}") from error
        waiting = later
    return config


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Domain):
        yield path, value
    for key, child in _children(value):
        yield from _paths(child, (*path, key))


def _without_computed(value: Any) -> Any:
    """A copy without the values that are not computed yet, so that asking for one raises KeyError."""
    if isinstance(value, dict):
        return {k: _without_computed(v) for k, v in value.items() if not isinstance(v, Computed)}
    return value


def _set(config: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        config = config[key]
    if isinstance(config, tuple):
        raise ConfigError("sample_from cannot be used within a tuple; use a list")
    config[path[-1]] = value


def checked_point(point: Any, space: Space) -> Values:
    """Values to try first, by variables; nested dicts are allowed. Raises ConfigError for unknown names."""
    if not isinstance(point, Mapping):
        raise ConfigError(f"points_to_evaluate: values by variables are needed, as {{'lr': 0.001}}, not {point!r}")
    flat = dict(_flattened(point, "", space))
    if unknown := [name for name in flat if name not in space.names]:
        raise ConfigError(f"points_to_evaluate: no variable {unknown[0]!r}{nearest(unknown[0], space.names)}")
    for name, value in flat.items():
        domain = space.domains[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(domain, Float | Integer) and not (is_number and domain.low <= value <= domain.high):
            raise ConfigError(f"points_to_evaluate: {name}={value!r} is not in {described(domain)}")
    return flat


def _flattened(value: Any, path: str, space: Space) -> Iterator[tuple[str, Any]]:
    for key, child in value.items():
        name = _join(path, key)
        if isinstance(child, dict) and name not in space.names:
            yield from _flattened(child, name, space)
        else:
            yield name, child
