"""Callbacks: user code that a run calls while it trains."""

from __future__ import annotations

import numbers
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outplay import registry
from outplay.errors import CallbackError, CheckpointError, ConfigError, nearest, shortened
from outplay.imports import import_object
from outplay.metrics import Result

if TYPE_CHECKING:
    from outplay.runs.run import Run


@dataclass(frozen=True)
class Episode:
    """A finished training episode."""

    episode_return: float
    length: int  # steps


class Callback:
    """Base class of callbacks: override the methods that you need.

    >>> class Curve(Callback):
    ...     def on_train_start(self, run):
    ...         self.best = -math.inf
    ...
    ...     def on_result(self, run, result):
    ...         self.best = max(self.best, result["episode_return_max"])
    ...         result["best_return"] = self.best  # a metric of your own, in every sink
    >>> Run.create({"env": "CartPole-v1", "stop": {"timesteps_total": 10_000}}, callbacks=[Curve()]).train()
    """

    def on_train_start(self, run: Run) -> None:
        """Before the first iteration of this process; `run.algorithm.iteration` is more than 0 after a resume."""

    def on_episode_end(self, run: Run, episode: Episode) -> None:
        """After an iteration, for each episode that ended in it."""

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        """After each iteration. `result` is an `outplay.Result`; numbers added to it are recorded as metrics."""

    def on_evaluation(self, run: Run, evaluation: dict[str, Any]) -> None:
        """After each evaluation, before `on_result`. Numbers added to `evaluation` are recorded as metrics.

        Beside training, `evaluation["iteration"]` is the iteration of the weights; the last one is reported at the end.
        """

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After each checkpoint."""

    def on_worker_replaced(self, run: Run, worker: int) -> None:
        """After an iteration in which this worker crashed and was replaced."""

    def on_train_end(self, run: Run, reason: str) -> None:
        """When training ends. `reason` is the stop condition, the request to stop, or the error message."""


_METHODS = frozenset(name for name in vars(Callback) if name.startswith("on_"))


def is_import_path(name: str) -> bool:
    """Whether this names a callback to import (module:Class or module.Class), not one that a package registers."""
    return ":" in name or ("." in name and name not in registry.callbacks)


def find_callback(name: str, folders: Iterable[Path] = ()) -> type[Callback]:
    """The callback class for an import path (`module:Class`) or for a name that an installed package registers.

    The module of an import path is also searched in `folders`.
    """
    found = (
        import_object("callbacks", name, folders, "class") if is_import_path(name) else registry.callbacks.load(name)
    )
    if not (isinstance(found, type) and issubclass(found, Callback)):
        raise ConfigError(f"callbacks: {name!r} is not a subclass of outplay.Callback")
    return found


def make_callbacks(paths: Sequence[str], objects: Sequence[Any], folders: Iterable[Path]) -> list[Callback]:
    """The callbacks of a run: instances of the named classes, then the given objects."""
    folders = list(folders)
    instances: list[Callback] = []
    for path in paths:
        kind = find_callback(path, folders)
        try:
            instances.append(kind())
        except Exception as error:
            raise ConfigError(f"callback {path}: calling it without arguments raised {_summary(error)}") from error
    for callback in (*instances, *objects):
        _check(callback)
    return [*instances, *objects]


def _check(callback: Any) -> None:
    if not isinstance(callback, Callback):
        is_class = isinstance(callback, type) and issubclass(callback, Callback)
        hint = f"; pass an instance: {callback.__name__}()" if is_class else ""
        raise ConfigError(
            f"callbacks: expected an outplay.Callback or an import path (module:Class), not {callback!r}{hint}"
        )
    unknown = [name for name in dir(callback) if name.startswith("on_") and name not in _METHODS]
    if unknown:
        raise ConfigError(f"callback {name_of(callback)}: {unknown[0]} is never called{nearest(unknown[0], _METHODS)}")


def check_callback_trust(recorded: Sequence[str], given: Sequence[str], trust: bool, where: str) -> None:
    """Raise CheckpointError if a recorded import path is neither repeated nor trusted. Registered names are trusted."""
    for path in recorded:
        if is_import_path(path) and path not in given and not trust:
            raise CheckpointError(
                f"{where} names the callback {path!r}, which would be imported; if you trust it, repeat it with "
                f"--callback {path}, or add --trust"
            )


def name_of(callback: Callback) -> str:
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


class Callbacks:
    """Calls the callbacks of a run in order. An exception becomes a CallbackError that names the callback."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self._started: list[Callback] = []
        self._restarts: list[int] = []  # per worker, at the last call

    @contextmanager
    def also(self, callbacks: Sequence[Callback]) -> Iterator[None]:
        """Call these callbacks too within the block."""
        before, self._callbacks = self._callbacks, [*self._callbacks, *callbacks]
        try:
            yield
        finally:
            self._callbacks = before

    def start(self, run: Run) -> None:
        """Call on_train_start of the callbacks that have not started."""
        if not self._started:
            self._restarts = run.algorithm.worker_restarts
        new = [callback for callback in self._callbacks if not any(callback is one for one in self._started)]
        self._started += new
        self._call("on_train_start", run, of=new)

    def after_iteration(self, run: Run, result: Result) -> None:
        """Call the methods of an iteration, in this order: replaced workers, episodes, evaluation, result."""
        for worker in self._newly_replaced(run.algorithm.worker_restarts):
            self._call("on_worker_replaced", run, worker)
        for episode_return, length in zip(result["episode_returns"], result["episode_lengths"], strict=True):
            self._call("on_episode_end", run, Episode(episode_return, length))
        if "evaluation" in result:
            self.after_evaluation(run, result["evaluation"])
        self._call("on_result", run, cast("dict[str, Any]", result))  # with metrics of their own, it is any dict

    def after_evaluation(self, run: Run, evaluation: dict[str, Any]) -> None:
        self._call("on_evaluation", run, evaluation)

    def after_checkpoint(self, run: Run, path: Path) -> None:
        self._call("on_checkpoint", run, path)

    def end(self, run: Run, reason: str) -> None:
        started, self._started = self._started, []
        self._call("on_train_end", run, reason, of=started)

    def _newly_replaced(self, restarts: list[int]) -> list[int]:
        """The workers that were replaced since the last call; a worker is listed once per replacement."""
        before, self._restarts = self._restarts, restarts
        before = before + [0] * (len(restarts) - len(before))
        # A smaller count than before: all workers were stopped, and new ones started.
        new = [now - then if now >= then else now for now, then in zip(restarts, before, strict=False)]
        return [worker for worker, times in enumerate(new) for _ in range(times)]

    def _call(self, method: str, run: Run, *arguments: Any, of: Sequence[Callback] | None = None) -> None:
        metrics = next((argument for argument in arguments if isinstance(argument, dict)), {})
        for callback in self._callbacks if of is None else of:
            keys, lists = set(metrics), {id(value) for value in metrics.values() if isinstance(value, list)}
            where = f"callback {name_of(callback)}: {method}"
            try:
                getattr(callback, method)(run, *arguments)
            except Exception as error:
                raise CallbackError(f"{where} raised {_summary(error)}") from error
            if missing := sorted(keys - set(metrics)):
                raise CallbackError(f"{where} removed the metric {missing[0]!r}; a callback may only add metrics")
            _check_numbers(metrics, lists, where)


def _check_numbers(metrics: dict[str, Any], lists: set[int], where: str, prefix: str = "") -> None:
    """Raise CallbackError unless all metrics are numbers, or `lists` of the result. Converts numpy numbers."""
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise CallbackError(f"{where} added the metric {key!r}; names must be strings")
        if isinstance(value, dict):
            _check_numbers(value, lists, where, f"{prefix}{key}/")
        elif isinstance(value, numbers.Integral) and abs(int(value)) <= sys.float_info.max:
            metrics[key] = int(value)
        elif isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
            metrics[key] = float(value)
        elif id(value) not in lists:
            raise CallbackError(f"{where} added {prefix}{key}: a metric must be a number, not {shortened(repr(value))}")


def _summary(error: Exception) -> str:
    """An exception in one line, with the line of code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 200)
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"
