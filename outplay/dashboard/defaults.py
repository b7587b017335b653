"""The defaults of settings, to show only those that differ.

The settings of an algorithm are in its module, which imports torch. So another process reads them once, at low
priority. Until then, no settings of algorithms are shown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from outplay.config import AlgorithmConfig
from outplay.experiment import Experiment
from outplay.parsing import parse_json
from outplay.runs.comparing import AUTO, flat

log = logging.getLogger("outplay")

_NOT_SHOWN = ("name", "env", "run", "description", "import_from", "config")
_NOT_SHOWN_CONFIG = ("env", "seed")
_CODE = "from outplay.dashboard.defaults import print_defaults; print_defaults()"


class Defaults:
    """The default settings by algorithm. `version` changes when more of them are known."""

    def __init__(self) -> None:
        self.version = 0
        self._experiment = flat(Experiment(env="").model_dump(mode="json", exclude=set(_NOT_SHOWN)))
        self._shared = flat(AlgorithmConfig().model_dump(mode="json", by_alias=True))
        self._by_algorithm: dict[str, dict[str, Any]] = {}

    def changed(self, algorithm: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of config.yaml that differ from the defaults: {"lr": 0.01, "model.use_lstm": True}."""
        experiment = {key: value for key, value in body.items() if key not in _NOT_SHOWN}
        found: dict[str, Any] = {}
        if self.version:  # before, the default of an algorithm would be taken for a change of the shared one
            known = self._by_algorithm.get(algorithm, self._shared)
            config = {key: value for key, value in body["config"].items() if key not in _NOT_SHOWN_CONFIG}
            # An algorithm of another package has settings that are not known. What `auto` became is no change.
            unknown = None if algorithm in self._by_algorithm else AUTO
            for key, value in flat(config).items():
                if known.get(key, unknown) not in (value, AUTO):
                    found[key] = value
        return found | {key: value for key, value in flat(experiment).items() if self._experiment.get(key) != value}

    async def load(self) -> None:
        """Read the settings of all algorithms in another process."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CODE),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for the dashboard, which ends it
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


def print_defaults() -> None:
    """Print the defaults of all shipped algorithms as JSON."""
    os.nice(19)
    from outplay.registry import algorithms
    from outplay.runs.loading import find_algorithm

    found = {}
    for name in algorithms.shipped:
        algorithm = find_algorithm(name)
        settings = algorithm.Config().model_dump(mode="json", by_alias=True)
        found[algorithm.__name__] = flat(settings)
    sys.stdout.write(json.dumps(found))
