"""Executions: a trial that runs in a worker process. A function, a class, or an algorithm's Run."""

from __future__ import annotations

import re
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.engine.api import join_call
from outplay.errors import ConfigError, OutplayError
from outplay.files import remove
from outplay.tune import session
from outplay.tune.checkpoint import Checkpoint, keep, name_of, new_folder
from outplay.tune.trainables import experiment_of

if TYPE_CHECKING:
    from outplay.runs.run import Run

Metrics = dict[str, Any]

_OWN_FRAMES = re.compile(r"/outplay/(tune|train)/[^/]+$")
_PER_EPISODE = ("episode_returns", "episode_lengths")  # lists; they are in the run's metrics.jsonl


@dataclass
class Job:
    """What a worker needs to start a trial, or to continue it."""

    trial_id: str
    study: str
    config: dict[str, Any]
    folder: str  # of the trial's own; it need not exist yet
    seed: int
    iteration: int = 0  # of the checkpoint
    checkpoint: str | None = None
    checkpoint_freq: int = 0
    checkpoint_at_end: bool = False
    resources: dict[str, float] = field(default_factory=dict)
    stop: dict[str, float] = field(default_factory=dict)  # for an algorithm: its stop conditions
    seconds: float = 0.0  # that the trial has run already
    has_seeds: bool = False  # whether `seed` is one of several, so that it counts more than one in the config


@dataclass
class Event:
    """What a trial did: it reported a result, came to its end, or failed."""

    kind: str  # "result", "end", "error", or "lost" if its process has died
    metrics: Metrics | None = None
    checkpoint: str | None = None
    error: str = ""
    folder: str = ""  # where the trial's files are
    is_last: bool = False  # a result after which the trial has come to its end

    @property
    def has_ended(self) -> bool:
        return self.kind != "result" or self.is_last


class StopTrial(BaseException):
    """Raised in `tune.report()` if the trial is stopped. No Exception: `except Exception` must not catch it."""


class WorkersLostError(OutplayError):
    """Processes that a trial has started have died. The trial continues from its newest checkpoint."""


class WorkersFailedError(OutplayError):
    """Code in processes that a trial has started has raised. The message has its traceback."""


