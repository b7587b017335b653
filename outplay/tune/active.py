"""Active: a trial that runs, with its seeds and their newest events."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Any

import outplay
from outplay.errors import ActorDiedError, ObjectLostError, TaskError, WorkerDiedError
from outplay.tune.executions import Event
from outplay.tune.folder import plain
from outplay.tune.resources import Slot
from outplay.tune.trial import Metrics, Trial

LOST = (ActorDiedError, WorkerDiedError, ObjectLostError)  # errors of a call whose process has died


@dataclass(eq=False)
class Replica:
    """One seed of a trial that runs."""

    number: int
    key: str
    slot: Slot
    ref: Any = None  # of the event that is awaited
    event: Event | None = None  # the newest one
    result: Metrics | None = None  # the newest one
    has_ended: bool = False

    def receive(self) -> Event:
        """Take the event that was awaited."""
        event = self.event = _event(self.ref)
        self.ref = None
        self.has_ended |= event.has_ended
        if event.kind == "result":
            self.result = _plain(event.metrics)
        return event


@dataclass(eq=False)
class Active:
    """A trial that runs. Its seeds wait for each other after every result."""

    trial: Trial
    replicas: list[Replica]
    slots: list[Slot]
    repeats_until: int  # results up to this iteration are known already: the trial was lost after them
    is_obsolete: bool = False  # it was stopped, paused or replaced by a copy while its event was awaited

    @property
    def is_awaited(self) -> bool:
        return any(replica.ref is not None for replica in self.replicas)


def _event(ref: Any) -> Event:
    try:
        event: Event = outplay.get(ref)
    except LOST as error:
        return Event("lost", error=str(error))
    except TaskError as error:
        return Event("error", error=str(error))
    return event


def _plain(value: Any) -> Any:
    """Metrics as the journal will have them: plain numbers and text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str | NoneType) else plain(value)
