"""The settings of a Tuner, with the names of Ray Tune's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outplay.errors import ConfigError
from outplay.tune.callbacks import Callback
from outplay.tune.schedulers import Scheduler
from outplay.tune.search import Searcher
from outplay.tune.spaces import Values


@dataclass
class TuneConfig:
    """What is searched, and how. `tune.run` explains each setting."""

    metric: str | Sequence[str] | None = None
    mode: str | Sequence[str] | None = None
    num_samples: int = 1
    search_alg: Searcher | None = None
    scheduler: Scheduler | None = None
    max_concurrent_trials: int | None = None
    time_budget_s: float | None = None
    points_to_evaluate: Sequence[Values] | None = None
    seeds: int = 1
    report_seeds: int = 0
    aggregate: str = "mean"
    seed: int = 0


@dataclass
class FailureConfig:
    """What happens when trials fail."""

    max_failures: int = 0
    fail_fast: bool = False


@dataclass
class CheckpointConfig:
    """When trials of a class are saved. An algorithm's trials have settings of their own, as all runs."""

    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = False


@dataclass
class RunConfig:
    """Where a study is stored, when its trials end, and who is told."""

    name: str | None = None
    storage_path: str | Path | None = None
    stop: Any = None
    callbacks: Sequence[Callback] = ()
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    verbose: int = 1

    def __post_init__(self) -> None:
        """The rest is checked by the Tuner, which knows the trials."""
        kinds = {"name": (str, type(None)), "failure_config": FailureConfig, "checkpoint_config": CheckpointConfig}
        for name, kind in {**kinds, "verbose": int}.items():
            if not isinstance(value := getattr(self, name), kind):  # type: ignore[arg-type]
                wanted = {"name": "a string", "verbose": "0 or 1"}.get(name, f"a {getattr(kind, '__name__', kind)}")
                raise ConfigError(f"{name} must be {wanted}, not {value!r}")
        if isinstance(self.callbacks, str | Callback) or not isinstance(self.callbacks, Iterable):
            raise ConfigError(f"callbacks must be a list of objects of tune.Callback, not {self.callbacks!r}")
