"""Work that waits for a slot: in which order it may start, and on whose slot.

A task that waits for others gives up its slot. Were that slot free for anybody, each of many tasks that wait would let
the next one start, on a process of its own. So every piece of work has a depth: one more than that of the task that
started it, or that waits for it. A slot that a waiting task has given up is for deeper work alone: as a rule for what
it waits for. Then at most as many tasks of each depth are under way as there are slots.

The hub does not see every wait: tasks may wait for each other through an actor. So if a slot stays unused for a
while and there is work, one more is started all the same: it never stays like that for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from outplay.engine.process.crew import Shape, Work, Worker
from outplay.engine.slots import Lease, Slots

# Before a slot that somebody as deep has given up is used; the longer, the more of them wait.
_PATIENCE_S = 0.1
_MOST_PATIENCE_S = 1.0

Line = tuple[Shape, int]  # what it needs, and its depth


class Backlog:
    """Work that could run, in lines of equal shape and depth."""

    def __init__(self, slots: Slots, workers: dict[int, Worker]) -> None:
        self.makers: dict[int, Work] = {}  # the tasks, not done yet, that make objects
        self._slots = slots
        self._workers = workers
        self._lines: dict[Line, deque[Work]] = {}
        self._unused_since: float | None = None  # when a slot was first left to deeper work than there is

    def add(self, work: Work, first: bool = False) -> None:
        line = self._lines.setdefault((work.shape, work.depth), deque())
        if first:
            line.appendleft(work)
        else:
            line.append(work)

    def remove(self, work: Work) -> bool:
        """Whether it was here."""
        line = self._lines.get((work.shape, work.depth), deque())
        if work not in line:
            return False
        line.remove(work)
        return True

    def remove_all_of(self, caller: int) -> list[Work]:
        removed = [work for line in self._lines.values() for work in line if work.caller == caller]
        for line, works in self._lines.items():
            self._lines[line] = deque(work for work in works if work.caller != caller)
        return removed

    def deepen(self, numbers: tuple[int, ...], depth: int) -> None:
        """What makes these objects is waited for by a task less deep, and may use its slot; so may what that needs."""
        reached = [(number, depth) for number in numbers]
        while reached:
            number, depth = reached.pop()
            work = self.makers.get(number)
            if work is None or work.depth >= depth:
                continue
            is_here = self.remove(work)
            work.depth = depth
            if is_here:
                self.add(work)
            reached += [(argument, depth) for _, argument, payload in work.spec.call.slots if payload is None]
            worker = next((worker for worker in self._workers.values() if worker.work is work), None)
            if worker is not None and worker.lease is not None:
                worker.lease.depth = depth
                reached += [(inner, depth + 1) for inner in worker.waits_for]

    def heads(self) -> list[Work]:
        """The first of each line, the oldest first."""
        return sorted((works[0] for works in self._lines.values() if works), key=lambda work: work.turn)

    def startable(self, held_back: int | None) -> Iterator[tuple[Work, Lease | None]]:
        """Take out what there is room for, the oldest first, with its lease; None: its reservation is gone.

        A reservation that waits for several CPUs would never see them free at once if others kept passing. So what
        came after `held_back` waits, unless it needs no CPU or has a reservation of its own.
        """
        if not self._lines:
            return
        for head in self.heads():
            works = self._lines.get((head.shape, head.depth))
            while works and not _is_held_back(works[0], held_back):
                try:
                    lease = self._slots.take(*head.shape, head.depth)
                except ValueError:
                    yield works.popleft(), None
                    continue
                if lease is None:
                    break
                yield works.popleft(), lease
        self._lines = {line: works for line, works in self._lines.items() if works}
        if self._lines:
            yield from self._overdue(held_back)
        else:
            self._unused_since = None

    def _overdue(self, held_back: int | None) -> Iterator[tuple[Work, Lease]]:
        """One more, if a slot that somebody waiting has given up was not used for a while."""
        for work in sorted(self.heads(), key=lambda work: -work.depth):
            lease = None if _is_held_back(work, held_back) else self._slots.take(*work.shape)
            if lease is not None:
                break
        else:
            self._unused_since = None
            return
        now = time.monotonic()
        if self._unused_since is None:
            self._unused_since = now
        if now < self._unused_since + self._patience():
            self._slots.give(lease)
            return
        self._unused_since = now
        self._lines[work.shape, work.depth].popleft()
        lease.depth = work.depth
        yield work, lease

    def _patience(self) -> float:
        return min(_MOST_PATIENCE_S, _PATIENCE_S * max(1.0, self._slots.paused_cpus / self._slots.machine.cpus))

    def due_in(self) -> float | None:
        """In how many seconds a slot will have been unused for long enough; None if there is no such slot."""
        if self._unused_since is None:
            return None
        return max(0.0, self._unused_since + self._patience() - time.monotonic())


def _is_held_back(work: Work, held_back: int | None) -> bool:
    return held_back is not None and work.spec.reservation is None and work.spec.cpus > 0 and work.turn > held_back
