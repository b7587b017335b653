"""Callbacks: a user's own code, called while a run trains."""

from __future__ import annotations

import numbers
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay import registry
from outplay.errors import CallbackError, CheckpointError, ConfigError, nearest, shortened
from outplay.imports import import_for

if TYPE_CHECKING:
    from outplay.runs.run import Run


@dataclass(frozen=True)
class Episode:
    """An episode of training that has ended."""

    episode_return: float
    length: int  # steps


class Callback:
    """Base of callbacks: override the methods that you need.

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
        """For each episode that ended in an iteration, after the iteration."""

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        """After each iteration. Numbers that are put into `result` are written with it."""

    def on_evaluation(self, run: Run, evaluation: dict[str, Any]) -> None:
        """After each evaluation, before `on_result`. Numbers may be added here, too."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After each checkpoint."""

    def on_worker_replaced(self, run: Run, worker: int) -> None:
        """After an iteration in which this worker died and was replaced."""

    def on_train_end(self, run: Run, reason: str) -> None:
        """When training ends: by a stop condition, by a request, or by a failure, of which `reason` is the sentence."""


_METHODS = frozenset(name for name in vars(Callback) if name.startswith("on_"))


def find_callback(name: str, folders: Iterable[Path] = ()) -> type[Callback]:
    """The class that an import path (`module:Class`) names, or that an installed package registers by this name.

    The module of an import path is looked up in `folders`, too.
    """
    found = _import(name, folders) if ":" in name else registry.callbacks.load(name)
    if not (isinstance(found, type) and issubclass(found, Callback)):
        raise ConfigError(f"callbacks: {name!r} is no subclass of outplay.Callback")
    return found


def _import(path: str, folders: Iterable[Path]) -> Any:
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"callbacks: an import path (module:Class) is needed, not {shortened(path)!r}")
    found: Any = import_for(f"the callback {path!r}", module_name, folders, ConfigError)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(found).items() if isinstance(value, type)] or ["a class"]
            raise ConfigError(f"callbacks: module {module_name!r} has no {part!r}{nearest(part, known)}")
        found = getattr(found, part)
    return found


def make_callbacks(paths: Sequence[str], objects: Sequence[Any], folders: Iterable[Path]) -> list[Callback]:
    """A run's callbacks: those that are named, then the given objects."""
    folders = list(folders)
    made: list[Callback] = []
    for path in paths:
        kind = find_callback(path, folders)
        try:
            made.append(kind())
        except Exception as error:
            raise ConfigError(f"callback {path} could not be made, without arguments: {_told(error)}") from error
    for callback in (*made, *objects):
        _check(callback)
    return [*made, *objects]


def _check(callback: Any) -> None:
    if not isinstance(callback, Callback):
        is_class = isinstance(callback, type) and issubclass(callback, Callback)
        hint = f"; make one: {callback.__name__}()" if is_class else ""
        raise ConfigError(
            f"callbacks: an outplay.Callback or an import path (module:Class) is needed, not {callback!r}{hint}"
        )
    unknown = [name for name in dir(callback) if name.startswith("on_") and name not in _METHODS]
    if unknown:
        raise ConfigError(f"callback {name_of(callback)}: {unknown[0]} is never called{nearest(unknown[0], _METHODS)}")


def check_callback_trust(recorded: Sequence[str], given: Sequence[str], trust: bool, where: str) -> None:
    """Import paths on disk are not imported unless the user repeats or trusts them; installed packages are trusted."""
    for path in recorded:
        if ":" in path and path not in given and not trust:
            raise CheckpointError(
                f"{where} names the callback {path!r}, which would be imported; if you trust it, repeat it with "
                f"--callback {path}, or add --trust"
            )


def name_of(callback: Callback) -> str:
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


class Callbacks:
    """The callbacks of a run, called in order. What goes wrong becomes a CallbackError that names the callback."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self._has_started = False
        self._restarts: list[int] = []  # of each worker, so far

    def start(self, run: Run) -> None:
        if not self._has_started:
            self._has_started = True
            self._call("on_train_start", run)

    def after_iteration(self, run: Run, result: dict[str, Any]) -> None:
        """Workers that were replaced, episodes, an evaluation, the result: in this order."""
        for worker in self._newly_replaced(run.algorithm.worker_restarts):
            self._call("on_worker_replaced", run, worker)
        for episode_return, length in zip(result["episode_returns"], result["episode_lengths"], strict=True):
            self._call("on_episode_end", run, Episode(episode_return, length))
        if "evaluation" in result:
            self._call("on_evaluation", run, result["evaluation"])
        self._call("on_result", run, result)

    def after_checkpoint(self, run: Run, path: Path) -> None:
        self._call("on_checkpoint", run, path)

    def end(self, run: Run, reason: str) -> None:
        if self._has_started:
            self._has_started = False
            self._call("on_train_end", run, reason)

    def _newly_replaced(self, restarts: list[int]) -> list[int]:
        """The workers that were replaced since the last call; one that was replaced twice is there twice."""
        before, self._restarts = self._restarts, restarts
        before = before + [0] * (len(restarts) - len(before))
        # Fewer than before: all workers were ended in between, and others started.
        new = [now - then if now >= then else now for now, then in zip(restarts, before, strict=False)]
        return [worker for worker, times in enumerate(new) for _ in range(times)]

    def _call(self, method: str, run: Run, *arguments: Any) -> None:
        metrics = next((argument for argument in arguments if isinstance(argument, dict)), {})
        for callback in self._callbacks:
            keys, lists = set(metrics), {id(value) for value in metrics.values() if isinstance(value, list)}
            told = f"callback {name_of(callback)}: {method}"
            try:
                getattr(callback, method)(run, *arguments)
            except Exception as error:
                raise CallbackError(f"{told} raised {_told(error)}") from error
            if missing := sorted(keys - set(metrics)):
                raise CallbackError(f"{told} removed {missing[0]!r} from the metrics; a callback may only add some")
            _check_numbers(metrics, lists, told)


def _check_numbers(metrics: dict[str, Any], lists: set[int], told: str, prefix: str = "") -> None:
    """Sinks take numbers, and the `lists` that a result has by itself. Numpy's numbers become Python's."""
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise CallbackError(f"{told} added the metric {key!r}; names must be strings")
        if isinstance(value, dict):
            _check_numbers(value, lists, told, f"{prefix}{key}/")
        elif isinstance(value, numbers.Integral) and abs(int(value)) <= sys.float_info.max:
            metrics[key] = int(value)
        elif isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
            metrics[key] = float(value)
        elif id(value) not in lists:
            raise CallbackError(f"{told} added {prefix}{key}: a metric must be a number, not {shortened(repr(value))}")


def _told(error: Exception) -> str:
    """An exception in one line, with the line of code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 200)
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"
