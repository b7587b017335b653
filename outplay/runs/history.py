"""metrics.jsonl: the results of a run, one per line. It can be read while the run writes it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

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
        with opened(path) as file:
            start, is_same, inode = _start(file, since)
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


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """metrics.jsonl, for reading."""
    # Non-blocking: an untrusted run folder may contain a pipe.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        yield file


def _start(file: IO[bytes], since: Position) -> tuple[Position, bool, int]:
    """Where to read from, whether the file is still the one of the position, and its inode."""
    inode = os.fstat(file.fileno()).st_ino
    is_same = since.offset <= 0 or (inode == since.inode and _tail(file, since.offset) == since.tail)
    return (since if is_same and since.offset > 0 else Position()), is_same, inode


@dataclass(frozen=True)
class Part:
    """Results of metrics.jsonl with the offsets of their lines, for readers that do not hold the whole file."""

    results: list[Record]
    offsets: list[int]  # bytes; one per result
    end: Position  # for the next part
    rewritten: bool = False  # the file was replaced: what was read before is void
    is_last: bool = True  # there was no other complete line


def read_part(path: Path, since: Position | None = None, most_bytes: int = 4_000_000, offset: int = 0) -> Part:
    """Read complete lines since a position, or from an offset on, at most `most_bytes`. Damaged lines are skipped.

    A line that is longer counts as damaged. Values of results are not checked: see `read_metrics`.
    """
    since = since or Position()
    try:
        with opened(path) as file:
            check_regular(file)
            start, is_same, inode = _start(file, since)
            start = start if start.offset else Position(offset)
            file.seek(start.offset)
            data = file.read(most_bytes) or b""
            is_full = len(data) == most_bytes
            end = data.rfind(b"\n") + 1
            if not end and is_full:
                end = len(data)  # a line that is too long
            tail = _tail(file, start.offset + end)
    except FileNotFoundError:
        return Part([], [], Position(), rewritten=since.offset > 0)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    lines = data[:end].split(b"\n") if end else []
    results, offsets, at = [], [], start.offset
    for line in lines:
        if (result := quick_result(line)) is not None:
            results.append(result)
            offsets.append(at)
        at += len(line) + 1
    position = Position(start.offset + end, start.lines + data.count(b"\n", 0, end), inode, tail)
    return Part(results, offsets, position, not is_same, not is_full)


def check_regular(file: IO[bytes]) -> None:
    """Raise OSError if it is not a file: a pipe, for example."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError("it is not a regular file")


def quick_result(line: bytes) -> Record | None:
    """The result of a line, without a check of its metrics; None if it is no result. Three times as fast as json."""
    try:
        result = from_json(line)
    except ValueError:
        return None
    if not isinstance(result, dict) or "episode_return_mean" not in result:
        return None
    return result if type(result.get("training_iteration")) is int else None


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
