"""The WorkerPool: RolloutWorkers in processes of their own, or one in the main process. Dead ones are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

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


class WorkerPool:
    """RolloutWorkers in processes of their own, or one in the program itself; who dies is replaced.

    `arguments(index)` is what worker `index` is made from, now: a replacement is made from what is true then. A worker
    that dies more than `max_restarts` times in a row, without an answer in between, ends the run.
    """

    def __init__(self, num_workers: int, arguments: Callable[[int], tuple[Any, ...]], max_restarts: int) -> None:
        self._arguments = arguments
        self._max_restarts = max_restarts
        self.replaced = 0
        self._deaths = [0] * num_workers  # of each, since it last answered
        self.generations = [0] * num_workers  # of each: how often it was replaced
        self._hint = ""  # why workers may die
        self.local = None if num_workers else RolloutWorker(count_cpus(), *arguments(0))
        self.remote = [self._start(index) for index in range(num_workers)]

    def _start(self, index: int) -> ActorHandle:
        spec, *more = self._arguments(index)
        if spec.env.step_timeout_s is not None:  # code in C that hangs says nothing before its process is ended
            self._hint = f"; environment {spec.env.name!r} may hang: env_step_timeout_s is {spec.env.step_timeout_s:g}"
        worker: ActorHandle = remote(RolloutWorker).remote(1, spec, *more)
        return worker

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """The same call on every worker; the results in order."""
        if self.local is not None:
            return [getattr(self.local, method)(*arguments)]
        return self.call_each(method, [arguments] * len(self.remote))

    def call_each(self, method: str, jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A call for each job, given out to workers in turn; the results in order."""
        if self.local is not None:
            return [getattr(self.local, method)(*job) for job in jobs]
        stored = {id(part): engine.put(part) for job in jobs for part in job if isinstance(part, Weights)}
        sent = [tuple(stored.get(id(part), part) for part in job) for job in jobs]
        places = [number % len(self.remote) for number in range(len(jobs))]
        calls: list[Any] = [self.begin(place, method, *job) for place, job in zip(places, sent, strict=True)]
        for number, place in enumerate(places):
            while True:
                if (result := self.end(place, calls[number])) is not None:
                    calls[number] = result
                    break
                for other in range(number, len(jobs)):  # all that it still had to do
                    if places[other] == place:
                        calls[other] = self.begin(place, method, *sent[other])
        return [value for (value,) in calls]

    def begin(self, place: int, method: str, *arguments: Any) -> Ref:
        """A call on one worker; a Ref to its result."""
        called: Ref = getattr(self.remote[place], method).remote(*arguments)
        return called

    def end(self, place: int, call: Ref) -> tuple[Any] | None:
        """The result of a call; None if the worker died or hung over it, and is replaced now."""
        try:
            result = engine.get(call)
        except (ActorDiedError, ObjectLostError, TaskError) as error:
            cause = _cause(error)
            if isinstance(cause, EnvTimeoutError):
                self._replace(place, cause)
                return None
            if isinstance(cause, OutplayError):
                raise cause from error
            if isinstance(error, TaskError):
                raise
            self._replace(place, error)
            return None
        self._deaths[place] = 0
        return (result,)

    def _replace(self, place: int, error: OutplayError) -> None:
        """A worker died, or hangs: start another one in its place, unless that was of no use before."""
        self._deaths[place] += 1
        deaths, hangs = self._deaths[place], isinstance(error, EnvTimeoutError)
        if deaths > self._max_restarts:
            times = f"{deaths} times in a row" if deaths > 1 else "once"
            limit = f"max_worker_restarts is {self._max_restarts}"
            if hangs:
                raise EnvTimeoutError(f"{error}, and so it was {times}, in new processes ({limit})") from error
            raise RunError(f"worker {place} died {times} ({limit}); last: {error}{self._hint}") from error
        if hangs:
            engine.kill(self.remote[place])
        reason = f"hangs ({error})" if hangs else "died"
        log.warning("worker %d %s and is replaced; its environments are built again", place, reason)
        self.replaced += 1
        self.generations[place] += 1
        self.remote[place] = self._start(place)

    def stop(self) -> None:
        if self.local is not None:
            try:
                self.local.close()
            except EnvTimeoutError as error:
                log.warning("%s", error)
        if engine.is_initialized():
            with suppress(EngineError):  # it is another one than theirs
                closing = [worker.close.remote() for worker in self.remote]
                engine.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
            for worker in self.remote:
                engine.kill(worker)
        self.remote = []


def _cause(error: BaseException) -> BaseException | None:
    """What went wrong in a worker, to be told as if it had happened here: a mistake of the user's stays one sentence.

    None if the worker itself is gone.
    """
    cause = error.__cause__
    while isinstance(cause, TaskError):
        cause = cause.__cause__
    return None if isinstance(cause, (ActorDiedError, ObjectLostError)) else cause
