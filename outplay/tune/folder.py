"""StudyFolder: reads and writes the files of a study.

study.json        the settings of the study: metric, mode, seed, variables
journal.jsonl     everything that happened, one event per line, in order
trial_00003/      files of one trial: checkpoints; for an algorithm, its run folder
.lock             held by the process that runs the study

The journal is the truth: a study is restored by reading it. One process writes it, and a line is complete or ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from outplay.errors import RunError
from outplay.files import LogFile, remove, replace_file, writing
from outplay.parsing import parse_json
from outplay.runs.lock import FolderLock
from outplay.runs.results import as_path

Entry = dict[str, Any]  # one line of the journal: "event", "trial", "time", …

VERSION = 1
_CHECK_S = 0.1  # a check takes ten times as long as a write: afterwards the next write is slower, too


class StudyFolder:
    """A study on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self._lock = FolderLock(self.path)
        self._journal: LogFile | None = None

    def __str__(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        return (self.path / "study.json").exists()

    def create(self, settings: dict[str, Any]) -> None:
        """Create the folder with its settings, and open the journal."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._acquire()
        if self.exists:
            self._lock.release()
            raise RunError(
                f"there is a study in {self.path} already; continue it with resume=True, or use another name"
            )
        self.write_settings(settings)
        self._journal = LogFile(self._journal_path, _CHECK_S)

    def open(self) -> None:
        """Lock an existing study and open its journal, to append to it."""
        self.check_is_study()
        self._acquire()
        with writing(self._journal_path):
            self._drop_partial_line()
        self._journal = LogFile(self._journal_path, _CHECK_S)

    def _acquire(self) -> None:
        try:
            self._lock.acquire()
        except RunError as error:
            raise RunError(f"the study in {self.path} is run by another process: {error}") from error

    def remove(self) -> None:
        """Delete the folder: nothing has been run."""
        self.close()
        remove(self.path)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._lock.release()

    def check_is_study(self) -> None:
        if not self.exists:
            raise RunError(f"there is no study in {self.path}: it has no study.json")

    @property
    def _journal_path(self) -> Path:
        return self.path / "journal.jsonl"

    def settings(self) -> dict[str, Any]:
        """The content of study.json."""
        self.check_is_study()
        path = self.path / "study.json"
        try:
            found = parse_json(path.read_bytes())
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from error
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise RunError(f"{path} is damaged, or from another version of Outplay")
        return found

    def write_settings(self, settings: dict[str, Any]) -> None:
        replace_file(self.path / "study.json", json.dumps({"version": VERSION, **settings}, indent=1, default=plain))

    def append(self, entry: Entry) -> None:
        """Write one event."""
        assert self._journal is not None
        self._journal.write(encoded(entry))

    def _drop_partial_line(self) -> None:
        """Remove the end of a line that was being written when the process was killed."""
        if not self._journal_path.exists():
            return
        with self._journal_path.open("rb+") as file:
            data = file.read()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                file.truncate(end)

    def entries(self) -> Iterator[Entry]:
        """All events. An unfinished last line is ignored."""
        if not self._journal_path.exists():
            return
        with self._journal_path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    entry = json.loads(line)
                except ValueError:
                    entry = None
                if not isinstance(entry, dict) or "event" not in entry:
                    raise RunError(f"{self._journal_path}, line {number}: damaged")
                yield entry

    # Paths in the journal are relative, so that the folder can be moved.

    def trial_folder(self, trial_id: str, seed: int = 0) -> Path:
        return self.path / (f"trial_{trial_id}" if seed == 0 else f"trial_{trial_id}_seed{seed}")

    def relative(self, path: str | Path) -> str:
        path = Path(path)
        return str(path.relative_to(self.path)) if path.is_relative_to(self.path) else str(path)

    def absolute(self, path: str) -> str:
        return str(self.path / path)


def encoded(entry: Entry) -> bytes:
    try:
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False, default=plain)
    except ValueError:  # NaN or infinity, which JSON does not have
        text = json.dumps(_finite(entry), separators=(",", ":"), default=plain)
    return text.encode() + b"\n"


def plain(value: Any) -> Any:
    """What JSON does not know: numpy's numbers and arrays; other objects as text."""
    if isinstance(value, np.generic):
        return _finite(value.item())
    if isinstance(value, np.ndarray):
        return _finite(value.tolist())
    if hasattr(value, "tolist"):  # a tensor
        return _finite(value.tolist())
    return repr(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
