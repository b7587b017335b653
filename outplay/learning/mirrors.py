"""Data-parallel learners (`num_learners`): the first one is in the main process, the others are Mirrors of it.

All learners make the same calls with the same arguments and the same random streams. They differ in one thing: each
computes the gradients of its part of every minibatch, and the optimizer adds them. So all have the same weights after
every update. The state of the run is that of the first one. If a Mirror dies, the call fails with LearnerDiedError, the
iteration is rolled back and repeated, and new Mirrors start from the first learner's state.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import socket
import tempfile
import uuid
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from outplay.config import AlgorithmConfig
from outplay.engine import api as engine
from outplay.engine.base import Ref
from outplay.engine.remote import ActorHandle, remote
from outplay.errors import (
    ActorDiedError,
    ConfigError,
    LearnerDiedError,
    ObjectLostError,
    OutplayError,
    ResourceError,
    TaskError,
)
from outplay.learning.communicator import DIED, Address, Communicator
from outplay.learning.learner import Learner
from outplay.machine import visible_gpus
from outplay.policies import PolicySpec

log = logging.getLogger("outplay")

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class MirrorSpec:
    """What a Mirror is made of."""

    learner: type[Learner[Any]]
    policy: PolicySpec
    config: AlgorithmConfig
    frame_stack: int


@dataclass(frozen=True)
class MirroredState:
    """The state of the first learner that the others start from."""

    weights: Tensor
    exploration: dict[str, float]
    state: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, learner: Learner[Any]) -> MirroredState:
        state, tensors = learner.mirrored()
        copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        return cls(learner.policy.flat.detach().cpu().clone(), dict(learner.policy.exploration), state, copies)

    @torch.no_grad()
    def load_into(self, learner: Learner[Any]) -> None:
        learner.policy.flat.copy_(self.weights)
        learner.policy.exploration = dict(self.exploration)
        learner.load_mirrored(self.state, {name: tensor.clone() for name, tensor in self.tensors.items()})


def checksum(learner: Learner[Any]) -> int:
    """A checksum of all weights that a learner trains."""
    found = 0
    for flat in (learner.policy.flat, *learner.networks.values()):
        found = zlib.crc32(flat.detach().cpu().numpy().data, found)
    return found


class Mirror:
    """A learner beside the first one. An actor; with the `inline` engine, in a thread of the main process."""

    def __init__(self, rank: int, gpu: str | None) -> None:
        """`gpu`: the name of the GPU for CUDA_VISIBLE_DEVICES; None: none, or the one that the engine assigned."""
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        self.rank = rank
        self.communicator: Communicator | None = None

    def make(self, spec: MirrorSpec) -> int:
        """Make the learner. Returns the id of the process.

        This is not done in `__init__`: a spec may import modules of the user, and CUDA takes the visible GPUs from the
        environment once, for example when such a module calls `torch.cuda.is_available()`.
        """
        assert isinstance(spec.config.learner_threads, int)
        torch.set_num_threads(spec.config.learner_threads)
        policy = spec.policy.make().to("cuda" if spec.config.num_gpus else "cpu")
        self.learner = spec.learner(policy, spec.config, spec.frame_stack)
        return os.getpid()

    def join(self, address: Address) -> None:
        """Connect with the other learners."""
        size = self.learner.config.num_learners
        host = LOCAL if address.path is not None else _address_towards(address.host)
        self.communicator = _connected(self.learner, address.store(size), host, self.rank)

    def call(self, state: MirroredState | None, method: str, arguments: tuple[Any, ...]) -> int:
        """Load `state`, unless it is None; then call a method of the learner. Returns the checksum of the weights."""
        assert self.communicator is not None
        if state is not None:
            state.load_into(self.learner)
        with self.communicator.active():
            getattr(self.learner, method)(*arguments)
        return checksum(self.learner)


def _connected(learner: Learner[Any], store: Store, host: str, rank: int, check: Any = None) -> Communicator:
    """Make the Communicator of a learner. Returns when all learners have connected."""
    found = Communicator(store, host, rank, learner.config.num_learners, check)
    if learner.device.type == "cuda" and not found.use_gpu(store, _gpu_identity()) and rank == 0:
        log.warning("learners share a GPU: gradients are summed on the CPU (gloo), not by NCCL")
    learner.optimizer.communicator = found
    return found


def _gpu_identity() -> int:
    """A number that names the present GPU among those of all machines."""
    name = f"{socket.gethostname()} {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    return uuid.uuid5(uuid.NAMESPACE_DNS, name).int >> 66


def _address_towards(host: str) -> str:
    """The address of this machine that `host` can connect to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return str(probe.getsockname()[0])


