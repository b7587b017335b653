"""Some results of a long metrics.jsonl: evenly spaced ones, the last ones, those of given iterations.

Reads a few KB for each, not the whole file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from outplay.errors import RunError
from outplay.runs.history import Part, Position, Record, check_regular, opened, quick_result, read_part

_LINE = 4096  # bytes that are read for one line at first: a usual line has 1 KB
_LONGEST_LINE = 1_000_000  # bytes; longer lines are skipped


def sample_metrics(path: Path, number: int) -> Part:
    """About `number` results, evenly spaced in the file, always with the first and the last one.

    Reads a few KB for each. `is_last` is whether these are all results of the file. `end` is not a position to
    continue from, unless they are.
    """
    try:
        with opened(path) as file:
            check_regular(file)
            size = os.fstat(file.fileno()).st_size
            if size > number * _LINE:
                starts = [i * size // number for i in range(number)]
                found = [_line_after(file.fileno(), start) for start in starts]
                found.append(_last_line(file.fileno(), size))
                lines = {offset: line for offset, line in found if line}
                parsed = [(offset, quick_result(lines[offset])) for offset in sorted(lines)]
                results = [(offset, result) for offset, result in parsed if result is not None]
                return Part([r for _, r in results], [o for o, _ in results], Position(), is_last=False)
    except FileNotFoundError:
        return Part([], [], Position())
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    return read_part(path, None, max(1, size + 1))


def last_results(path: Path, number: int, most_bytes: int) -> list[Record]:
    """The last results, at most `number`, from the last `most_bytes` of the file."""
    lines = _last_lines(path, most_bytes)[-number:]
    return [result for line in lines if (result := quick_result(line)) is not None]


def last_result_with(path: Path, group: str, most_bytes: int) -> Record | None:
    """The last result that has this group of metrics, as "evaluation", from the last `most_bytes` of the file."""
    key = f'"{group}"'.encode()
    for line in reversed(_last_lines(path, most_bytes)):
        result = quick_result(line) if key in line else None
        if result is not None and isinstance(result.get(group), dict):
            return result
    return None


def _last_lines(path: Path, most_bytes: int) -> list[bytes]:
    """The complete lines in the last `most_bytes` of a file; none if there is no file."""
    try:
        with opened(path) as file:
            check_regular(file)
            size = os.fstat(file.fileno()).st_size
            before = max(0, size - most_bytes)
            data = os.pread(file.fileno(), size - before, before)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    return data[: data.rfind(b"\n") + 1].split(b"\n")[0 if before == 0 else 1 : -1]


def results_of(path: Path, iterations: Iterable[int]) -> dict[int, Record]:
    """The results of these iterations, by iteration, as far as the file has them. Iterations grow along the file."""
    try:
        with opened(path) as file:
            check_regular(file)
            size = os.fstat(file.fileno()).st_size
            found = {iteration: _search(file.fileno(), size, iteration) for iteration in iterations}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    return {iteration: result for iteration, result in found.items() if result is not None}


def _search(descriptor: int, size: int, iteration: int) -> Record | None:
    """Bisection: the result is on a line that starts in [low, high)."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        offset, line = _line_after(descriptor, middle)
        result = quick_result(line)
        if result is None or result["training_iteration"] > iteration:
            high = middle
        elif result["training_iteration"] < iteration:
            low = offset + len(line) + 1
        else:
            return result
    return None


def _line_after(descriptor: int, offset: int) -> tuple[int, bytes]:
    """The first complete line that starts at or after an offset, and its own offset; empty if it is too long."""
    before = max(0, offset - 1)  # the newline before it shows that a line starts at the offset
    length = _LINE
    while length <= 2 * _LONGEST_LINE:
        data = os.pread(descriptor, length, before)
        start = 0 if offset == 0 else data.find(b"\n") + 1
        end = data.find(b"\n", start)
        if end >= 0 and (start or offset == 0):
            return before + start, data[start:end]
        if len(data) < length:
            break  # the end of the file
        length *= 8
    return 0, b""


def _last_line(descriptor: int, size: int) -> tuple[int, bytes]:
    """The last complete line of a file of this size, and its offset; empty if it is too long."""
    length = 2 * _LINE
    while length <= 2 * _LONGEST_LINE:
        before = max(0, size - length)
        data = os.pread(descriptor, size - before, before)
        end = data.rfind(b"\n")
        start = data.rfind(b"\n", 0, max(end, 0)) + 1
        if end > 0 and (start or before == 0):
            return before + start, data[start:end]
        if before == 0:
            break
        length *= 8
    return 0, b""
