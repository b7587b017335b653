"""Entry: what the list shows of one run, read from a few KB of its folder and kept until its files change."""

from __future__ import annotations

import math
import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from outplay.conditions import flattened
from outplay.dashboard.defaults import Defaults
from outplay.errors import ConfigError, OutplayError
from outplay.runs.comparing import flat_settings, group_key
from outplay.runs.folder import RunFolder
from outplay.runs.history import Record

SPARK_POINTS = 40
_RESAMPLE = 1.0 / SPARK_POINTS  # growth of metrics.jsonl after which the sparkline is sampled again
_SILENT = timedelta(hours=1)  # a run of another machine that has been silent for so long may have been killed
_DATE = re.compile(r"_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)$")

Signature = tuple[int, int, int] | None  # of a file: inode, size, time of its last change

_NO_CONFIG: dict[str, Any] = {"env": None, "run": None, "config": {}}


def signature_of(path: Path) -> Signature:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Entry:
    """One run of the list. `refresh` reads what has changed; `run` is the JSON object of the API."""

    def __init__(self, run_id: str, folder: RunFolder, study: str | None, defaults: Defaults) -> None:
        self.id = run_id
        self.folder = folder
        self.study = study
        self.version = 0
        self.run: dict[str, Any] = {}
        self.last: Record = {}
        self.is_due_at = 0.0  # time.monotonic() of the next look
        self._defaults = defaults
        self._name = ""
        self._body: dict[str, Any] = _NO_CONFIG
        self._config_error: str | None = None
        self._of_config: dict[str, Any] = {}
        self._status: dict[str, Any] | None = None
        self._spark: list[float | None] = []
        self._sampled_size = -1
        self._signatures: tuple[Signature, ...] = ()
        self._defaults_version = -1

    @property
    def body(self) -> dict[str, Any]:
        """The settings of config.yaml."""
        return self._body

    @property
    def status(self) -> dict[str, Any] | None:
        return self._status

    @property
    def is_running(self) -> bool:
        return bool(self.run.get("state") == "running")

    @property
    def may_change(self) -> bool:
        """Whether it trains, or has just been created and has no status yet."""
        return self.run.get("state") in ("running", "unknown")

    def refresh(self) -> bool | None:
        """Read what has changed since the last call. Returns whether something has; None if the run is gone."""
        path = self.folder.path
        names = ("config.yaml", "status.json", "metrics.jsonl")
        found = tuple(signature_of(path / name) for name in names)
        if found[0] is None:
            return None
        before = self._signatures or (None, None, None)
        defaults_changed = self._defaults_version != self._defaults.version
        if found == before and not defaults_changed and not self._may_be_killed:
            return False
        if found[0] != before[0]:
            self._read_config()
        if found[0] != before[0] or defaults_changed:
            self._defaults_version = self._defaults.version
            self._of_config = described_config(self.id, self._name, self._body, self._defaults)
        if found[1] != before[1] or self._may_be_killed:
            self._status = self.folder.status()
        if found[2] != before[2]:
            self._read_metrics(found[2])
        self._signatures = found
        run = self._described(found[0])
        if run == self.run:
            return False
        self.run = run
        return True

    @property
    def _may_be_killed(self) -> bool:
        """A killed run does not change its files: its lock is looked at."""
        return self._status is not None and self._status["state"] == "running"

    def _read_config(self) -> None:
        try:
            self._name, self._body = self.folder.recorded()
            self._config_error = None
        except ConfigError as error:
            self._name, self._body = self.id.partition("/")[0], _NO_CONFIG
            self._config_error = str(error)

    def _read_metrics(self, signature: Signature) -> None:
        size = 0 if signature is None else signature[1]
        is_near = 0 < self._sampled_size <= size < self._sampled_size * (1 + _RESAMPLE)
        try:
            found = self.folder.sampled_metrics(1 if is_near else SPARK_POINTS).results
        except OutplayError:
            found, is_near = [], False
        self.last = found[-1] if found else {}
        value = number_or_none(self.last.get("episode_return_mean"))
        if is_near and self._spark:
            self._spark = [*self._spark[:-1], value]
        else:
            self._sampled_size = size
            self._spark = spark_of([number_or_none(result.get("episode_return_mean")) for result in found])

    def _described(self, config: Signature) -> dict[str, Any]:
        status, last = self._status or {}, self.last
        workers = status.get("workers")
        # status.json is written once per second, metrics.jsonl after each iteration.
        newer = last if last.get("training_iteration", 0) > status.get("training_iteration", -1) else status
        value = newer.get("episode_return_mean")
        error = status.get("error") or self._config_error
        return {
            "id": self.id,
            "name": self.id.rpartition("/")[2],
            "study": self.study,
            **self._of_config,
            "state": self._state(),
            "error": None if error is None else str(error),
            "progress": fraction(status.get("progress")),
            "iteration": _integer(newer.get("training_iteration")),
            "timesteps": _integer(newer.get("timesteps_total")),
            "return": number_or_none(value if value is not None else last.get("episode_return_mean")),
            "steps_per_s": number_or_none(last.get("env_steps_per_s")),
            "seconds": number_or_none(last.get("time_total_s")),
            "started": self._started(config),
            "updated": str(status.get("updated") or self._started(config)),
            "spark": self._spark,
            "has_workers": isinstance(workers, dict) and bool(workers.get("number")),
        }

    def _state(self) -> str:
        if self._status is None:
            return "unknown"
        state = str(self._status["state"])
        if state == "running" and self._status["host"] != os.uname().nodename:
            try:
                silent = datetime.now().astimezone() - datetime.fromisoformat(self._status["updated"])
            except (ValueError, TypeError):
                return "unknown"
            return "unknown" if silent > _SILENT else state
        return state

    def _started(self, config: Signature) -> str:
        if match := _DATE.search(self.folder.path.name):
            try:
                found = datetime.strptime(match[1], "%Y-%m-%d_%H-%M-%S")
                return found.astimezone().isoformat(timespec="seconds")
            except ValueError:
                pass
        seconds = 0 if config is None else config[2] / 1e9
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def described_config(run_id: str, name: str, body: dict[str, Any], defaults: Defaults) -> dict[str, Any]:
    """What the list shows of config.yaml."""
    algorithm, env, config = str(body.get("run") or ""), str(body.get("env") or ""), body["config"]
    seed = config.get("seed")
    return {
        "experiment": name or run_id.partition("/")[0],
        "algorithm": algorithm,
        "env": env,
        "seed": seed if isinstance(seed, int) else None,
        "settings": defaults.changed(algorithm, body),
        "group": group_key(name, flat_settings(body)),
    }


def spark_of(values: list[float | None]) -> list[float | None]:
    """At most SPARK_POINTS of the values, always with the last one."""
    if len(values) <= SPARK_POINTS:
        return values
    last = len(values) - 1
    return [values[round(i * last / (SPARK_POINTS - 1))] for i in range(SPARK_POINTS)]


def number_or_none(value: Any) -> float | None:
    """A finite number as JSON has it; None for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= 1e300 and math.isfinite(value) else None


def is_text(name: str) -> bool:
    """Whether JSON can have the name of a file: those of other encodings have lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def fraction(value: Any) -> float | None:
    found = number_or_none(value)
    return None if found is None else min(1.0, max(0.0, found))


def _integer(value: Any) -> int:
    return value if type(value) is int else 0


def flat_metrics(result: Record) -> dict[str, float | None]:
    """The metrics of a result by flat name, numbers and null only."""
    return {name: number_or_none(value) for name, value in flattened(result).items() if _is_metric(value)}


def _is_metric(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
