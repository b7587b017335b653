"""Resource accounting: CPU slots, GPUs and reservations."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any

from outplay.engine.options import check_fits

# Numerical libraries read these when they are loaded. So they must be set before a worker is started.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_ROUNDING = 1e-9  # tolerance: fractions of a CPU are added and subtracted in any order


@dataclass
class Pool:
    """A pool of resources: those of the machine, or one bundle of a reservation."""

    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: dict[int, float]
    parent: Lease | None = None  # of a bundle: its lease of the machine's resources
    closed: bool = False  # its reservation was released: the parent is released with the last lease
    used: int = 0  # number of leases
    paused: list[Lease] = field(default_factory=list)


@dataclass(eq=False)
class Lease:
    """The resources of a pool that one task, actor or bundle holds."""

    pool: Pool
    cpus: float
    gpus: dict[int, float] = field(default_factory=dict)
    depth: int = 0  # of the task, see process/backlog.py
    paused: bool = False  # the task is blocked, and its CPUs are free for others


class Slots:
    """Grants and releases leases. Free CPUs can become negative, when a blocked task resumes; free GPUs cannot.

    >>> slots = Slots(cpus=2, gpus=0)
    >>> lease = slots.take(1, 0)
    >>> slots.give(lease)
    """

    def __init__(self, cpus: float, gpus: int) -> None:
        self.machine = Pool(cpus, gpus, cpus, dict.fromkeys(range(gpus), 1.0))
        self.reservations: dict[int, list[Pool]] = {}

    def check(self, what: str, cpus: float, gpus: float, reservation: int | None = None) -> None:
        """Raise ResourceError for a request that can never be met."""
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"{what} asks for num_gpus={gpus:g}: above 1 it must be an integer")
        pools = self._pools(reservation)
        where = "this machine" if reservation is None else "its reservation"
        check_fits(what, cpus, gpus, [(pool.cpus, pool.gpus) for pool in pools], where)

    def check_bundles(self, bundles: tuple[tuple[float, float], ...]) -> None:
        cpus, gpus = sum(b[0] for b in bundles), sum(b[1] for b in bundles)
        for bundle in bundles:
            self.check("reserve()", *bundle)
        check_fits("reserve()", cpus, gpus, [(self.machine.cpus, self.machine.gpus)], "this machine")

    @property
    def paused_cpus(self) -> float:
        pools = [self.machine, *(pool for pools in self.reservations.values() for pool in pools)]
        return sum(lease.cpus for pool in pools for lease in pool.paused)

    def take(
        self,
        cpus: float,
        gpus: float,
        reservation: int | None = None,
        depth: int | None = None,
        home: int | None = None,
    ) -> Lease | None:
        """A lease from the first pool with enough free resources, or None.

        With `depth`, the CPUs of paused leases count as free only if their depth is smaller. `home` is the reservation
        of the caller: without a reservation of its own, work uses that one if it has room, and the machine otherwise.
        """
        pools = self._pools(reservation)
        if reservation is None and home is not None and (cpus or gpus):
            pools = [*self.reservations.get(home, ()), *pools]
        for pool in pools:
            kept = 0.0 if depth is None else sum(lease.cpus for lease in pool.paused if lease.depth >= depth)
            if cpus and pool.free_cpus - kept + _ROUNDING < cpus:
                continue
            shares = _choose_gpus(pool, gpus)
            if shares is None:
                continue
            pool.free_cpus -= cpus
            for gpu, share in shares.items():
                pool.free_gpus[gpu] -= share
            pool.used += 1
            return Lease(pool, cpus, shares, depth or 0)
        return None

    def give(self, lease: Lease) -> None:
        pool = lease.pool
        if lease.paused:
            pool.paused.remove(lease)
        else:
            pool.free_cpus += lease.cpus
        for gpu, share in lease.gpus.items():
            pool.free_gpus[gpu] += share
        pool.used -= 1
        self._release_if_closed(pool)

    def pause(self, lease: Lease) -> None:
        """The task is blocked: others may use its CPUs meanwhile."""
        if not lease.paused:
            lease.paused = True
            lease.pool.paused.append(lease)
            lease.pool.free_cpus += lease.cpus

    def resume(self, lease: Lease) -> None:
        if lease.paused:
            lease.paused = False
            lease.pool.paused.remove(lease)
            lease.pool.free_cpus -= lease.cpus

    def reserve(self, reservation: int, bundles: tuple[tuple[float, float], ...]) -> bool:
        """Reserve all bundles, or none. Returns whether it succeeded."""
        leases: list[Lease] = []
        for cpus, gpus in bundles:
            lease = self.take(cpus, gpus)
            if lease is None:
                for taken in leases:
                    self.give(taken)
                return False
            leases.append(lease)
        self.reservations[reservation] = [
            Pool(lease.cpus, sum(lease.gpus.values()), lease.cpus, dict(lease.gpus), parent=lease) for lease in leases
        ]
        return True

    def release(self, reservation: int) -> None:
        for pool in self.reservations.pop(reservation, []):
            pool.closed = True
            self._release_if_closed(pool)

    def totals(self) -> dict[str, float]:
        return {"CPU": float(self.machine.cpus), "GPU": float(self.machine.gpus)}

    def free(self) -> dict[str, float]:
        """Free resources of the machine. Reserved ones are not free, even if no task uses them."""
        return {"CPU": max(0.0, self.machine.free_cpus), "GPU": sum(self.machine.free_gpus.values())}

    def _release_if_closed(self, pool: Pool) -> None:
        if pool.closed and pool.used == 0 and pool.parent is not None:
            parent, pool.parent = pool.parent, None
            self.give(parent)

    def _pools(self, reservation: int | None) -> list[Pool]:
        if reservation is None:
            return [self.machine]
        if reservation not in self.reservations:
            raise ValueError("the reservation has already been released")
        return self.reservations[reservation]


def _choose_gpus(pool: Pool, amount: float) -> dict[int, float] | None:
    if amount == 0:
        return {}
    if amount < 1:
        shared = [gpu for gpu, free in pool.free_gpus.items() if free + _ROUNDING >= amount]
        # The fullest GPU that has enough left, to keep other GPUs entirely free.
        return {min(shared, key=lambda gpu: pool.free_gpus[gpu]): amount} if shared else None
    whole = [gpu for gpu, free in pool.free_gpus.items() if free + _ROUNDING >= 1][: int(amount)]
    return dict.fromkeys(whole, 1.0) if len(whole) == int(amount) else None


def this_node(resources: dict[str, float]) -> dict[str, Any]:
    """This machine, in the format of `outplay.nodes()`."""
    name = socket.gethostname()
    return {
        "NodeID": name,
        "Alive": True,
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerHostname": name,
        "Resources": resources,
    }


def thread_caps(count: int) -> dict[str, str]:
    """Environment variables that limit numerical libraries to `count` threads."""
    return {name: str(count) for name in _THREAD_VARIABLES}
