"""TrialWorker: the actor in which trials run, one after the other."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import outplay
from outplay import messages
from outplay.tune.executions import Event, Execution, Job, execution, failed

RELAY = "output.fifo"  # in the study's folder: where trials print, while a live table is shown

log = logging.getLogger("outplay")


@outplay.remote
class TrialWorker:
    """Runs trials of one trainable. With several seeds per trial, it may hold more than one at a time."""

    def __init__(self, trainable: tuple[Any, Any]) -> None:
        """`trainable`: what to run, and for an algorithm the environments that were registered by the user."""
        self._trainable, registrations = trainable
        if registrations is not None:
            from outplay.runs.loading import apply_registrations  # it needs torch

            apply_registrations(registrations)
        self._running: dict[str, Execution] = {}

    def start(self, key: str, job: Job) -> Event:
        """Start a trial, or continue it from its checkpoint. Returns its first event."""
        self.stop(key)
        messages.join(Path(job.folder).parent / RELAY)
        try:
            with self._settings_may_change():
                self._running[key] = execution(self._trainable, job)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            return failed(error)
        return self.step(key)

    def _settings_may_change(self) -> contextlib.AbstractContextManager[None]:
        """Population-based training continues a run with other settings: that needs no warning."""
        if not isinstance(self._trainable, str):
            return contextlib.nullcontext()
        from outplay.runs.loading import meant_changes  # it needs torch

        return meant_changes()

    def step(self, key: str) -> Event:
        """Run a trial until its next event."""
        event = self._running[key].step()
        if event.has_ended:
            ended = self._running.pop(key)
            if event.kind == "error":
                with contextlib.suppress(Exception):  # the first error is the one that matters to the user
                    ended.stop()
        return event

    def save(self, key: str) -> str | None:
        """Write a checkpoint. Returns its path; None if the trial cannot be saved now."""
        return self._running[key].save()

    def stop(self, key: str) -> None:
        """End a trial. If its own clean-up fails, that is logged: the trial's results are complete."""
        if key in self._running:
            try:
                self._running.pop(key).stop()
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises
                log.warning("trial %s could not be ended cleanly:\n%s", key, failed(error).error)
