"""The asynchronous collector: workers collect one Fragment after another, and none waits for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from outplay.collect.collector import Collector
from outplay.engine import api as engine
from outplay.engine.base import Ref
from outplay.fragments import Fragment
from outplay.policies import Weights


class AsyncCollector(Collector):
    """Returns Fragments as they arrive. Each worker is asked for two ahead, so that it is never idle.

    >>> while learning:
    ...     if collector.is_stale(learner.updates, timesteps, max_updates=16, max_steps=256):
    ...         weights = collector.publish(snapshot(), learner.updates, timesteps)
    ...     fragments = collector.collect(None if learner.due > limit else weights, wait=not learner.due)
    """

    AHEAD = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.newest: Weights | None = None
        self._published_at = (0, 0)  # updates and timesteps of the newest Weights
        self._lags: list[int] = []
        self._stored: tuple[int, Ref] | None = None  # version and Ref of the Weights: put once, read by all workers
        self._requests: list[deque[Ref]] = [deque() for _ in range(self.num_workers)]
        self._generations = list(self.pool.generations)  # of the workers that the requests went to

    # Versions of the Weights.

    def is_stale(self, updates: int, timesteps: int, max_updates: int, max_steps: int) -> bool:
        """Whether the newest Weights are so many updates or timesteps old, or there are none."""
        if self.newest is None:
            return True
        return updates - self._published_at[0] >= max_updates or timesteps - self._published_at[1] >= max_steps

    def publish(self, weights: Weights, updates: int, timesteps: int) -> Weights:
        """Make these the newest Weights, taken after so many updates and timesteps."""
        self.newest, self._published_at = weights, (updates, timesteps)
        return weights

    def record_lag(self, fragments: Sequence[Fragment], updates: int) -> None:
        """Note the policy lag of Fragments: updates made since the Weights that acted were taken."""
        for fragment in fragments:
            self._lags.append(lag := updates - fragment.updates)
            self.pool.health[self._worker_of(fragment)].lag = lag

    def lag_metrics(self) -> dict[str, float]:
        """Mean and maximum policy lag since the last call."""
        lags, self._lags = self._lags, []
        return {"policy_lag": float(np.mean(lags)), "policy_lag_max": float(max(lags))} if lags else {}

    # Requests.

    def collect(self, weights: Weights | None, wait: bool = True) -> list[Fragment]:
        if weights is not None:
            self._request(weights)
        return [fragment for worker in self._ready(wait) for fragment in self._receive(worker)]

    def drain(self) -> list[Fragment]:
        fragments: list[Fragment] = []
        while workers := self._busy():
            for worker in workers:
                fragments += self._receive(worker)
        return fragments

    def _request(self, weights: Weights) -> None:
        self._discard_dead()
        for worker, requests in enumerate(self._requests):
            while len(requests) < self.AHEAD:
                if self._stored is None or self._stored[0] != weights.version:
                    self._stored = (weights.version, engine.put(weights))
                requests.append(self.pool.begin(worker, "collect", self._stored[1], self.task))

    def _ready(self, wait: bool) -> list[int]:
        """Workers whose next Fragments have arrived; with `wait`, at least one."""
        first = {self._requests[worker][0]: worker for worker in self._busy()}
        if not first:
            return []
        ready, _ = engine.wait(list(first), num_returns=1, timeout=None if wait else 0)
        if ready:  # perhaps more than the one that was waited for
            ready, _ = engine.wait(list(first), num_returns=len(first), timeout=0)
        return [first[request] for request in ready]

    def _receive(self, worker: int) -> list[Fragment]:
        """The next Fragments of a worker. If it died, it is replaced, and there are none."""
        result = self.pool.end(worker, self._requests[worker].popleft())
        self._discard_dead()
        if result is None:
            return []
        fragments: list[Fragment] = result[0]
        self._accept(fragments)
        return fragments

    def _busy(self) -> list[int]:
        """The workers with requests under way."""
        self._discard_dead()
        return [worker for worker, requests in enumerate(self._requests) if requests]

    def _discard_dead(self) -> None:
        """A replacement starts after the last accepted Fragment: pending requests to its predecessor are discarded."""
        for worker, generation in enumerate(self.pool.generations):
            if generation != self._generations[worker]:
                self._generations[worker] = generation
                self._requests[worker].clear()
