"""Algorithms, one file each. Their names are in `outplay.registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outplay import registry
from outplay.errors import ConfigError

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm
    from outplay.registry import *  # noqa: F403


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of a built-in algorithm, or of one that an installed package registers."""
    from outplay.algorithms.algorithm import Algorithm

    name = _registered(str(name))
    found = registry.algorithms.load(name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"the algorithm {name!r} is {found!r}, which is not a subclass of outplay.Algorithm")
    if found.__name__ != name:  # runs and checkpoints record the name of the class
        raise ConfigError(f"the algorithm {name!r} is the class {found.__name__!r}; register it by its own name")
    return found


def _registered(name: str) -> str:
    """The registered spelling of a name: case does not matter."""
    if name in registry.algorithms:
        return name
    return next((known for known in registry.algorithms.names() if known.lower() == name.lower()), name)


def __getattr__(name: str) -> Any:
    if name in registry.__all__:
        return getattr(registry, name)
    if name == "Algorithm":  # it needs torch
        from outplay.algorithms.algorithm import Algorithm

        return Algorithm
    raise AttributeError(f"module 'outplay.algorithms' has no attribute {name!r}")


__all__ = ["Algorithm", "find_algorithm"]
__all__ += registry.__all__