LEARNERS_PER_CPU = 4  # at most; more than one is slower, but useful for tests


class _Actors:
    """Mirrors as actors of the engine. `begin` starts a call on each, `end` waits, `check` raises if one has failed."""

    def __init__(self, spec: MirrorSpec) -> None:
        self.engine = engine.engine()
        check_number(spec.config.num_learners)
        each = _gpus_each(spec.config)
        on_ray = self.engine.name == "ray"
        ranks = range(1, spec.config.num_learners)
        gpus = [None if on_ray or not each else _gpu_of(spec.config, rank) for rank in ranks]
        made = remote(Mirror).options(num_gpus=each if on_ray else 0)
        self.actors: list[ActorHandle] = [made.remote(rank, gpu) for rank, gpu in zip(ranks, gpus, strict=True)]

    def begin(self, method: str, *arguments: Any) -> list[Any]:
        stored = [engine.put(argument) if argument is not None else None for argument in arguments]
        return [getattr(actor, method).remote(*stored) for actor in self.actors]

    def check(self, calls: list[Ref]) -> None:
        ready, _ = engine.wait(calls, num_returns=len(calls), timeout=0)
        self.end(ready)

    def end(self, calls: list[Ref]) -> list[Any]:
        results = []
        for call in calls:
            try:
                results.append(engine.get(call))
            except (ActorDiedError, ObjectLostError) as error:
                if isinstance(error.__cause__, OutplayError):
                    raise error.__cause__ from error
                raise LearnerDiedError(DIED) from error
            except TaskError as error:
                raise (error.cause if isinstance(error.cause, OutplayError) else error) from error
        return results

    def stop(self, first: Communicator | None) -> None:
        if engine.is_initialized() and engine.engine() is self.engine:
            for actor in self.actors:
                engine.kill(actor)
        if first is not None:
            first.close()


class _Threads:
    """Mirrors in threads of the main process, for the `inline` engine: its actors cannot run at the same time."""

    def __init__(self, spec: MirrorSpec) -> None:
        self.engine = engine.engine()
        check_number(spec.config.num_learners)
        ranks = range(1, spec.config.num_learners)
        self._pools = [ThreadPoolExecutor(1, f"learner-{rank}") for rank in ranks]
        each = bool(_gpus_each(spec.config))
        self._mirrors = [Mirror(rank, None) for rank in ranks]
        if each:  # the current device is one of the thread
            for pool, rank in zip(self._pools, ranks, strict=True):
                gpu = visible_gpus().index(_gpu_of(spec.config, rank))
                pool.submit(torch.cuda.set_device, gpu).result()

    def begin(self, method: str, *arguments: Any) -> list[Any]:
        pairs = zip(self._pools, self._mirrors, strict=True)
        return [pool.submit(getattr(mirror, method), *arguments) for pool, mirror in pairs]

    def check(self, calls: list[Future[Any]]) -> None:
        self.end([call for call in calls if call.done()])

    def end(self, calls: list[Future[Any]]) -> list[Any]:
        wait_for_futures(calls)
        return [call.result() for call in calls]

    def stop(self, first: Communicator | None) -> None:
        communicators = [found for found in (first, *(mirror.communicator for mirror in self._mirrors)) if found]
        for communicator in sorted(communicators, key=lambda one: one.is_waiting):  # those that others wait for, first
            communicator.close()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)


