"""Plan: how the trials of a study run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outplay.tune.callbacks import Callback
from outplay.tune.objective import Objective


@dataclass
class Plan:
    """How trials run."""

    name: str
    objective: Objective
    num_samples: int  # trials that the searcher suggests at most; -1: no limit
    seeds: list[int]
    report_seeds: list[int]
    total: int | None = None  # trials of the search; None if it is not known
    aggregate: str = "mean"
    max_failures: int = 0
    max_concurrent: int | None = None
    time_budget_s: float | None = None
    checkpoint_freq: int = 0
    checkpoint_at_end: bool = False
    fail_fast: bool = False
    is_run: bool = False  # trials are Runs
    stop: dict[str, float] = field(default_factory=dict)  # conditions that Runs know themselves
    resources: dict[str, float] = field(default_factory=dict)  # of one trial, for its own information
    callbacks: Sequence[Callback] = ()
