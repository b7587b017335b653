"""Agents: RolloutWorkers that collect one Fragment after the other, none waiting for the others."""

from __future__ import annotations

from collections import deque

from outplay.collect.worker import WorkerSet
from outplay.engine import api as engine
from outplay.engine.base import Ref
from outplay.fragments import Fragment
from outplay.policies import Weights


class Agents:
    """What is under way from each worker.

    >>> agents = Agents(workers)
    >>> while learning:
    ...     agents.ask(weights)  # unless the learner is too far behind
    ...     for place in agents.ready(wait=False):
    ...         fragments = agents.take(place)

    Each worker is asked for two Fragments ahead, so that it has something to do while the learner is busy.
    """

    AHEAD = 2

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers
        self._calls: list[deque[Ref]] = [deque() for _ in range(workers.num_workers)]
        self._generations = list(workers.pool.generations)  # of the workers that the calls are to
        self._weights: tuple[int, Ref] | None = None  # by version: put once, read by all

    def ask(self, weights: Weights) -> None:
        """Whoever has less than two Fragments to collect gets one more, with these Weights."""
        self._forget_the_dead()
        for place, calls in enumerate(self._calls):
            while len(calls) < self.AHEAD:
                if self._weights is None or self._weights[0] != weights.version:
                    self._weights = (weights.version, engine.put(weights))
                calls.append(self._workers.begin(place, self._weights[1]))

    def ready(self, wait: bool) -> list[int]:
        """The workers that have something to give now; with `wait`, at least one."""
        first = {self._calls[place][0]: place for place in self.under_way()}
        if not first:
            return []
        ready, _ = engine.wait(list(first), num_returns=1, timeout=None if wait else 0)
        if ready:  # perhaps more than the one that was waited for
            ready, _ = engine.wait(list(first), num_returns=len(first), timeout=0)
        return [first[call] for call in ready]

    def take(self, place: int) -> list[Fragment]:
        """What this worker has given. If it died instead, it is replaced."""
        result = self._workers.pool.end(place, self._calls[place].popleft())
        self._forget_the_dead()
        if result is None:
            return []
        fragments: list[Fragment] = result[0]
        self._workers.advance(fragments)
        return fragments

    def under_way(self) -> list[int]:
        """The workers that were asked and have not given yet."""
        self._forget_the_dead()
        return [place for place, calls in enumerate(self._calls) if calls]

    def _forget_the_dead(self) -> None:
        """Who replaces a worker begins where the last Fragments that were taken end; what came after them is void."""
        for place, generation in enumerate(self._workers.pool.generations):
            if generation != self._generations[place]:
                self._generations[place] = generation
                self._calls[place].clear()
