"""metrics.jsonl: the results of a run, one per line. It can be read while the run writes it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from outplay.conditions import flattened as flattened  # the rest of runs imports it from here
from outplay.errors import RunError

Record = dict[str, Any]  # a result as metrics.jsonl has it: null for NaN, and the metrics of callbacks

_TAIL = 4096  # bytes before a position whose hash identifies the file


def as_json(result: Mapping[str, Any]) -> str:
    """A result as one line of JSON. NaN and infinity become null, since JSON has neither."""
    return json.dumps(_finite(result), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True)
class Position:
    """A position in metrics.jsonl, for incremental reading. Its fields can be serialized as JSON."""

    offset: int = 0  # bytes
    lines: int = 0  # before the offset
    inode: int = 0
    tail: str = ""  # hash of the last bytes before the offset


@dataclass(frozen=True)
class Metrics:
    """Results that were read from metrics.jsonl."""

    results: list[Record]
    damaged: list[int]  # line numbers of damaged lines, which are skipped
    end: Position  # for the next call: metrics(since=end)
    rewritten: bool = False  # the file was replaced: these results replace all results that were read before
    unfinished: bytes = field(default=b"", repr=False)  # the last line, if its newline is not written yet


def read_metrics(path: Path, since: Position | None = None) -> Metrics:
    """Read the complete lines of metrics.jsonl since a position, or all of them.

    A resumed run rewrites the file. This is detected by the inode and by the hash of the bytes before the position;
    the file is then read from its start.
    """
    since = since or Position()
    try:
        # Non-blocking: an untrusted run folder may contain a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            inode = os.fstat(descriptor).st_ino
            is_same = since.offset <= 0 or (inode == since.inode and _tail(file, since.offset) == since.tail)
            start = since if is_same and since.offset > 0 else Position()
            file.seek(start.offset)
            whole, newline, unfinished = (file.read() or b"").rpartition(b"\n")
            offset = start.offset + len(whole) + len(newline)
            tail = _tail(file, offset)
    except FileNotFoundError:
        return Metrics([], [], Position(), rewritten=since.offset > 0)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    lines = whole.split(b"\n") if newline else []
    results, damaged = _parsed(lines, start.lines)
    end = Position(offset, start.lines + len(lines), inode, tail)
    return Metrics(results, damaged, end, not is_same, unfinished)


def read_until(path: Path, iteration: int) -> tuple[list[Record], list[int]]:
    """All results up to an iteration, and the line numbers of damaged lines. The last line may lack its newline."""
    metrics = read_metrics(path)
    last, last_damaged = _parsed([metrics.unfinished], metrics.end.lines)
    results = [result for result in (*metrics.results, *last) if result["training_iteration"] <= iteration]
    return results, metrics.damaged + last_damaged


def _tail(file: IO[bytes], offset: int) -> str:
    """A hash of the bytes before an offset; empty if the file is shorter."""
    length = min(offset, _TAIL)
    if length <= 0:
        return ""
    file.seek(offset - length)
    data = file.read(length) or b""
    return hashlib.blake2b(data, digest_size=16).hexdigest() if len(data) == length else ""


def _parsed(lines: list[bytes], before: int) -> tuple[list[Record], list[int]]:
    """The results of these lines, and the line numbers of damaged lines. Empty lines are skipped."""
    parsed = [(number, _result(line)) for number, line in enumerate(lines, before + 1) if line]
    return [result for _, result in parsed if result is not None], [
        number for number, result in parsed if result is None
    ]


def _result(line: bytes) -> Record | None:
    """Parse the result of a line. None if the line is damaged: no JSON, or without the iteration and the return."""
    try:
        result = json.loads(line.decode())
        if not isinstance(result, dict) or "episode_return_mean" not in result:
            return None
        iteration = result.get("training_iteration")
        is_valid = type(iteration) is int and all(map(_is_number, flattened(result).values()))
    except (ValueError, RecursionError):
        return None
    return result if is_valid else None


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and abs(value) <= sys.float_info.max)
