"""Sinks for the results of a run: metrics.jsonl, and optionally CSV and TensorBoard."""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from outplay.errors import RunError
from outplay.files import LogFile, replace_file, writing
from outplay.runs.history import as_json, flattened


class Sink(Protocol):
    """An output for results."""

    def write(self, result: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


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

    def __init__(self, path: Path, kept: list[dict[str, Any]]) -> None:
        self._rows = [flattened(result) for result in kept]
        self._columns: list[str] = []
        for row in self._rows:
            self._columns += [key for key in row if key not in self._columns]
        self._file = LogFile(path)
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

    def __init__(self, folder: Path, resumed_at: int) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise RunError("loggers: tensorboard is not installed: pip install 'outplay[tensorboard]'") from error
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
