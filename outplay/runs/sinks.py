"""Sinks for the results of a run: metrics.jsonl, and optionally CSV and TensorBoard. See tracking.py for services.

A sink of `loggers` is a class that is made with (context, options). It may have two attributes: `Options`, a subclass
of Settings that checks its options, and `package`, a module that must be installed; and a method `end(state)`, which is
called before `close()`. A package registers its own sinks: see `outplay.registry`.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from outplay.errors import ConfigError
from outplay.experiment import LoggerEntry, logger_options
from outplay.files import LogFile, replace_file, writing
from outplay.registry import loggers as registered
from outplay.runs.history import Record, as_json, flattened
from outplay.settings import Settings, validated


@dataclass(frozen=True)
class SinkContext:
    """What a sink may use of its run."""

    folder: Path  # of the run
    experiment: str  # its name
    settings: Mapping[str, Any]  # of the algorithm: the hyperparameters
    kept: list[Record]  # the results so far; not empty if the run was resumed
    timesteps: int  # so far


class Sink(Protocol):
    """An output for results."""

    def write(self, result: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class NoOptions(Settings):
    """The options of a sink that has none."""


def checked_loggers(loggers: list[LoggerEntry]) -> list[tuple[Any, Settings]]:
    """The class of each sink and its options. Raises ConfigError for a wrong option, or if a package is missing."""
    found = []
    for name, options in logger_options(loggers).items():
        kind = registered.load(name)
        package = getattr(kind, "package", "")
        if package and not _is_installed(package):
            raise ConfigError(f"loggers: {name} is not installed: pip install 'outplay[{name}]'")
        found.append((kind, validated(getattr(kind, "Options", NoOptions), options, f"loggers: {name}")))
    return found


def _is_installed(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None  # without one, it is a folder such as ./wandb


def open_sinks(loggers: list[LoggerEntry], context: SinkContext) -> list[Sink]:
    """Open metrics.jsonl and the sinks in `loggers`. Files are rewritten to contain the results `context.kept`."""
    sinks: list[Sink] = []
    try:
        sinks.append(JsonLines(context.folder / "metrics.jsonl", context.kept))
        for kind, options in checked_loggers(loggers):
            sinks.append(kind(context, options))
    except BaseException:
        close_sinks(sinks, "failed")
        raise
    return sinks


def close_sinks(sinks: list[Sink], state: str) -> None:
    """Close sinks. `state` is how the run ended: see `Recorder.state`."""
    for sink in sinks:
        if (end := getattr(sink, "end", None)) is not None:
            end(state)
        sink.close()


class JsonLines:
    """metrics.jsonl: one line per iteration, unbuffered."""

    def __init__(self, path: Path, kept: list[dict[str, Any]]) -> None:
        replace_file(path, "".join(as_json(result) + "\n" for result in kept))
        self._file = LogFile(path)

    def write(self, result: Mapping[str, Any]) -> None:
        self._file.write(f"{as_json(result)}\n".encode())

    def close(self) -> None:
        self._file.close()


class Csv:
    """progress.csv. When a new metric appears, the file is rewritten with one more column."""

    def __init__(self, context: SinkContext, _: Settings) -> None:
        self._rows = [flattened(result) for result in context.kept]
        self._columns: list[str] = []
        for row in self._rows:
            self._columns += [key for key in row if key not in self._columns]
        self._file = LogFile(context.folder / "progress.csv")
        self._write_all()

    def _write_all(self) -> None:
        self._file.clear()
        self._append([dict(zip(self._columns, self._columns, strict=True)), *self._rows])

    def _append(self, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, restval="").writerows(rows)
        self._file.write(text.getvalue().encode())

    def write(self, result: Mapping[str, Any]) -> None:
        row = flattened(result)
        self._rows.append(row)
        if new := [key for key in row if key not in self._columns]:
            self._columns += new
            self._write_all()
        else:
            self._append([row])

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """tensorboard/: every metric over timesteps_total.

    SummaryWriter is not used: it writes in a background thread, whose errors would be printed as tracebacks.
    """

    package = "tensorboard"

    def __init__(self, context: SinkContext, _: Settings) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder, resumed_at = context.folder / "tensorboard", context.timesteps
        self._event, self._summary, self._records = Event, Summary, RecordWriter
        with writing(folder):
            folder.mkdir(exist_ok=True)
        self._file = LogFile(folder / f"events.out.tfevents.{time.time_ns()}.{os.uname().nodename}.{os.getpid()}")
        events = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if resumed_at:  # TensorBoard then drops later steps of earlier files
            events.append(Event(step=resumed_at, session_log=SessionLog(status=SessionLog.START)))
        self._write(events)

    def _write(self, events: list[Any]) -> None:
        data = io.BytesIO()
        for event in events:
            self._records(data).write(event.SerializeToString())
        self._file.write(data.getvalue())

    def write(self, result: Mapping[str, Any]) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in flattened(result).items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        ]
        step = result["timesteps_total"]
        self._write([self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))])

    def close(self) -> None:
        self._file.close()
