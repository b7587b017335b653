"""Searchers and schedulers by name, for files: `scheduler: {type: asha, max_t: 100}`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from outplay.errors import ConfigError, nearest
from outplay.tune import schedulers, search

# Short names, and the classes they mean. The classes' own names are known, too. Upper and lower case are the same.
SHORT_NAMES: dict[str, dict[str, str]] = {
    "search": {
        "random": "Variants",
        "grid": "Variants",
        "optuna": "OptunaSearch",
        "bohb": "TuneBOHB",
    },
    "scheduler": {
        "fifo": "FIFOScheduler",
        "asha": "ASHAScheduler",
        "async_hyperband": "AsyncHyperBandScheduler",
        "hyperband": "HyperBandScheduler",
        "bohb": "HyperBandForBOHB",
        "median": "MedianStoppingRule",
        "median_stopping": "MedianStoppingRule",
        "pbt": "PopulationBasedTraining",
        "pb2": "PB2",
        "pbt_replay": "PopulationBasedTrainingReplay",
    },
}
_MODULES = {"search": search, "scheduler": schedulers}
_BASES: dict[str, type] = {"search": search.Searcher, "scheduler": schedulers.Scheduler}


def classes(kind: str) -> dict[str, type]:
    """All searchers or schedulers by their names in lower case. `kind` is "search" or "scheduler"."""
    module, base = _MODULES[kind], _BASES[kind]
    exported = {name: getattr(module, name) for name in module.__all__}
    found = {name: cls for name, cls in exported.items() if isinstance(cls, type) and issubclass(cls, base)}
    short = {name: found[cls] for name, cls in SHORT_NAMES[kind].items() if cls in found}
    return {**{name.lower(): cls for name, cls in found.items() if name != base.__name__}, **short}


def made(kind: str, given: Any, where: str, **more: Any) -> Any:
    """The searcher or scheduler that a file describes: "asha", or {"type": "asha", "max_t": 100}.

    `more` are arguments that it gets if it knows them.
    """
    arguments = {"type": given} if isinstance(given, str) else given
    if not isinstance(arguments, Mapping) or not isinstance(arguments.get("type"), str):
        raise ConfigError(f"{where}: {kind} must be as {_EXAMPLES[kind]}, not {given!r}")
    name = arguments["type"]
    known = classes(kind)
    cls = known.get(name.lower().replace("-", "_")) or known.get(name.lower())
    if cls is None:
        short = [each for each in SHORT_NAMES[kind] if each in known]
        raise ConfigError(f"{where}: there is no {kind} {name!r}{nearest(name.lower(), short)}")
    parameters = inspect.signature(cls).parameters
    own = {key: value for key, value in arguments.items() if key != "type"}
    if unknown := [key for key in own if key not in parameters]:
        hint = nearest(str(unknown[0]), parameters) if parameters else f"; {cls.__name__} has no settings"
        raise ConfigError(f"{where}: {kind}: {cls.__name__} has no setting {unknown[0]!r}{hint}")
    try:
        return cls(**{key: value for key, value in more.items() if key in parameters}, **own)
    except ConfigError as error:
        raise ConfigError(f"{where}: {kind}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {kind}: {cls.__name__}: {error}") from error


_EXAMPLES = {"search": "{type: optuna, sampler: tpe}", "scheduler": "{type: asha, max_t: 100}"}
