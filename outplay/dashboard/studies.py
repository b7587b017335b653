"""Studies: what the list shows of one, its trials, and its figures."""

from __future__ import annotations

import logging
import math
import os
import stat
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from outplay.dashboard.entries import Signature, number_or_none, signature_of
from outplay.errors import OutplayError
from outplay.runs.lock import is_locked
from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.reporting.ranking import ranked, status_text
from outplay.tune.text import error_text, value_text, variable_text, variables_of
from outplay.tune.trial import Status, Trial

log = logging.getLogger("outplay")

_MOST_BYTES = 500_000_000  # of a journal
_READING_SHARE = 0.1  # of the time, for reading the journal of a study that runs


class StudyEntry:
    """One study of the list. `refresh` reads what has changed; `study` is the JSON object of the API."""

    def __init__(self, study_id: str, path: Path) -> None:
        self.id = study_id
        self.path = path
        self.version = 0
        self.study: dict[str, Any] = {}
        self.error: str | None = None
        self.analysis: ExperimentAnalysis | None = None
        self._signatures: tuple[Signature, ...] = ()
        self._is_due_at = 0.0
        self._figures: list[dict[str, str]] = []
        self._drawn: ExperimentAnalysis | None = None  # whose figures they are
        self._draws_at = 0.0
        self._drawing = threading.Lock()

    def refresh(self) -> bool:
        """Read what has changed since the last call. Returns whether something has."""
        if time.monotonic() < self._is_due_at:
            return False
        files = (self.path / "study.json", self.path / "journal.jsonl")
        found = tuple(map(signature_of, files))
        if found != self._signatures:
            started = time.monotonic()
            try:
                _check(files)
                self.analysis, self.error = ExperimentAnalysis(self.path), None
            except (OutplayError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self.error = str(error) if isinstance(error, OutplayError) else f"the study {self.path} is damaged"
                self.analysis = None
            self._signatures = found
            self._is_due_at = time.monotonic() + (time.monotonic() - started) / _READING_SHARE
        study = self._described(found)
        changed, self.study = study != self.study, study
        return changed

    def figures(self) -> list[dict[str, str]]:
        """The figures. Importances take seconds, so those of a study that runs are not always of its newest result."""
        with self._drawing:
            analysis = self.analysis
            if analysis is not None and analysis is not self._drawn and time.monotonic() >= self._draws_at:
                started = time.monotonic()
                try:
                    self._figures = _figures(analysis)
                except (OutplayError, OSError, ValueError, KeyError, TypeError) as error:  # damaged meanwhile
                    log.warning("the figures of %s cannot be drawn: %s", self.path, error)
                    self._figures = []
                self._drawn = analysis
                self._draws_at = time.monotonic() + (time.monotonic() - started) / _READING_SHARE
            return self._figures if analysis is not None else []

    def _described(self, signatures: tuple[Signature, ...]) -> dict[str, Any]:
        newest = max((each[2] for each in signatures if each is not None), default=0)
        updated = datetime.fromtimestamp(newest / 1e9).astimezone().isoformat(timespec="seconds")
        if self.analysis is None:
            empty = dict.fromkeys(("trials", "running", "finished", "failed"), 0)
            unknown = dict.fromkeys(("trainable", "metric", "mode", "best"))
            return {
                "id": self.id,
                "name": self.id,
                **unknown,
                **empty,
                "state": "unknown",
                "updated": updated,
                "error": self.error,
            }
        analysis = self.analysis
        settings, trials = analysis.settings, analysis.trials
        is_running = is_locked(self.path) is True
        objective = analysis.objective
        best = ranked(analysis)[:1] if objective.metrics else []
        states = [trial.status for trial in trials]
        ended = bool(states) and all(state.is_finished for state in states)
        return {
            "id": self.id,
            "name": str(settings.get("name", self.id)),
            "trainable": str(settings.get("trainable", "")),
            "metric": objective.metrics[0] if objective.metrics else None,
            "mode": objective.mode,
            "trials": len(trials),
            "running": states.count(Status.RUNNING) if is_running else 0,
            "finished": states.count(Status.TERMINATED),
            "failed": states.count(Status.ERROR),
            "best": number_or_none(objective.value(best[0].last_result)) if best else None,
            "state": "running" if is_running else "finished" if ended else "stopped",
            "updated": updated,
            "error": None,
        }


def _check(files: tuple[Path, ...]) -> None:
    """Raise OSError for what must not be opened: a pipe would block, a huge file would fill the memory."""
    for file in files:
        try:
            found = os.stat(file)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise OSError(f"{file} is no file, or too large")


def study_details(entry: StudyEntry, runs: set[str]) -> dict[str, Any]:
    """The answer of /api/study. `runs`: the ids of all runs."""
    analysis = entry.analysis
    if analysis is None:
        return {"study": entry.study, "variables": [], "trials": [], "figures": []}
    trials = ranked(analysis) if analysis.objective.metrics else analysis.trials
    return {
        "study": entry.study,
        "variables": [variable_text(name) for name in variables_of(trials)],
        "trials": [_trial(trial, entry, analysis, runs) for trial in trials],
        "figures": entry.figures(),
    }


def _trial(trial: Trial, entry: StudyEntry, analysis: ExperimentAnalysis, runs: set[str]) -> dict[str, Any]:
    run_id = f"{entry.id}/{analysis.folder.trial_folder(trial.id).name}"
    value = analysis.objective.value(trial.last_result) if analysis.objective.metrics else math.nan
    is_running = trial.status == Status.RUNNING and entry.study.get("state") == "running"
    return {
        "id": trial.id,
        "run": run_id if run_id in runs else None,
        "state": "running" if is_running else status_text(trial),
        "value": number_or_none(value),
        "iterations": trial.iteration,
        "seconds": number_or_none(trial.seconds),
        "config": {variable_text(name): _plain(value) for name, value in trial.values.items()},
        "error": error_text(trial.error) if trial.error else None,
    }


def _plain(value: Any) -> Any:
    """A value of a variable for JSON: numbers, strings and lists of them; else as text."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return number_or_none(value)
    return value if value is None or isinstance(value, (bool, int, str)) else value_text(value)


def _figures(analysis: ExperimentAnalysis) -> list[dict[str, str]]:
    from outplay.tune.reporting.page import figures_of  # it needs the importances, which need scikit-learn

    if not analysis.objective.metrics:
        return []
    return [
        {
            "title": figure.title,
            "id": figure.title.lower().replace(" ", "-"),
            "note": figure.note,
            "html": "".join(f"<figure>{svg}</figure>" for svg in figure.svgs),
        }
        for figure in figures_of(analysis)
    ]
