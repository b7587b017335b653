"""Timers, running statistics, episode metrics."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NotRequired, TypedDict

import numpy as np


class EpisodeMetrics(TypedDict):
    """Metrics over the last `metrics_num_episodes` episodes; NaN before the first one ends."""

    episodes_total: int
    episode_return_mean: float
    episode_return_min: float
    episode_return_max: float
    episode_len_mean: float
    episode_return_running: float  # exponential moving average
    info: NotRequired[dict[str, float]]  # with `info_metrics`: KEY_mean over the same episodes


class Result(EpisodeMetrics):
    """The result of one iteration: a dict with these keys. Callbacks may add metrics of their own.

    >>> result: outplay.Result = trainer.train()
    >>> result["episode_return_mean"]
    22.7
    """

    training_iteration: int
    timesteps_total: int
    episodes_this_iter: int
    episode_returns: list[float]  # of the episodes that ended in this iteration
    episode_lengths: list[int]
    time_this_iter_s: float
    time_total_s: float
    env_steps_per_s: float
    learner: dict[str, float]
    stages_s: dict[str, float]
    curriculum_level: NotRequired[int]  # of this iteration, with a curriculum: the first level is 0
    evaluation: NotRequired[dict[str, Any]]  # if this iteration was evaluated


class Timers:
    """Accumulates the seconds of named stages.

    >>> timers = Timers()
    >>> with timers("learn"):
    ...     pass
    >>> list(timers.take())
    ['learn']
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.stage = ""  # the current one

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before
            self.add(stage, time.perf_counter() - started)

    def add(self, stage: str, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Return the seconds per stage since the last call, and reset."""
        taken, self._seconds = self._seconds, {}
        return taken


class EpisodeWindow:
    """Returns, lengths and `info_metrics` of the last episodes, and metrics over them."""

    def __init__(self, size: int, info_metrics: Sequence[str] = ()) -> None:
        self.infos: dict[str, deque[float]] = {key: deque(maxlen=size) for key in info_metrics}  # NaN: no value
        self._missing_told: set[str] = set()
        self.returns: deque[float] = deque(maxlen=size)
        self.lengths: deque[int] = deque(maxlen=size)
        self.running: float | None = None  # exponential moving average of returns
        self.total = 0

    def add(self, returns: Iterable[float], lengths: Iterable[int], infos: np.ndarray | None = None) -> None:
        for value, length in zip(returns, lengths, strict=True):
            self.returns.append(float(value))
            self.lengths.append(int(length))
            self.running = running_mean(self.running, float(value))
            self.total += 1
        for column, values in enumerate(self.infos.values()):
            values.extend([] if infos is None else infos[:, column].tolist())

    def clear(self) -> None:
        """Start a new window. The total stays."""
        self.returns.clear()
        self.lengths.clear()
        self.running = None
        for values in self.infos.values():
            values.clear()

    def metrics(self) -> EpisodeMetrics:
        metrics = episode_metrics(self.returns, self.lengths)
        result: EpisodeMetrics = {
            "episodes_total": self.total,
            "episode_return_mean": metrics["episode_return_mean"],
            "episode_return_min": metrics["episode_return_min"],
            "episode_return_max": metrics["episode_return_max"],
            "episode_len_mean": metrics["episode_len_mean"],
            "episode_return_running": math.nan if self.running is None else self.running,
        }
        if self.infos:
            result["info"] = info_means(self.infos)
        return result

    def missing_infos(self) -> list[str]:
        """The keys of `info_metrics` that none of the last episodes had; each is returned once."""
        missing = [
            key
            for key, values in self.infos.items()
            if values and all(map(math.isnan, values)) and key not in self._missing_told
        ]
        self._missing_told.update(missing)
        return missing

    def state(self) -> dict[str, Any]:
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "running": self.running,
            "total": self.total,
            **({"infos": {key: _without_nan(values) for key, values in self.infos.items()}} if self.infos else {}),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.clear()
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.running = state.get("running")  # not in checkpoints of 0.2.0
        self.total = int(state["total"])
        for key, values in self.infos.items():  # a resumed run may have other keys
            saved = (state.get("infos") or {}).get(key, [])
            values.clear()
            values.extend(math.nan if value is None else value for value in saved)


def info_means(infos: Mapping[str, Iterable[float]]) -> dict[str, float]:
    """KEY_mean of the values of each key. NaN is no value; the mean of none is NaN."""
    found = {key: [value for value in values if not math.isnan(value)] for key, values in infos.items()}
    return {f"{key}_mean": math.fsum(values) / len(values) if values else math.nan for key, values in found.items()}


def _without_nan(values: Iterable[float]) -> list[float | None]:
    """Values for JSON, which has no NaN."""
    return [None if math.isnan(value) else value for value in values]


def running_mean(before: float | None, value: float) -> float:
    """Exponential moving average with decay 0.99, updated with `value`; `before` is None for the first value."""
    return value if before is None else 0.99 * before + 0.01 * value


def episode_metrics(returns: Iterable[float], lengths: Iterable[int]) -> dict[str, float]:
    """Mean, minimum and maximum return, mean length; NaN without episodes."""
    values, steps = list(returns), list(lengths)
    if not values:
        return dict.fromkeys(
            ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean"), math.nan
        )
    return {
        "episode_return_mean": math.fsum(values) / len(values),
        "episode_return_min": min(values),
        "episode_return_max": max(values),
        "episode_len_mean": sum(steps) / len(steps),
    }


class RunningMoments:
    """Running mean and variance over batches (Chan et al. 1979), in double precision."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.variance = np.ones(shape)

    def update(self, rows: np.ndarray) -> None:
        if len(rows):
            rows = rows.astype(np.float64)
            self.merge(len(rows), rows.mean(0), rows.var(0))

    def load(self, count: float, mean: np.ndarray, variance: np.ndarray) -> None:
        if mean.shape != self.mean.shape or variance.shape != self.mean.shape:
            raise ValueError(f"moments have shapes {mean.shape} and {variance.shape}, not {self.mean.shape}")
        self.count, self.mean, self.variance = count, mean, variance

    def merge(self, count: int, mean: np.ndarray, variance: np.ndarray) -> None:
        """Add `count` rows with this mean and variance."""
        total = self.count + count
        delta = mean - self.mean
        squares = (self.variance * self.count if self.count else 0.0) + variance * count
        self.variance = (squares + delta**2 * self.count * count / total) / total
        self.mean = self.mean + delta * count / total
        self.count = total


def pretty_print(result: Mapping[str, Any]) -> str:
    """Format a result or a configuration as text; nested dicts are indented.

    >>> print(pretty_print({"timesteps_total": 2048, "learner": {"kl": 0.01234567}}))
    learner:
      kl: 0.01235
    timesteps_total: 2048
    """
    return "\n".join(_lines(result, ""))


def _lines(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key in sorted(value, key=str):
        item = value[key]
        if isinstance(item, dict) and item:
            yield f"{indent}{key}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, float):
            yield f"{indent}{key}: {item:.4g}" if abs(item) < 1e5 else f"{indent}{key}: {item:.0f}"
        else:
            yield f"{indent}{key}: {item}"
