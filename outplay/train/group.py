"""WorkerGroup: the workers of a trainer, which start, report and end together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import outplay
from outplay.engine.api import engine
from outplay.errors import ConfigError, GetTimeoutError, OutplayError, TaskError
from outplay.train.configs import ScalingConfig
from outplay.train.worker import Assignment, Place, TrainWorker
from outplay.tune.active import LOST
from outplay.tune.executions import Event, WorkersFailedError, WorkersLostError

_PING_S = 30.0  # a process that does not answer for this long has died, or its machine has
_STOP_S = 10.0  # for `finally` blocks of a training loop that is stopped


class WorkerGroup:
    """Workers that train together.

    >>> with WorkerGroup(assignment, ScalingConfig(num_workers=2)) as group:
    ...     while events := group.next_events():
    ...         metrics = events[0].metrics
    """

    def __init__(self, assignment: Assignment, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        resources = scaling.worker_resources
        shared = outplay.put(assignment)
        kind = TrainWorker.options(num_cpus=resources["cpu"], num_gpus=resources["gpu"], max_concurrency=2)
        self._workers = [kind.remote(shared) for _ in range(scaling.num_workers)]
        try:
            self._connect()
        except LOST as error:
            self.kill()
            raise WorkersLostError(f"a worker died before training began: {error}") from error
        except TaskError as error:
            self.kill()
            cause = error.cause
            own = f"{type(cause).__name__}: {cause}" if isinstance(cause, OutplayError) else error.remote_traceback
            raise WorkersFailedError(f"a worker could not start training:\n{own}") from error
        except BaseException:
            self.kill()
            raise

    def _connect(self) -> None:
        found = outplay.get([worker.where.remote() for worker in self._workers])
        hosts = [host for host, _ in found]
        is_local = len(set(hosts)) == 1
        address = "127.0.0.1" if is_local else found[0][1]
        meeting = outplay.get(self._workers[0].rendezvous.remote(address, len(hosts)))
        meeting["is_local"] = is_local
        places = places_of(hosts, self._scaling.use_gpu)
        outplay.get([worker.start.remote(place, meeting) for worker, place in zip(self._workers, places, strict=True)])

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, WorkersLostError | WorkersFailedError):
            self.kill()  # others wait for those that failed
        else:
            self.close()

    def next_events(self) -> list[Event]:
        """The next results of all workers, in the order of their ranks. Empty: all have ended.

        Raises WorkersLostError if a process has died, and WorkersFailedError if a training loop has raised.
        """
        waiting = {worker.step.remote(): rank for rank, worker in enumerate(self._workers)}
        events: dict[int, Event] = {}
        while waiting:
            ready, _ = outplay.wait(list(waiting), timeout=None)
            for ref in ready:
                rank = waiting.pop(ref)
                events[rank] = self._received(ref, rank)
            if errors := [(rank, event) for rank, event in events.items() if event.kind == "error"]:
                self._check_alive()  # a worker whose peer has died raises, too
                rank, event = errors[0]
                raise WorkersFailedError(f"rank {rank} of {len(self._workers)} raised:\n{event.error}")
        return self._together([events[rank] for rank in range(len(self._workers))])

    def _received(self, ref: Any, rank: int) -> Event:
        try:
            event: Event = outplay.get(ref)
        except LOST as error:
            raise WorkersLostError(f"the process of rank {rank} died: {error}") from error
        return event

    def _check_alive(self) -> None:
        """Raise WorkersLostError if a process has died."""
        try:
            outplay.get([worker.ping.remote() for worker in self._workers], timeout=_PING_S)
        except (*LOST, GetTimeoutError) as error:
            raise WorkersLostError(f"the process of a worker died: {error}") from error

    def _together(self, events: list[Event]) -> list[Event]:
        ended = [rank for rank, event in enumerate(events) if event.kind == "end"]
        if len(ended) == len(events):
            return []
        if ended:
            others = next(rank for rank in range(len(events)) if rank not in ended)
            raise WorkersFailedError(
                f"rank {ended[0]} has ended, but rank {others} has reported once more; all workers must call "
                "train.report() equally often"
            )
        return events

    def close(self) -> None:
        """End all workers: training loops that wait in `report` end there, and their `finally` blocks run."""
        stops = [worker.stop.remote() for worker in self._workers]
        outplay.wait(stops, num_returns=len(stops), timeout=_STOP_S)
        self.kill()

    def kill(self) -> None:
        for worker in self._workers:
            outplay.kill(worker)


def places_of(hosts: Sequence[str], use_gpu: bool) -> list[Place]:
    """The ranks of workers on these machines."""
    sizes, seen = Counter(hosts), Counter[str]()
    nodes = list(dict.fromkeys(hosts))
    places = []
    for rank, host in enumerate(hosts):
        places.append(Place(rank, len(hosts), seen[host], sizes[host], nodes.index(host), use_gpu))
        seen[host] += 1
    return places


def check_engine(scaling: ScalingConfig) -> None:
    """Raise ConfigError if the running engine cannot have several workers."""
    if scaling.num_workers > 1 and outplay.is_initialized() and engine().name == "inline":
        raise ConfigError(
            f"num_workers={scaling.num_workers} needs processes, and the engine is 'inline'; use num_workers=1, or "
            "outplay.init('process')"
        )