class Mirrors:
    """The other learners of `first`, which start on first use, and again after they were stopped.

    >>> learner.mirrors = Mirrors(learner, policy_spec)
    >>> metrics = learner.on_all("update", batch, timesteps, iteration)
    """

    def __init__(self, first: Learner[Any], policy: PolicySpec) -> None:
        self._first = first
        self._spec = MirrorSpec(type(first), policy, first.config, first.frame_stack)
        self._handles: _Actors | _Threads | None = None
        self._calls: list[Any] = []
        self._folder: Path | None = None
        self._store: Store | None = None
        self._known: tuple[int, int] | None = None  # (loads, checksum) of the first learner that the others have
        self.process_ids: list[int] = []  # of the others
        self.starts = 0  # how often they were started

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method on all learners at the same time. Returns the result of the first one."""
        first = self._first
        try:
            if self._handles is None or self._handles.engine is not engine.engine():
                self.stop()
                self._start()
            assert self._handles is not None
            assert first.optimizer.communicator is not None
            state = None if self._known == self._present() else MirroredState.of(first)
            self._calls = self._handles.begin("call", state, method, arguments)
            with first.optimizer.communicator.active():
                result = getattr(first, method)(*arguments)
            checksums = self._handles.end(self._calls)
        except BaseException:
            self.stop()  # the others may be anywhere in their call
            raise
        self._calls = []
        self._known = self._present()
        if any(found != self._known[1] for found in checksums):
            log.warning("a learner has other weights than the first (another kind of CPU or GPU?); they are replaced")
            self._known = None
        return result

    def _present(self) -> tuple[int, int]:
        return self._first.loads, checksum(self._first)

    def _start(self) -> None:
        """Start the other learners and connect with them."""
        first = self._first
        handles = self._handles = (_Threads if engine.engine().name == "inline" else _Actors)(self._spec)
        self.process_ids = handles.end(handles.begin("make", self._spec))
        address = self._address()
        joining = handles.begin("join", address)
        host = LOCAL if address.path is not None else address.host
        store = self._store or address.store(first.config.num_learners)
        _connected(first, store, host, 0, check=lambda: handles.check(self._calls))
        handles.end(joining)
        self._known = None
        self.starts += 1

    def _address(self) -> Address:
        """Where the learners meet: a file in a folder of this user, or on a cluster a port of this machine."""
        here = os.uname().nodename
        others = [node for node in engine.nodes() if node["Alive"] and node["NodeManagerHostname"] != here]
        if not others:
            self._folder = Path(tempfile.mkdtemp(prefix="outplay-learners-"))
            return Address(LOCAL, self._folder / "store")
        host = _address_towards(others[0]["NodeManagerAddress"])
        size = self._first.config.num_learners
        self._store = store = TCPStore(host, 0, size, is_master=True, wait_for_workers=False)
        return Address(host, port=store.port)

    def stop(self) -> None:
        """Stop the other learners. The next call starts new ones."""
        handles, self._handles, self._calls, self._known = self._handles, None, [], None
        communicator, self._first.optimizer.communicator = self._first.optimizer.communicator, None
        folder, self._folder, self._store = self._folder, None, None
        if handles is not None:
            handles.stop(communicator)
        if folder is not None:
            shutil.rmtree(folder)


def check_number(num_learners: int) -> None:
    """Raise ResourceError if there are far more learners than CPUs of the engine."""
    cpus = engine.cluster_resources().get("CPU", 1.0)
    if num_learners > (most := max(1, int(LEARNERS_PER_CPU * cpus))):
        raise ResourceError(
            f"num_learners is {num_learners}, but the engine has {cpus:g} CPUs, which is enough for at most {most} "
            f"learners ({LEARNERS_PER_CPU} per CPU); set num_learners to at most {most}"
        )


def _gpus_each(config: AlgorithmConfig) -> float:
    each = config.num_gpus_per_learner
    return float(config.num_gpus) if each is None else each


def _gpu_of(config: AlgorithmConfig, rank: int) -> str:
    """The GPU of a learner on this machine, for CUDA_VISIBLE_DEVICES. The first learner has the first one."""
    each, gpus = _gpus_each(config), visible_gpus()
    needed = math.ceil(config.num_learners * each)
    if len(gpus) < needed:
        name = "num_gpus" if config.num_gpus_per_learner is None else "num_gpus_per_learner"
        share = math.floor(1000 * len(gpus) / config.num_learners) / 1000  # rounded up, it would be too much again
        raise ConfigError(
            f"num_learners is {config.num_learners} and {name} is {each:g}, so {needed} GPUs are needed, but this "
            f"machine has {len(gpus)}; set num_gpus_per_learner to at most {share:g}, or use fewer learners"
        )
    return gpus[int(rank * each)]
