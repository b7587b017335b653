"""Trial: one configuration of a study, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outplay.tune.spaces import Values

Metrics = dict[str, Any]  # one result of a trial


class Status(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    @property
    def is_finished(self) -> bool:
        return self in (Status.TERMINATED, Status.ERROR)


@dataclass
class Ancestor:
    """A part of a trial's history under population-based training: it began as a copy of another trial."""

    trial_id: str  # the trial that was copied
    iteration: int  # of the copied checkpoint
    checkpoint: str  # its path, relative to the study's folder
    values: Values  # from here on
    generation: int | None = None  # len(lineage) of the copied trial at that time; None if it is not known


@dataclass
class Trial:
    """A configuration, its state and its newest result."""

    id: str
    index: int
    values: Values  # of the variables
    config: dict[str, Any]  # with all other settings
    status: Status = Status.PENDING
    last_result: Metrics = field(default_factory=dict)
    checkpoints: list[tuple[int, str]] = field(default_factory=list)  # (iteration, path in the study's folder)
    seed_checkpoints: dict[int, list[str]] = field(default_factory=dict)  # by iteration: of all seeds
    reason: str = ""  # why it ended
    before_copy: tuple[Values, Metrics] | None = None  # values and result, if it became a copy and has no result since
    lineage: list[Ancestor] = field(default_factory=list)
    error: str = ""  # the traceback, if it failed
    failures: int = 0
    folder: str = ""  # in the study's folder; empty if it has none
    seconds: float = 0.0  # of its own time
    initial_values: Values = field(default_factory=dict)  # before schedulers changed them; by default those it gets

    def __post_init__(self) -> None:
        self.initial_values = dict(self.initial_values or self.values)

    @property
    def iteration(self) -> int:
        """The number of results."""
        return int(self.last_result.get("training_iteration", 0))

    @property
    def checkpoint(self) -> str | None:
        return self.checkpoints[-1][1] if self.checkpoints else None

    @property
    def checkpoint_iteration(self) -> int:
        return self.checkpoints[-1][0] if self.checkpoints else 0
