"""The hub's workers that were asked to end, and how long each of them has for it."""

from __future__ import annotations

import time

from outplay.engine.endings import CLOSE_S
from outplay.engine.process.crew import Worker
from outplay.engine.process.reaping import kill_group

_BUSY_S = 1.0  # for one that has not begun to end, because it is busy
_MARGIN_S = 1.0  # after CLOSE_S, when one should have ended itself


class Dismissals:
    """Kills who does not end in time."""

    def __init__(self, workers: dict[int, Worker]) -> None:
        self._workers = workers
        self._kill_at: dict[int, float] = {}  # by index

    def add(self, worker: Worker) -> bool:
        """The worker is to be asked to end. False if it was before."""
        is_new = worker.index not in self._kill_at
        self._kill_at.setdefault(worker.index, time.monotonic() + _BUSY_S)
        return is_new

    def closing(self, index: int) -> None:
        """A worker has begun to end, and ends itself when its time is over."""
        if index in self._kill_at:
            self._kill_at[index] = time.monotonic() + CLOSE_S + _MARGIN_S

    def kill_overdue(self) -> None:
        for index, deadline in list(self._kill_at.items()):
            worker = self._workers.get(index)
            if worker is None:
                del self._kill_at[index]
            elif time.monotonic() > deadline:
                kill_group(worker.process.pid)
