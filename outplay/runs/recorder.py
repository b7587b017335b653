"""Recorder: writes the metrics and the status of a run while it trains."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from datetime import datetime

from outplay.algorithms import Algorithm
from outplay.runs.folder import RunFolder
from outplay.runs.history import Result
from outplay.runs.sinks import Sink

log = logging.getLogger("outplay")

_STATUS_INTERVAL_S = 1.0  # between two updates of status.json


class Recorder:
    """Writes the metrics and the status of a run. Holds the lock of the run folder while it is open."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._sinks: list[Sink] = []
        self._status_at = 0.0
        self.is_open = False

    def open(self, algorithm: Algorithm, loggers: Sequence[str]) -> list[Result]:
        """Lock the folder and open the sinks. Returns the results up to the algorithm's iteration, which are kept."""
        self._folder.lock()
        self.is_open = True
        kept, damaged = self._folder.results_until(algorithm.iteration)
        if damaged:
            lines = "1 damaged line was" if len(damaged) == 1 else f"{len(damaged)} damaged lines were"
            numbers = ", ".join(map(str, damaged[:10])) + (", …" if len(damaged) > 10 else "")
            log.warning("metrics.jsonl: %s dropped (line %s)", lines, numbers)
        self._sinks = self._folder.open_sinks(loggers, kept, algorithm.timesteps)
        return kept

    def write(self, result: Result) -> None:
        for sink in self._sinks:
            sink.write(result)

    def write_status(self, state: str, algorithm: Algorithm, last: Result, progress: float, error: str = "") -> None:
        restarts = algorithm.worker_restarts
        self._folder.write_status(
            {
                "state": state,
                "pid": os.getpid(),
                "host": os.uname().nodename,
                "updated": datetime.now().astimezone().isoformat(timespec="seconds"),
                "training_iteration": algorithm.iteration,
                "timesteps_total": algorithm.timesteps,
                "episode_return_mean": last.get("episode_return_mean"),
                "progress": progress,
                "workers": {"number": len(restarts), "replaced": sum(restarts)},
                **({"error": error} if error else {}),
            }
        )
        self._status_at = time.monotonic()

    @property
    def is_status_due(self) -> bool:
        return time.monotonic() - self._status_at >= _STATUS_INTERVAL_S

    def close(self) -> None:
        """Close the sinks and unlock the folder."""
        sinks, self._sinks, self.is_open = self._sinks, [], False
        try:
            for sink in sinks:
                sink.close()
        finally:
            self._folder.unlock()


def last_result(kept: list[Result], algorithm: Algorithm) -> Result:
    """The result of the algorithm's iteration. If its line is missing, a result from the algorithm's counters."""
    if kept and kept[-1]["training_iteration"] == algorithm.iteration:
        return kept[-1]
    if not algorithm.iteration:
        return {}
    return {
        "training_iteration": algorithm.iteration,
        "timesteps_total": algorithm.timesteps,
        "time_total_s": algorithm.seconds,
        **algorithm.episodes.metrics(),
    }
