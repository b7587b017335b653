"""TrainWorker: the actor in which one worker of a trainer runs its training loop."""

from __future__ import annotations

import inspect
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import outplay
from outplay.errors import CheckpointError
from outplay.files import writing
from outplay.train.session import TrainContext
from outplay.train.shards import DatasetShard
from outplay.tune.checkpoint import partial_of
from outplay.tune.executions import Event, FunctionExecution, Job


class Backend(Protocol):
    """How the workers of a group communicate. Each worker has a copy."""

    def rendezvous(self, host: str, world_size: int) -> dict[str, Any]:
        """Called in the worker with rank 0, before training. Returns what the others need to find it."""

    def connected(self, place: Place, meeting: dict[str, Any]) -> Any:
        """A context manager around the training loop of a worker."""


@dataclass(frozen=True)
class Place:
    """Where a worker stands in its group."""

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    use_gpu: bool


@dataclass(frozen=True)
class Assignment:
    """What the workers of a group have in common."""

    loop: Callable[..., Any]
    backend: Backend
    datasets: Mapping[str, Any]
    job: Job  # the trial's


class WorkerExecution(FunctionExecution):
    """The training loop of one worker. It waits in `report` until all workers have reported."""

    def __init__(self, assignment: Assignment, place: Place, meeting: dict[str, Any]) -> None:
        self.place = place
        size = place.world_size
        self.shards = {
            name: DatasetShard(dataset, place.world_rank, size) for name, dataset in assignment.datasets.items()
        }

        def function(config: dict[str, Any]) -> None:
            with environment(place, meeting), assignment.backend.connected(place, meeting):
                call(assignment.loop, config)

        super().__init__(function, assignment.job)

    def _returned(self, value: Any) -> Event:  # noqa: ARG002 - the result of a loop is what it has reported
        return Event("end")

    def _kept(self, checkpoint: Any) -> str:
        """Copy the files to the folder in which the checkpoints of all workers meet, until it gets its name."""
        if not isinstance(checkpoint, str | os.PathLike) or not Path(checkpoint).is_dir():
            raise CheckpointError(
                f"checkpoint must be train.Checkpoint.from_directory(folder), and the folder must exist: {checkpoint!r}"
            )
        target = partial_of(Path(self.job.folder), self.iteration)
        with writing(target):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copytree(checkpoint, target, dirs_exist_ok=True)
        return str(target)

    @property
    def context(self) -> TrainContext:
        job, place = self.job, self.place
        return TrainContext(
            job.trial_id, job.study, Path(job.folder), job.seed, job.resources,
            place.world_rank, place.world_size, place.local_rank, place.local_world_size, place.node_rank,
        )  # fmt: skip


def call(loop: Callable[..., Any], config: dict[str, Any]) -> None:
    """Call a training loop, which may take its config or nothing."""
    try:
        takes_config = bool(inspect.signature(loop).parameters)
    except (TypeError, ValueError):  # some built-in functions have no signature
        takes_config = True
    if takes_config:
        loop(config)
    else:
        loop()


@contextmanager
def environment(place: Place, meeting: Mapping[str, Any]) -> Iterator[None]:
    """The variables that libraries for distributed training read. Restored at the end: on the inline engine, this is
    the user's own process."""
    variables = {
        "RANK": place.world_rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "NODE_RANK": place.node_rank,
        "MASTER_ADDR": meeting.get("host", "127.0.0.1"),
        "MASTER_PORT": meeting.get("port", 0),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def own_address() -> str:
    """The address of this machine in its network; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: only the route to it is looked up
        except OSError:  # no network
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@outplay.remote
class TrainWorker:
    """One worker of a group."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._execution: WorkerExecution | None = None

    def where(self) -> tuple[str, str]:
        """(the machine, its address)."""
        return socket.gethostname(), own_address()

    def rendezvous(self, host: str, world_size: int) -> dict[str, Any]:
        """Called for rank 0."""
        return {"host": host, **self._assignment.backend.rendezvous(host, world_size)}

    def start(self, place: Place, meeting: dict[str, Any]) -> None:
        """Start the training loop, in a thread. It runs when `step` is called."""
        self._execution = WorkerExecution(self._assignment, place, meeting)

    def step(self) -> Event:
        """Run until the next report, or the end."""
        assert self._execution is not None, "start() comes first"
        return self._execution.step()

    def stop(self) -> None:
        """End the training loop, which waits in `report`."""
        if self._execution is not None:
            self._execution.stop()

    def ping(self) -> None:
        """Answers while the training loop runs."""
