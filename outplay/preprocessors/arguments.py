"""Checks of the constructor arguments of preprocessors. Each raises ConfigError with the name of the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from outplay.errors import ConfigError, type_name


def column_names(value: Any, who: str) -> list[str] | None:
    """A list of names, or None."""
    if value is None:
        return None
    names: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [None]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{who}: columns must be a list of names, not {value!r}")
    return names


def integer(value: Any, name: str, least: int | None = None) -> int:
    """An integer, of at least `least`. `name`: as in "Resize: height"."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} must be an integer, not {_shown(value)}")
    if least is not None and value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}")
    return int(value)


def real(value: Any, name: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, not {_shown(value)}")
    return float(value)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | float | int) or value is None else type_name(value)
