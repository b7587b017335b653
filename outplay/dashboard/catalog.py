"""Catalog: the runs and studies of the results folder, by their ids. Ids from the network are only looked up here."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outplay.dashboard.defaults import Defaults
from outplay.dashboard.entries import Entry, is_text
from outplay.dashboard.studies import StudyEntry
from outplay.errors import ConfigError, shortened
from outplay.runs.folder import RunFolder

log = logging.getLogger("outplay")

_INTERVAL_S = 0.5  # between two looks at the folder, however many pages ask
_FINISHED_S = 5.0  # between two looks at a run that does not train
_SETTLED_S = 2.0  # after this time, a folder whose time has not changed has the same content


class UnknownError(LookupError):
    """There is no such run or study."""


class Catalog:
    """All runs and studies. Methods may be called from any thread."""

    def __init__(self, results: Path, defaults: Defaults | None = None) -> None:
        self.results = results
        self.defaults = defaults or Defaults()
        self._runs: dict[str, Entry] = {}
        self._studies: dict[str, StudyEntry] = {}
        self._removed: dict[str, int] = {}  # ids of runs and studies that are gone, and since which version
        self._origin = secrets.token_hex(4)
        self._version = 0
        self._listings: dict[Path, tuple[int, list[Path]]] = {}  # time of the folder, and the folders in it
        self._visited: dict[Path, tuple[int, list[Path]]] = {}
        self._looked_at = -_INTERVAL_S
        self._lock = threading.Lock()

    def runs(self) -> list[Entry]:
        return list(self._runs.values())

    def studies(self) -> list[StudyEntry]:
        return list(self._studies.values())

    def run(self, run_id: str) -> Entry:
        """The run with this id. Raises UnknownError."""
        if run_id not in self._runs:
            self.refresh(at_once=True)
        if (found := self._runs.get(run_id)) is None:
            raise UnknownError(f"there is no run {shortened(run_id, 100)!r} in the results folder")
        return found

    def fresh_run(self, run_id: str) -> Entry:
        """The run with this id, with what has changed just now. Raises UnknownError."""
        entry = self.run(run_id)
        with self._lock:
            changed = entry.refresh()
            if changed:
                self._version += 1
                entry.version = self._version
        if changed is None:
            raise UnknownError(f"the run {shortened(run_id, 100)!r} was deleted")
        return entry

    def study(self, study_id: str) -> StudyEntry:
        """The study with this id. Raises UnknownError."""
        if study_id not in self._studies:
            self.refresh(at_once=True)
        if (found := self._studies.get(study_id)) is None:
            raise UnknownError(f"there is no study {shortened(study_id, 100)!r} in the results folder")
        return found

    def run_of(self, pid: int) -> str | None:
        """The id of the newest run that a process of this machine trains or has trained."""
        self.refresh()
        host = os.uname().nodename
        found = [entry for entry in self.runs() if (s := entry.status) and s["pid"] == pid and s["host"] == host]
        return max(found, key=lambda entry: str(entry.run["updated"])).id if found else None

    @property
    def mark(self) -> str:
        """The present version, for `changes`; also after a restart of the dashboard, which then knows nothing of it."""
        return f"{self._origin}-{self._version}"

    def changes(self, mark: str) -> tuple[str, dict[str, Any]]:
        """What has changed since a mark: the present mark, and {"runs", "removed", "studies"}. Else: everything."""
        origin, _, version = mark.partition("-")
        is_known = origin == self._origin and version.isdecimal() and len(version) < 16
        since = int(version) if is_known else -1
        with self._lock:
            return self.mark, {
                "runs": [entry.run for entry in self._runs.values() if entry.version > since],
                "removed": [each for each, version in self._removed.items() if version > since],
                "studies": [entry.study for entry in self._studies.values() if entry.version > since],
            }

    def refresh(self, at_once: bool = False) -> None:
        """Look at the results folder and at the files of runs that may have changed.

        `at_once`: also if that was done just now.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < _INTERVAL_S and not at_once:
                return
            version = self._version + 1
            self._visited = {}
            found_runs, found_studies = set(), set()
            for experiment in self._inside(self.results):
                study_id = experiment.name if (experiment / "study.json").is_file() else None
                if study_id is not None:
                    found_studies.add(study_id)
                    self._refresh_study(study_id, experiment, version)
                for path in self._inside(experiment):
                    run_id = f"{experiment.name}/{path.name}"
                    if self._refresh_run(run_id, path, study_id, version, now):
                        found_runs.add(run_id)
            self._listings = self._visited
            self._remove(found_runs, found_studies, version)
            entries: list[Entry | StudyEntry] = [*self._runs.values(), *self._studies.values()]
            if version in {*(entry.version for entry in entries), *self._removed.values()}:
                self._version = version
            self._looked_at = time.monotonic()

    def _refresh_run(self, run_id: str, path: Path, study: str | None, version: int, now: float) -> bool:
        """Returns whether it is a run."""
        entry = self._runs.get(run_id)
        if entry is not None and entry.study == study and now < entry.is_due_at:
            return True
        if entry is None or entry.study != study:
            if not (path / "config.yaml").exists():
                return False
            try:
                entry = Entry(run_id, RunFolder(path), study, self.defaults)
            except ConfigError:  # a path that cannot be looked up
                return False
        try:
            changed = entry.refresh()
        except Exception:  # one folder with strange content must not hide all others
            log.exception("the run %s cannot be listed", path)
            return False
        if changed is None:
            return False
        if changed:
            entry.version = version
        entry.is_due_at = now + (0.0 if entry.may_change else _FINISHED_S)
        self._runs[run_id] = entry
        self._removed.pop(run_id, None)
        return True

    def _refresh_study(self, study_id: str, path: Path, version: int) -> None:
        entry = self._studies.get(study_id)
        if entry is None:
            entry = self._studies[study_id] = StudyEntry(study_id, path)
            self._removed.pop(study_id, None)
        if entry.refresh():
            entry.version = version

    def _remove(self, runs: set[str], studies: set[str], version: int) -> None:
        for each in self._runs.keys() - runs:
            del self._runs[each]
            self._removed[each] = version
        for each in self._studies.keys() - studies:
            del self._studies[each]
            self._removed[each] = version
        while len(self._removed) > 1000:  # a page that missed so many reloads
            del self._removed[next(iter(self._removed))]

    def _inside(self, folder: Path) -> Iterator[Path]:
        """The folders in a folder, in the order of their names; those that lead outside of the results are left out."""
        try:
            changed = os.stat(folder).st_mtime_ns
            before = self._listings.get(folder)
            if before is None or before[0] != changed:
                found = sorted(Path(each.path) for each in os.scandir(folder) if self._is_own(each))
                is_settled = time.time() - changed / 1e9 > _SETTLED_S
                before = (changed if is_settled else -1, found)
        except OSError:
            return iter(())
        self._visited[folder] = before
        return iter(before[1])

    def _is_own(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or not is_text(entry.name) or not entry.is_dir():
            return False
        if not entry.is_symlink():
            return True
        return Path(entry.path).resolve().is_relative_to(self.results.resolve())
