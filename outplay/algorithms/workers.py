"""The workers that collect experience, and the states of their EnvGroups while there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outplay.collect import Collector, report
from outplay.envs import GroupState

States = list[GroupState] | None  # None: every EnvGroup begins


class TrainingWorkers:
    """The Collector of an Algorithm. It starts on first use, and again after it was stopped.

    While it is stopped, the states of the EnvGroups are kept here: the next workers rebuild their environments from
    them.
    """

    def __init__(self, start: Callable[[States], Collector], states: States) -> None:
        self._start = start
        self._states = states
        self.running: Collector | None = None

    @property
    def collector(self) -> Collector:
        """The Collector, which is started if none is running."""
        if self.running is None:
            self.running = self._start(self._states)
        return self.running

    @property
    def states(self) -> States:
        """The states of the EnvGroups."""
        return self._states if self.running is None else self.running.states

    @property
    def task(self) -> Any:
        """The curriculum task of episodes that start now."""
        if self.running is not None:
            return self.running.task
        return self._states[0].task if self._states else None

    @property
    def restarts(self) -> list[int]:
        """The number of restarts of each worker process; empty if none is running."""
        return [] if self.running is None else list(self.running.pool.generations)

    def health(self) -> list[dict[str, Any]]:
        """Heartbeat, speed, restarts, policy lag and last error of each worker process, as status.json has them."""
        return [] if self.running is None else report(self.running.pool.health)

    def stop(self) -> None:
        """Stop the workers, without waiting for pending Fragments. The next ones continue."""
        self.restart_from(self.states)

    def restart_from(self, states: States) -> None:
        """Stop the workers. The next ones rebuild their environments from `states`."""
        running, self.running, self._states = self.running, None, states
        if running is not None:
            running.stop()
