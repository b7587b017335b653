"""Workers that were asked to exit, and the deadline of each."""

from __future__ import annotations

import time

from outplay.engine.endings import CLOSE_S
from outplay.engine.process.crew import Worker
from outplay.engine.process.reaping import kill_group

_BUSY_S = 1.0  # until a worker must have begun to exit
_MARGIN_S = 1.0  # after CLOSE_S, when a worker that has begun to exit kills itself


class Dismissals:
    """Kills workers that do not exit in time."""

    def __init__(self, workers: dict[int, Worker]) -> None:
        self._workers = workers
        self._kill_at: dict[int, float] = {}  # by the index of the worker

    def add(self, worker: Worker) -> bool:
        """Start the deadline of a worker. Returns False if it was started before."""
        is_new = worker.index not in self._kill_at
        self._kill_at.setdefault(worker.index, time.monotonic() + _BUSY_S)
        return is_new

    def closing(self, index: int) -> None:
        """A worker has begun to exit: extend its deadline. It kills itself after CLOSE_S."""
        if index in self._kill_at:
            self._kill_at[index] = time.monotonic() + CLOSE_S + _MARGIN_S

    def kill_overdue(self) -> None:
        for index, deadline in list(self._kill_at.items()):
            worker = self._workers.get(index)
            if worker is None:
                del self._kill_at[index]
            elif time.monotonic() > deadline:
                kill_group(worker.process.pid)
