"""What a trial needs, and the slots in which trials run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import outplay
from outplay.errors import ConfigError, GetTimeoutError, nearest
from outplay.tune.worker import TrialWorker

_NAMES = {"cpu": "num_cpus", "gpu": "num_gpus", "CPU": "num_cpus", "GPU": "num_gpus"}
_RETRY_S = 1.0
_PLACEMENT_S = 10.0  # a cluster may need some time to place a reservation that it has room for


def bundles_of(resources: Any) -> list[dict[str, float]]:
    """The bundles that are reserved for a trial: the first for the trial itself, others for its workers.

    >>> bundles_of({"cpu": 1, "gpu": 0.5})
    [{'num_cpus': 1, 'num_gpus': 0.5}]
    >>> bundles_of([{"cpu": 1}, {"cpu": 1}, {"cpu": 1}])  # the trial and two workers
    [{'num_cpus': 1}, {'num_cpus': 1}, {'num_cpus': 1}]
    """
    if resources is None:
        return [{"num_cpus": 1}]
    if isinstance(resources, Mapping):
        resources = [resources]
    if not isinstance(resources, Sequence) or isinstance(resources, str) or not resources:
        raise ConfigError(
            f"resources_per_trial must be as {{'cpu': 1, 'gpu': 0.5}}, or a list of these, not {resources!r}"
        )
    return [_bundle(each) for each in resources]


def run_resources(config: Mapping[str, Any]) -> list[dict[str, float]]:
    """The default for an algorithm: a CPU for each of its workers, or one if it has none, and for each more learner."""
    settings = config.get("config", config)
    workers, learners = settings.get("num_workers", 0), settings.get("num_learners", 1)
    cpus = workers if isinstance(workers, int) and workers > 1 else 1
    return [{"cpu": 1}] * (cpus + (learners - 1 if isinstance(learners, int) and learners > 1 else 0))


def _bundle(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"resources_per_trial: a bundle must be as {{'cpu': 1}}, not {given!r}")
    bundle = {}
    for name, value in given.items():
        if name not in _NAMES and name not in _NAMES.values():
            raise ConfigError(f"resources_per_trial: no resource {name!r}{nearest(str(name), ('cpu', 'gpu'))}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigError(f"resources_per_trial: {name} must be a number of at least 0, not {value!r}")
        bundle[str(_NAMES.get(name, name))] = value
    return bundle


@dataclass(eq=False)
class Slot:
    """A worker process and the resources that are reserved for it."""

    worker: Any
    reservation: Any


class Slots:
    """The slots of a study: as many as its trials' resources allow. Workers are reused between trials."""

    def __init__(
        self, trainable: Any, bundles: list[dict[str, float]], limit: int | None, registrations: Any = None
    ) -> None:
        self._trainable = outplay.put((trainable, registrations))
        self._bundles = bundles
        self._limit = limit
        self._all: list[Slot] = []
        self._free: list[Slot] = []
        self._full_until = 0.0

    @property
    def total(self) -> int:
        """The number of slots so far."""
        return len(self._all)

    def acquire(self) -> Slot | None:
        """A free slot; None if there is none now."""
        if self._free:
            return self._free.pop()
        if self._limit is not None and len(self._all) >= self._limit:
            return None
        if self._all and time.monotonic() < self._full_until:
            return None
        if (slot := self._new()) is None:
            self._full_until = time.monotonic() + _RETRY_S
            return None
        self._all.append(slot)
        return slot

    def _new(self) -> Slot | None:
        # The first one waits as long as it takes: other programs' resources may become free, or the cluster may grow.
        if self._all and not self._have_room():
            return None
        try:
            reservation = outplay.reserve(self._bundles, timeout=_PLACEMENT_S if self._all else None)
        except GetTimeoutError:
            return None
        options = {"num_cpus": 0, **self._bundles[0]}
        worker = TrialWorker.options(reservation=reservation, lends_cpus=True, **options).remote(self._trainable)
        return Slot(worker, reservation)

    def _have_room(self) -> bool:
        free = outplay.available_resources()
        for name, short in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            if sum(bundle.get(short, 0) for bundle in self._bundles) > free.get(name, 0) + 1e-9:
                return False
        return True

    def release(self, slot: Slot) -> None:
        """The slot is free for another trial."""
        self._free.append(slot)

    def discard(self, slot: Slot) -> None:
        """The slot's process has died, or must be killed. Another one may take its place."""
        self._all.remove(slot)
        if slot in self._free:
            self._free.remove(slot)
        self._end(slot)

    def _end(self, slot: Slot) -> None:
        outplay.kill(slot.worker)
        slot.reservation.release()

    def close(self) -> None:
        """Kill all workers."""
        for slot in self._all:
            self._end(slot)
        self._all, self._free = [], []
