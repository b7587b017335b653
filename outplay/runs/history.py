"""metrics.jsonl: the results of a run, one per line, and how they are read while the run still writes them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from outplay.errors import RunError

Result = dict[str, Any]

_TAIL = 4096  # bytes before a position, by which it is recognised


def as_json(result: Result) -> str:
    """One line of JSON. What is not a number yet is null, as JSON has no NaN."""
    return json.dumps(_finite(result), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flattened(result: Result, prefix: str = "") -> Result:
    """Nested metrics by a path: learner/kl. Lists are left out.

    >>> flattened({"a": 1, "learner": {"kl": 0.1}, "episode_returns": [1.0, 2.0]})
    {'a': 1, 'learner/kl': 0.1}
    """
    flat: Result = {}
    for key, value in result.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}/"))
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat


@dataclass(frozen=True)
class Position:
    """How far metrics.jsonl was read. Integers and a string: it can be sent to a browser and back."""

    offset: int = 0  # bytes
    lines: int = 0  # before the offset
    inode: int = 0
    tail: str = ""  # hash of the last bytes before the offset


@dataclass(frozen=True)
class Metrics:
    """What was read of metrics.jsonl."""

    results: list[Result]
    damaged: list[int]  # numbers of lines that were left out
    end: Position  # read on from here: metrics(since=end)
    rewritten: bool = False  # it is another file than before: these results replace all that were read earlier
    unfinished: bytes = field(default=b"", repr=False)  # the last line, if its end is not written yet


def read_metrics(path: Path, since: Position | None = None) -> Metrics:
    """The whole lines of metrics.jsonl since a position, or all of them.

    A run that is resumed rewrites the file. That is recognised by the file's inode and by the bytes before the
    position: then the file is read from its beginning.
    """
    since = since or Position()
    try:
        # Not blocking: a run folder may come from anyone, and hold a pipe.
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


def read_until(path: Path, iteration: int) -> tuple[list[Result], list[int]]:
    """All results up to an iteration, and the numbers of damaged lines. The last line counts without its end, too."""
    metrics = read_metrics(path)
    last, last_damaged = _parsed([metrics.unfinished], metrics.end.lines)
    results = [result for result in (*metrics.results, *last) if result["training_iteration"] <= iteration]
    return results, metrics.damaged + last_damaged


def _tail(file: IO[bytes], offset: int) -> str:
    """A hash of what is before an offset; empty if there is less than that."""
    length = min(offset, _TAIL)
    if length <= 0:
        return ""
    file.seek(offset - length)
    data = file.read(length) or b""
    return hashlib.blake2b(data, digest_size=16).hexdigest() if len(data) == length else ""


def _parsed(lines: list[bytes], before: int) -> tuple[list[Result], list[int]]:
    """The results on lines, and the numbers of those that are damaged. Empty lines are passed over."""
    parsed = [(number, _result(line)) for number, line in enumerate(lines, before + 1) if line]
    return [result for _, result in parsed if result is not None], [
        number for number, result in parsed if result is None
    ]


def _result(line: bytes) -> Result | None:
    """The result on a line: metrics by name, the iteration and the return among them. None if it is damaged."""
    try:
        result = json.loads(line.decode())
        if not isinstance(result, dict) or "episode_return_mean" not in result:
            return None
        iteration = result.get("training_iteration")
        is_sound = type(iteration) is int and all(map(_is_number, flattened(result).values()))
    except (ValueError, RecursionError):
        return None
    return result if is_sound else None


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and abs(value) <= sys.float_info.max)
