"""The queues of work that waits for a slot.

A task that blocks releases its slot. If any other task could take that slot, each of 1,000 blocking tasks would let the
next one start, and each would need its own process. So all work has a depth: one more than the depth of the task that
started it or waits for it. Only deeper work may use the slot of a blocked task, usually the work that the task waits
for. So for each depth, there are at most as many started tasks as slots.

The hub does not see all dependencies: tasks can wait for each other through an actor. To avoid a deadlock, one more
piece of work is started if a slot of a blocked task has been unused for some time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from outplay.engine.process.crew import Shape, Work, Worker
from outplay.engine.slots import Lease, Slots

# How long the slot of a blocked task stays unused before work of the same depth may take it. The delay grows with the
# number of blocked tasks.
_MIN_DELAY_S = 0.1
_MAX_DELAY_S = 1.0

QueueKey = tuple[Shape, int]  # (resources, depth)


class Backlog:
    """Work whose arguments exist, in one queue per resource shape and depth."""

    def __init__(self, slots: Slots, workers: dict[int, Worker]) -> None:
        self.makers: dict[int, Work] = {}  # by object: the unfinished task that produces it
        self._slots = slots
        self._workers = workers
        self._queues: dict[QueueKey, deque[Work]] = {}
        self._unused_since: float | None = None  # since when a blocked task's slot is free, but no work is deep enough

    def add(self, work: Work, first: bool = False) -> None:
        queue = self._queues.setdefault((work.shape, work.depth), deque())
        if first:
            queue.appendleft(work)
        else:
            queue.append(work)

    def remove(self, work: Work) -> bool:
        """Remove work if it is queued. Returns whether it was."""
        queue = self._queues.get((work.shape, work.depth), deque())
        if work not in queue:
            return False
        queue.remove(work)
        return True

    def remove_all_of(self, caller: int) -> list[Work]:
        removed = [work for queue in self._queues.values() for work in queue if work.caller == caller]
        for key, works in self._queues.items():
            self._queues[key] = deque(work for work in works if work.caller != caller)
        return removed

    def deepen(self, numbers: tuple[int, ...], depth: int) -> None:
        """A task waits for these objects: raise the depth of the work that produces them, and of all it depends on."""
        reached = [(number, depth) for number in numbers]
        while reached:
            number, depth = reached.pop()
            work = self.makers.get(number)
            if work is None or work.depth >= depth:
                continue
            is_queued = self.remove(work)
            work.depth = depth
            if is_queued:
                self.add(work)
            reached += [(argument, depth) for _, argument, payload in work.spec.call.ref_arguments if payload is None]
            worker = next((worker for worker in self._workers.values() if worker.work is work), None)
            if worker is not None and worker.lease is not None:
                worker.lease.depth = depth
                reached += [(inner, depth + 1) for inner in worker.waits_for]

    def heads(self) -> list[Work]:
        """The first of each queue, the oldest first."""
        return sorted((works[0] for works in self._queues.values() if works), key=lambda work: work.turn)

    def startable(self, held_back: int | None) -> Iterator[tuple[Work, Lease | None]]:
        """Remove the work for which there are free slots, the oldest first, with its lease.

        The lease is None if the work's reservation was released. `held_back` is the turn of a queued reservation: work
        that came later does not start, unless it needs no CPU or runs in a reservation: its own or its caller's.
        """
        if not self._queues:
            return
        for head in self.heads():
            works = self._queues.get((head.shape, head.depth))
            while works:
                try:
                    lease = self._lease(works[0], held_back, head.depth)
                except ValueError:
                    yield works.popleft(), None
                    continue
                if lease is None:
                    break
                yield works.popleft(), lease
        self._queues = {key: works for key, works in self._queues.items() if works}
        if self._queues:
            yield from self._overdue(held_back)
        else:
            self._unused_since = None

    def _overdue(self, held_back: int | None) -> Iterator[tuple[Work, Lease]]:
        """One more piece of work, if the slot of a blocked task has been unused for too long."""
        for work in sorted(self.heads(), key=lambda work: -work.depth):
            lease = self._lease(work, held_back)
            if lease is not None:
                break
        else:
            self._unused_since = None
            return
        now = time.monotonic()
        if self._unused_since is None:
            self._unused_since = now
        if now < self._unused_since + self._delay():
            self._slots.give(lease)
            return
        self._unused_since = now
        self._queues[work.shape, work.depth].popleft()
        lease.depth = work.depth
        yield work, lease

    def _lease(self, work: Work, held_back: int | None, depth: int | None = None) -> Lease | None:
        cpus, gpus, reservation, home = work.shape
        if not _is_held_back(work, held_back):
            return self._slots.take(cpus, gpus, reservation, depth, home)
        return self._slots.take(cpus, gpus, home, depth) if home in self._slots.reservations else None

    def _delay(self) -> float:
        return min(_MAX_DELAY_S, _MIN_DELAY_S * max(1.0, self._slots.paused_cpus / self._slots.machine.cpus))

    def due_in(self) -> float | None:
        """Seconds until an unused slot of a blocked task may be taken; None if there is no such slot."""
        if self._unused_since is None:
            return None
        return max(0.0, self._unused_since + self._delay() - time.monotonic())


def _is_held_back(work: Work, held_back: int | None) -> bool:
    return held_back is not None and work.spec.reservation is None and work.spec.cpus > 0 and work.turn > held_back
