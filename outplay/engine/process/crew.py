"""The hub's records of work, actors and workers, and how a worker is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from outplay.engine.process.payload import Payload, WorkSpec
from outplay.engine.process.reaping import WORKER_VARIABLE, mark
from outplay.engine.process.wire import Message
from outplay.engine.slots import Lease, thread_caps

# Without a line of settings, the hub was killed meanwhile.
_BOOT = (
    "import sys, json; settings = json.loads(sys.stdin.readline() or sys.exit()); sys.path[:] = settings['path']; "
    "from outplay.engine.process.worker import main; main(settings)"
)

Flavour = tuple[int, tuple[int, ...]]  # (threads, GPUs): fixed once numpy or torch is imported
Shape = tuple[float, float, int | None, int | None]  # (CPUs, GPUs, reservation, home)


@dataclass(eq=False)
class Work:
    """A task, or the creation of an actor, from submission until it is done."""

    spec: WorkSpec
    caller: int
    turn: int  # the order of arrival
    depth: int  # see backlog.py
    retries_left: int  # or restarts of an actor; -1: no limit
    actor: Actor | None = None  # if this work creates an actor
    home: int | None = None  # the reservation in which its caller runs
    missing: int = 0  # the number of arguments that do not exist yet
    crashes: int = 0  # the number of workers that died while they ran it
    cancelled: bool = False
    since: float = field(default_factory=time.monotonic)
    warned: bool = False

    @property
    def name(self) -> str:
        return self.spec.call.name

    @property
    def shape(self) -> Shape:
        return (self.spec.cpus, self.spec.gpus, self.spec.reservation, self.home)


@dataclass
class Actor:
    """An actor, over all its restarts."""

    id: int
    work: Work | None = None
    incarnation: int = 0
    worker: Worker | None = None
    death: Payload | None = None
    ending: bool = False  # its last handle is gone
    located_by: list[tuple[int, int]] = field(default_factory=list)  # unanswered: (process, last incarnation it knows)


@dataclass
class Worker:
    """A worker process."""

    index: int
    process: subprocess.Popen[bytes]
    flavour: Flavour
    ready: bool = False
    work: Work | None = None
    lease: Lease | None = None
    waits_for: tuple[int, ...] = ()  # the objects that its task or actor waits for
    idle_since: float = 0.0
    killed_because: str | None = None  # if the hub killed it
    outbox: list[Message] = field(default_factory=list)  # messages to send when it is ready


def start_worker(index: int, flavour: Flavour, gpus: list[str], settings: dict[str, Any]) -> Worker:
    """Start a worker process."""
    threads, chosen = flavour
    environment = dict(os.environ)
    # These variables take effect only if they are set before numpy or torch is imported.
    environment |= thread_caps(threads)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[gpu] for gpu in chosen)
    environment[WORKER_VARIABLE] = mark(settings["folder"], index)
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT], stdin=subprocess.PIPE, env=environment, start_new_session=True
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:  # it crashed at once, which is handled like any crash
        stdin.write(json.dumps({**settings, "index": index}).encode() + b"\n")
    return Worker(index, process, flavour)
