"""The hub's reservations: those that were granted, and the queue of those that are not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from outplay.engine.process.counting import Sender
from outplay.engine.process.crew import Worker
from outplay.engine.slots import Slots

Bundles = tuple[tuple[float, float], ...]  # (CPUs, GPUs) of each


class QueuedReservation(NamedTuple):
    owner: int  # the process that asked for it
    number: int
    bundles: Bundles
    turn: int


class Reservations:
    """Grants reservations in the order of their arrival: all bundles of one, or none."""

    def __init__(self, slots: Slots, send: Sender) -> None:
        self.queue: deque[QueuedReservation] = deque()
        self.owners: dict[int, int] = {}  # of granted reservations: the process that owns each
        self._slots = slots
        self._send = send

    def grant(self) -> None:
        """Grant queued reservations, as long as there are enough free slots for the oldest."""
        while self.queue:
            owner, number, bundles, _ = self.queue[0]
            if not self._slots.reserve(number, bundles):
                return
            self.queue.popleft()
            self.owners[number] = owner
            self._send(owner, ("reserved", number))

    def blocking_turn(self, workers: Iterable[Worker]) -> int | None:
        """The turn of the oldest queued reservation, if it can be granted once all running tasks have ended.

        Work that came later waits for it. Otherwise several slots would never be free at the same time.
        """
        if not self.queue:
            return None
        taken = sum(w.lease.cpus for w in workers if w.lease and w.work and w.work.actor)
        taken += sum(pool.cpus for pools in self._slots.reservations.values() for pool in pools)
        oldest = self.queue[0]
        is_attainable = sum(cpus for cpus, _ in oldest.bundles) <= self._slots.machine.cpus - taken
        return oldest.turn if is_attainable else None

    def remove(self, number: int) -> None:
        """Remove a reservation, granted or queued, and free its slots."""
        self.queue = deque(queued for queued in self.queue if queued.number != number)
        self.owners.pop(number, None)
        self._slots.release(number)

    def remove_queued_by(self, owner: int) -> None:
        self.queue = deque(queued for queued in self.queue if queued.owner != owner)

    def granted_to(self, owner: int) -> list[int]:
        return [number for number, other in self.owners.items() if other == owner]
