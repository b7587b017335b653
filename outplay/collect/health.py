"""What the driver knows of each worker process: when it last answered, its speed, its restarts, its last error."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outplay.fragments import Fragment

MAX_LISTED = 256  # workers in `report`
_MAX_ERROR = 300  # characters


@dataclass
class WorkerHealth:
    """One worker process. It is updated with what the driver receives anyway: workers send nothing more."""

    heartbeat: float | None = None  # when its last result arrived, in seconds since 1970
    has_answered: bool = False  # since it was started or replaced
    restarts: int = 0
    lag: int = 0  # updates of the learner between the Weights that acted and the last Fragment's arrival
    error: str = ""  # why it was replaced, the last time
    steps_per_s: float | None = None  # of `report`, the last time that there were new steps
    steps: int = 0  # since the last `report`
    seconds: float = 0.0  # of acting and stepping, for these steps

    def answered(self) -> None:
        """A result of the worker has arrived."""
        self.heartbeat, self.has_answered = time.time(), True

    def collected(self, fragment: Fragment) -> None:
        """Add the steps of a Fragment, and the time that the worker needed for them."""
        self.steps += fragment.steps
        self.seconds += sum(fragment.seconds.values())

    def replaced(self, error: BaseException) -> None:
        """Another process has taken its place."""
        self.restarts += 1
        self.has_answered = False
        lines = str(error).splitlines() or [type(error).__name__]
        self.error = lines[0] if len(lines[0]) <= _MAX_ERROR else lines[0][: _MAX_ERROR - 1] + "…"

    def speed(self) -> float | None:
        """Steps per second of the worker's own time, since the last call with new steps."""
        if self.steps and self.seconds > 0:
            self.steps_per_s = self.steps / self.seconds
            self.steps, self.seconds = 0, 0.0
        return self.steps_per_s


def report(workers: Sequence[WorkerHealth]) -> list[dict[str, Any]]:
    """The workers as status.json lists them, at most MAX_LISTED."""
    return [
        {
            "index": index,
            "state": "running" if worker.has_answered else "starting",
            "heartbeat": None if worker.heartbeat is None else _time(worker.heartbeat),
            "steps_per_s": worker.speed(),
            "restarts": worker.restarts,
            "policy_lag": worker.lag,
            "error": worker.error or None,
        }
        for index, worker in enumerate(workers[:MAX_LISTED])
    ]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