class Execution(ABC):
    """A trial that runs in this process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.iteration = job.iteration
        self.seconds = job.seconds
        self._started = time.perf_counter()

    @abstractmethod
    def advance(self) -> Event:
        """Run until the next result, or the end."""

    @abstractmethod
    def save(self) -> str | None:
        """Write a checkpoint of the newest result. Returns its path; None if this trial cannot be saved now."""

    @abstractmethod
    def stop(self) -> None:
        """End the trial."""

    def step(self) -> Event:
        """As `advance`, with errors of the trial as an Event, and the metrics that all results have."""
        started = time.perf_counter()
        try:
            event = self.advance()
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            return failed(error)
        if event.metrics is not None and event.kind == "result":
            spent = time.perf_counter() - started
            self.seconds += spent
            event.metrics.setdefault("training_iteration", self.iteration)
            event.metrics.setdefault("time_this_iter_s", spent)
            event.metrics.setdefault("time_total_s", self.seconds)
        return event


def failed(error: BaseException) -> Event:
    if isinstance(error, WorkersLostError | WorkersFailedError):
        return Event("lost" if isinstance(error, WorkersLostError) else "error", error=str(error))
    trace = error.__traceback__
    while trace is not None and _OWN_FRAMES.search(trace.tb_frame.f_code.co_filename):  # the user's own frames
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    if isinstance(error, OutplayError) and trace is None:
        text = f"{type(error).__name__}: {error}"
    return Event("error", error=text)


def checked_metrics(given: Any, source: str) -> Metrics:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source} must return a dict of metrics, not {given!r}")
    return {str(key): value for key, value in given.items()}


class FunctionExecution(Execution):
    """A function of the config. It runs in a thread of its own, and waits in `report` until its result is handled."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], job: Job) -> None:
        super().__init__(job)
        self._function = function
        self._event: Event | None = None
        self._stopping = False
        self._reporting = threading.Lock()  # one report at a time
        self._may_run, self._has_event = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"trial {job.trial_id}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        session.enter(self)
        join_call()
        self._may_run.acquire()
        try:
            if self._stopping:
                return
            returned = self._function(self.job.config)
            self._event = self._returned(returned)
        except StopTrial:
            self._event = Event("end")
        except BaseException as error:  # noqa: BLE001 - SystemExit too: it must not end the thread in silence
            self._event = failed(error)
        finally:
            session.leave(self)
            self._has_event.release()

    def _returned(self, value: Any) -> Event:
        """What a function returns is its last result, if it is a dict or a number."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = {"_metric": float(value)}
        if not isinstance(value, Mapping):
            return Event("end")
        self.iteration += 1
        return Event("result", {**checked_metrics(value, "the function"), "done": True}, is_last=True)

    def report(self, metrics: Metrics, checkpoint: Any) -> None:
        """Called by the function, in its thread or in one that it has started."""
        with self._reporting:
            if self._stopping:
                raise StopTrial
            self.iteration += 1
            kept = None if checkpoint is None else self._kept(checkpoint)
            self._event = Event("result", metrics, kept)
            self._has_event.release()
            self._may_run.acquire()
            if self._stopping:
                raise StopTrial

    def _kept(self, checkpoint: Any) -> str:
        """Keep a checkpoint of the present iteration. Returns its path."""
        return str(keep(checkpoint, Path(self.job.folder), self.iteration))

    @property
    def checkpoint(self) -> Checkpoint | None:
        return None if self.job.checkpoint is None else Checkpoint(self.job.checkpoint)

    @property
    def context(self) -> session.Context:
        job = self.job
        return session.Context(job.trial_id, job.study, Path(job.folder), job.seed, job.resources)

    def advance(self) -> Event:
        self._event = None
        self._may_run.release()
        self._has_event.acquire()
        event: Event | None = self._event  # set by the other thread
        assert event is not None
        return event

    def save(self) -> None:
        """Functions are saved when they report a checkpoint."""

    def stop(self) -> None:
        if self._thread.is_alive():
            self._stopping = True
            self._may_run.release()
            self._thread.join()


class ClassExecution(Execution):
    """An object with `step()`, and for checkpoints `save_checkpoint(folder)` and `load_checkpoint(folder)`."""

    def __init__(self, cls: type[Any], job: Job) -> None:
        super().__init__(job)
        if hasattr(cls, "setup"):
            self._object = cls()
            self._object.setup(job.config)
        else:
            self._object = cls(job.config)
        if job.checkpoint is not None:
            self._method("load_checkpoint", "restore")(job.checkpoint)

    def _method(self, *names: str) -> Callable[[Any], Any]:
        for name in names:
            if callable(method := getattr(self._object, name, None)):
                return method  # type: ignore[no-any-return]
        raise ConfigError(f"{type(self._object).__name__} has no method {' or '.join(names)}(folder)")

    def advance(self) -> Event:
        metrics = checked_metrics(self._object.step(), f"{type(self._object).__name__}.step()")
        self.iteration += 1
        done = bool(metrics.get("done", False))
        every = self.job.checkpoint_freq
        is_due = (every and self.iteration % every == 0) or (done and self.job.checkpoint_at_end)
        checkpoint = self.save() if is_due else None
        return Event("result", metrics, checkpoint, folder=self.job.folder if checkpoint else "")

    def save(self) -> str | None:
        save = self._method("save_checkpoint", "save")
        with new_folder(Path(self.job.folder), self.iteration) as folder:
            save(str(folder))
        return str(Path(self.job.folder) / name_of(self.iteration))

    def stop(self) -> None:
        for name in ("cleanup", "stop", "close"):
            if callable(method := getattr(self._object, name, None)):
                method()
                return


class RunExecution(Execution):
    """An algorithm: its trial is an ordinary Run, whose folder is in the study's folder."""

    def __init__(self, algorithm: str, job: Job) -> None:
        super().__init__(job)
        self._has_ended = False
        experiment = experiment_of(algorithm, job.config, job.stop)
        config = {**experiment.get("config", {})}
        config["seed"] = job.seed if job.has_seeds else config.get("seed", job.seed)
        config.setdefault("num_workers", 0)  # the trials themselves run in parallel; results are the same
        self._run = self._opened({**experiment, "name": job.study, "config": config}, Path(job.folder))
        if job.checkpoint is not None:
            self._run.restore(job.checkpoint)

    def _opened(self, experiment: dict[str, Any], folder: Path) -> Run:
        """The trial's run: a new one, or that of an earlier start of this trial."""
        from outplay.runs.experiments import experiment as checked
        from outplay.runs.run import Run

        is_run = (folder / "config.yaml").exists()
        if is_run and self.job.checkpoint is not None:
            return Run.resume(folder, lambda _: checked(experiment, "the trial's config"), trust=True)
        remove(folder)  # it was lost before its first checkpoint
        return Run.create(experiment, folder=folder)

    def advance(self) -> Event:
        folder = str(self._run.folder.path)
        metrics: Metrics = {**self._run.step()}
        for name in _PER_EPISODE:
            metrics.pop(name, None)
        self.iteration = int(metrics["training_iteration"])
        if reason := self._run.reason_to_stop:
            metrics["done"] = True
            self._run.end(reason)
            self._has_ended = True
        return Event("result", metrics, self._saved(), folder=folder)

    def _saved(self) -> str | None:
        path = self._run.checkpoint
        return None if path is None else str(path)

    def save(self) -> str:
        return str(self._run.save())

    def stop(self) -> None:
        if not self._has_ended:
            self._run.pause()


def execution(trainable: Any, job: Job) -> Execution:
    """Start or continue a trial. `trainable` is a function, a class, or the name of an algorithm."""
    if isinstance(trainable, str):
        return RunExecution(trainable, job)
    if isinstance(trainable, type):
        return ClassExecution(trainable, job)
    return FunctionExecution(trainable, job)
