"""Where the figures of a run go: metrics.jsonl always, CSV and TensorBoard when asked."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import IO, Any, Protocol

from outplay.errors import RunError


class Sink(Protocol):
    def write(self, result: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def as_json(result: dict[str, Any]) -> str:
    """One line of JSON. What is not a number yet is null, as JSON has no NaN."""
    return json.dumps(_finite(result), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flattened(result: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures by a path: learner/kl. Lists are left out.

    >>> flattened({"a": 1, "learner": {"kl": 0.1}, "episode_returns": [1.0, 2.0]})
    {'a': 1, 'learner/kl': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}/"))
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat


def read_metrics(path: Path, last_iteration: int | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, up to an iteration; a line that was cut off by a crash is left out."""
    if not path.exists():
        return []
    results = []
    for line in path.read_text().splitlines():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if last_iteration is None or result.get("training_iteration", 0) <= last_iteration:
            results.append(result)
    return results


class JsonLines:
    """metrics.jsonl: one line per iteration, on its way to the disk at once."""

    def __init__(self, path: Path, kept: list[dict[str, Any]]) -> None:
        self.path = path
        replace_file(path, "".join(as_json(result) + "\n" for result in kept))
        self._file = opened(path, "a")

    def write(self, result: dict[str, Any]) -> None:
        try:
            self._file.write(as_json(result) + "\n")
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        self._file.close()


class Csv:
    """progress.csv. When a figure comes up for the first time, the file is written anew with one more column."""

    def __init__(self, path: Path, kept: list[dict[str, Any]]) -> None:
        self.path = path
        self._rows = [flattened(result) for result in kept]
        self._columns: list[str] = []
        for row in self._rows:
            self._columns += [key for key in row if key not in self._columns]
        self._file = opened(path, "w")
        self._write_all()

    def _write_all(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._csv = csv.DictWriter(self._file, self._columns, restval="")
        self._csv.writeheader()
        self._csv.writerows(self._rows)

    def write(self, result: dict[str, Any]) -> None:
        row = flattened(result)
        self._rows.append(row)
        new = [key for key in row if key not in self._columns]
        try:
            if new:
                self._columns += new
                self._write_all()
            else:
                self._csv.writerow(row)
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """tensorboard/: every number, over timesteps_total."""

    def __init__(self, folder: Path, resumed_at: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RunError("loggers: tensorboard is not installed: pip install 'outplay[tensorboard]'") from error
        self._writer: Any = SummaryWriter(str(folder), purge_step=resumed_at or None)

    def write(self, result: dict[str, Any]) -> None:
        for name, value in flattened(result).items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(name, value, result["timesteps_total"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def opened(path: Path, mode: str) -> IO[str]:
    try:
        return path.open(mode, newline="")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def replace_file(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new text, never half of it."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
