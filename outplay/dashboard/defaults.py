"""The defaults of settings, to show only those that differ.

The settings of an algorithm are in its module, which imports torch. So another process reads them once, at low
priority. Until then, the settings that all algorithms share are known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from outplay.config import AlgorithmConfig, Experiment
from outplay.parsing import parse_json

log = logging.getLogger("outplay")

_NOT_SHOWN = ("name", "env", "run", "description", "import_from", "config")
_NOT_SHOWN_CONFIG = ("env", "seed")
_CODE = "from outplay.dashboard.defaults import print_defaults; print_defaults()"


class Defaults:
    """The default settings by algorithm. `version` changes when more of them are known."""

    def __init__(self) -> None:
        self.version = 0
        self._experiment = flat_settings(Experiment(env="").model_dump(mode="json", exclude=set(_NOT_SHOWN)))
        self._shared = flat_settings(AlgorithmConfig().model_dump(mode="json", by_alias=True))
        self._by_algorithm: dict[str, dict[str, Any]] = {}

    def changed(self, algorithm: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of config.yaml that differ from the defaults: {"lr": 0.01, "model.use_lstm": True}."""
        experiment = {key: value for key, value in body.items() if key not in _NOT_SHOWN}
        known = self._by_algorithm.get(algorithm, self._shared)
        config = {key: value for key, value in body["config"].items() if key not in _NOT_SHOWN_CONFIG}
        found = {key: value for key, value in flat_settings(config).items() if key in known and known[key] != value}
        if algorithm in self._by_algorithm:  # else its own settings are not known
            found |= {key: value for key, value in flat_settings(config).items() if key not in known}
        return found | {
            key: value for key, value in flat_settings(experiment).items() if self._experiment.get(key) != value
        }

    async def load(self) -> None:
        """Read the settings of all algorithms in another process."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CODE),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            out, _ = await process.communicate()
            found = parse_json(out)
        except ValueError:
            log.warning("the defaults of settings could not be read; the page shows fewer settings of runs")
            return
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._by_algorithm = found
        self.version += 1


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dots between the keys. Values that are no mapping stay.

    >>> flat_settings({"lr": 0.1, "model": {"use_lstm": True}})
    {'lr': 0.1, 'model.use_lstm': True}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat.update(flat_settings(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def print_defaults() -> None:
    """Print the defaults of all shipped algorithms as JSON."""
    os.nice(19)
    from outplay.registry import algorithms
    from outplay.runs.loading import find_algorithm

    found = {}
    for name in algorithms.shipped:
        algorithm = find_algorithm(name)
        settings = algorithm.Config().model_dump(mode="json", by_alias=True)
        found[algorithm.__name__] = flat_settings(settings)
    sys.stdout.write(json.dumps(found))
