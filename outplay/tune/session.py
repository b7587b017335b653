"""What a trial calls: `report`, `get_checkpoint`, `get_context`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outplay.errors import OutplayError
from outplay.tune.checkpoint import Checkpoint


class Session(Protocol):
    """The trial that runs in this thread."""

    iteration: int  # of the newest result

    def report(self, metrics: dict[str, Any], checkpoint: Any) -> None: ...
    @property
    def checkpoint(self) -> Checkpoint | None: ...
    @property
    def context(self) -> Context: ...


@dataclass(frozen=True)
class Context:
    """Facts about the trial that runs here."""

    trial_id: str
    study: str  # its name
    folder: Path  # of the trial; created when it is asked for
    seed: int
    resources: dict[str, float]

    def get_trial_id(self) -> str:
        return self.trial_id

    def get_trial_name(self) -> str:
        return f"{self.study}_{self.trial_id}"

    def get_experiment_name(self) -> str:
        return self.study

    def get_trial_dir(self) -> str:
        """A folder of this trial's own. It is not deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return str(self.folder)

    def get_trial_resources(self) -> dict[str, float]:
        return dict(self.resources)


_here = threading.local()
_running: list[Session] = []  # of this process


def enter(session: Session) -> None:
    """The trial runs in this thread."""
    _here.session = session
    _running.append(session)


def leave(session: Session) -> None:
    """The trial has ended."""
    _here.session = None
    _running.remove(session)


def current(call: str, place: str = "of a trial; call it in the function that tune.run() gets") -> Session:
    """The session of this thread. `call` and `place` are for the error message."""
    session: Session | None = getattr(_here, "session", None)
    if session is not None:
        return session
    if len(_running) == 1:  # a thread that the trial has started
        return _running[0]
    if _running:
        raise OutplayError(f"{call} was called in a thread of a trial with several seeds; call it in the main thread")
    raise OutplayError(f"{call} was called outside {place}")


def report(metrics: Mapping[str, Any] | None = None, *, checkpoint: Any = None, **named: Any) -> None:
    """Report a result of this trial: as a dict, by keywords, or both.

    >>> tune.report(score=0.5)
    >>> tune.report({"score": 0.5}, checkpoint=tune.Checkpoint.from_directory(folder))

    Returns when the trial may go on. If it is stopped, the function ends here: a `finally` block still runs.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise OutplayError(f"tune.report() takes a dict of metrics, or keywords: score=0.5; not {metrics!r}")
    session = current("tune.report()")
    session.report({**(metrics or {}), **named}, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this trial, if it continues from one."""
    return current("tune.get_checkpoint()").checkpoint


def get_context() -> Context:
    """Facts about this trial: its id, its folder, its seed."""
    return current("tune.get_context()").context
