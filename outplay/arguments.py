"""Checks of arguments of the Python API. Each error names the argument, as in "Resize: height"."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from outplay.errors import ConfigError, OutplayError, shortened, type_name


def column_names(value: Any, who: str) -> list[str] | None:
    """A list of names, or None."""
    if value is None:
        return None
    names: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [None]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{who}: columns must be a list of names, not {value!r}")
    return names


def column(name: str) -> str:
    """A column in an error message. A plain array is a column without a name."""
    return f"column {name!r}" if name else "the array"


def integer(
    value: Any, name: str, least: int | None = None, most: int | None = None, error: type[OutplayError] = ConfigError
) -> int:
    """An integer, from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise error(f"{name} must be an integer, not {shown(value)}")
    number = int(value)
    if least is not None and number < least:
        raise error(f"{name} must be at least {least}, not {shown(number)}")
    if most is not None and number > most:
        raise error(f"{name} must be at most {most:,}, not {shown(number)}")
    return number


def real(value: Any, name: str, least: float | None = None) -> float:
    """A finite number, of at least `least`."""
    try:
        number = float("nan") if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an integer of Python
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be a finite number, not {shown(value)}")
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least:g}, not {shown(value)}")
    return number


def file_path(value: Any, name: str, error: type[OutplayError] = ConfigError) -> Path:
    """The path of a file or a folder."""
    if not isinstance(value, str) and not (isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)):
        raise error(f"{name} must be a path, not {shown(value)}")
    return Path(value)


def shown(value: Any) -> str:
    """A value in an error message: short ones as they are, others by their type."""
    if isinstance(value, str):
        return repr(shortened(value))
    is_short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**20) or value is None
    return repr(value) if is_short else type_name(value)
