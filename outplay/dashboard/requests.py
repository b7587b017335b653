"""What requests contain, checked: parameters of the query, JSON bodies."""

from __future__ import annotations

import math
from typing import Any

from starlette.datastructures import QueryParams

from outplay.dashboard.series import MOST_POINTS, X_NAMES
from outplay.errors import ConfigError, nearest, shortened, type_name
from outplay.parsing import parse_json

_MOST_RUNS = 1000


def one(query: QueryParams, name: str) -> str:
    """A parameter that must be given once."""
    found = query.getlist(name)
    if len(found) != 1:
        raise ConfigError(f"the request needs the parameter {name!r} once")
    return found[0]


def several(query: QueryParams, name: str, least: int = 1) -> list[str]:
    """A parameter that may be repeated. Repeated values are left out."""
    found = list(dict.fromkeys(query.getlist(name)))
    if len(found) < least:
        raise ConfigError(f"the request needs the parameter {name!r}{'' if least == 1 else f' at least {least} times'}")
    if len(found) > _MOST_RUNS:
        raise ConfigError(f"the request has {len(found):,} values of {name!r}; at most {_MOST_RUNS:,} are allowed")
    return found


def x_of(query: QueryParams) -> str:
    name = query.get("x", X_NAMES[0])
    if name not in X_NAMES:
        raise ConfigError(f"x must be one of {', '.join(X_NAMES)}, not {shortened(name)!r}{nearest(name, X_NAMES)}")
    return name


def points_of(query: QueryParams) -> int:
    text = query.get("points", "400")
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_POINTS:
        raise ConfigError(f"points must be an integer from 1 to {MOST_POINTS:,}, not {shortened(text)!r}")
    return int(text)


def bound_of(query: QueryParams, name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ConfigError(f"{name} must be a number, not {shortened(text)!r}")
    return value


def object_of(data: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object of a body. Its values must be strings."""
    try:
        found = parse_json(data)
    except ValueError as error:
        raise ConfigError(f"the body is not valid JSON: {shortened(str(error), 100)}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"the body must be a JSON object, not {type_name(found)}")
    for key, value in found.items():
        if key not in known:
            raise ConfigError(f"unknown key {shortened(key)!r}{nearest(key, known)}")
        if not isinstance(value, str):
            raise ConfigError(f"{key} must be a string, not {type_name(value)}")
    return found
