"""The WorkerPool: RolloutWorkers in separate processes, or one in the main process. Crashed workers are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outplay.collect.health import WorkerHealth
from outplay.collect.worker import RolloutWorker
from outplay.engine import api as engine
from outplay.engine.base import Ref
from outplay.engine.remote import ActorHandle, remote
from outplay.errors import (
    ActorDiedError,
    EngineError,
    EnvTimeoutError,
    ObjectLostError,
    OutplayError,
    RunError,
    TaskError,
)
from outplay.machine import count_cpus
from outplay.policies import Weights

log = logging.getLogger("outplay")

_CLOSE_S = 2.0  # for workers to finish their call and close their environments


@dataclass
class Calls:
    """Calls of one method that workers are executing."""

    method: str
    jobs: list[tuple[Any, ...]]  # with Refs for Weights
    workers: list[int]
    refs: list[Ref]


class WorkerPool:
    """RolloutWorkers in separate processes, or one in the main process. A worker that crashes or hangs is replaced.

    `arguments(index)` returns the current constructor arguments of worker `index`; it is called again for each
    replacement. A worker that crashes more than `max_restarts` times in a row, without a result in between, ends the
    run.
    """

    def __init__(self, num_workers: int, arguments: Callable[[int], tuple[Any, ...]], max_restarts: int) -> None:
        self._arguments = arguments
        self._max_restarts = max_restarts
        self.replaced = 0
        self._crashes = [0] * num_workers  # per worker, since its last result
        self.generations = [0] * num_workers  # replacements per worker
        self.health = [WorkerHealth() for _ in range(num_workers)]
        self._hint = ""  # end of the error message: why workers may crash
        self.local = None if num_workers else RolloutWorker(count_cpus(), *arguments(0))
        self.remote = [self._start(index) for index in range(num_workers)]

    def _start(self, index: int) -> ActorHandle:
        spec, *more = self._arguments(index)
        if spec.env.step_timeout_s is not None:  # the watchdog kills a process that hangs in C without an error message
            self._hint = f"; environment {spec.env.name!r} may hang: env_step_timeout_s is {spec.env.step_timeout_s:g}"
        worker: ActorHandle = remote(RolloutWorker).remote(1, spec, *more)
        return worker

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every worker. Returns the results in order."""
        if self.local is not None:
            return [getattr(self.local, method)(*arguments)]
        return self.call_each(method, [arguments] * len(self.remote))

    def call_each(self, method: str, jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method once per job, distributed over the workers round-robin. Returns the results in order."""
        if self.local is not None:
            return [getattr(self.local, method)(*job) for job in jobs]
        return self.end_each(self.begin_each(method, jobs))

    def begin_each(self, method: str, jobs: Sequence[tuple[Any, ...]]) -> Calls:
        """Start one call per job on the worker processes, round-robin. `end_each` waits for them."""
        stored = {id(part): engine.put(part) for job in jobs for part in job if isinstance(part, Weights)}
        sent = [tuple(stored.get(id(part), part) for part in job) for job in jobs]
        workers = [number % len(self.remote) for number in range(len(jobs))]
        refs = [self.begin(worker, method, *job) for worker, job in zip(workers, sent, strict=True)]
        return Calls(method, sent, workers, refs)

    def end_each(self, calls: Calls) -> list[Any]:
        """Wait for calls. Returns the results in order. The jobs of a worker that crashes are repeated."""
        results: list[Any] = []
        for number, worker in enumerate(calls.workers):
            while (result := self.end(worker, calls.refs[number])) is None:
                for other in range(number, len(calls.jobs)):  # repeat all pending jobs of the replaced worker
                    if calls.workers[other] == worker:
                        calls.refs[other] = self.begin(worker, calls.method, *calls.jobs[other])
            results += result
        return results

    def begin(self, worker: int, method: str, *arguments: Any) -> Ref:
        """Start a call on one worker. Returns a Ref to its result."""
        called: Ref = getattr(self.remote[worker], method).remote(*arguments)
        return called

    def end(self, worker: int, call: Ref) -> tuple[Any] | None:
        """Wait for a call: (result,), or None if the worker crashed or hung. It is then already replaced."""
        try:
            result = engine.get(call)
        except (ActorDiedError, ObjectLostError, TaskError) as error:
            cause = _original_error(error)
            if isinstance(cause, EnvTimeoutError):
                self._replace(worker, cause)
                return None
            if isinstance(cause, OutplayError):
                raise cause from error
            if isinstance(error, TaskError):
                raise
            self._replace(worker, error)
            return None
        self._crashes[worker] = 0
        self.health[worker].answered()
        return (result,)

    def _replace(self, worker: int, error: OutplayError) -> None:
        """Replace a worker that crashed or hangs. Raises if it has crashed more than `max_restarts` times in a row."""
        self._crashes[worker] += 1
        crashes, hangs = self._crashes[worker], isinstance(error, EnvTimeoutError)
        if crashes > self._max_restarts:
            times = f"{crashes} times in a row" if crashes > 1 else "once"
            limit = f"max_worker_restarts is {self._max_restarts}"
            if hangs:
                raise EnvTimeoutError(f"{error}; this happened {times}, each in a new process ({limit})") from error
            raise RunError(f"worker {worker} died {times} ({limit}); last: {error}{self._hint}") from error
        if hangs:
            engine.kill(self.remote[worker])
        reason = f"hangs ({error})" if hangs else "died"
        log.warning("worker %d %s and is replaced; its environments are rebuilt", worker, reason)
        self.replaced += 1
        self.generations[worker] += 1
        self.health[worker].replaced(error)
        self.remote[worker] = self._start(worker)

    def stop(self) -> None:
        if self.local is not None:
            try:
                self.local.close()
            except EnvTimeoutError as error:
                log.warning("%s", error)
        if engine.is_initialized():
            with suppress(EngineError):  # the engine was restarted since the workers were created
                closing = [worker.close.remote() for worker in self.remote]
                engine.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
            for worker in self.remote:
                engine.kill(worker)
        self.remote = []


def _original_error(error: BaseException) -> BaseException | None:
    """The original exception in a worker, to raise it here without the remote traceback. None if the worker died."""
    cause = error.__cause__
    while isinstance(cause, TaskError):
        cause = cause.__cause__
    return None if isinstance(cause, (ActorDiedError, ObjectLostError)) else cause
