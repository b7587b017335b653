"""Series: curves of metrics. Long files are first sampled; a thread then reads them, part by part."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outplay.dashboard.entries import Entry, signature_of
from outplay.dashboard.summary import Curve, Summary, columns_of
from outplay.errors import OutplayError
from outplay.runs.folder import RunFolder
from outplay.runs.history import Position

log = logging.getLogger("outplay")

X_NAMES = ("timesteps_total", "time_total_s", "episodes_total", "training_iteration")
MOST_POINTS = 2000
_AT_ONCE = 16_000_000  # bytes that a request reads itself, for all its runs together
_PART = 2_000_000  # bytes per step of the reader
_SAMPLES = 400
_RESAMPLE = 1.1  # growth of the file after which it is sampled again
_ZOOM_BYTES = 64_000_000  # that a request reads again to show a part of its curves in full detail
_NICE = 10  # of the thread that reads: training goes first


@dataclass
class _File:
    """What is known of one run's metrics.jsonl."""

    folder: RunFolder
    summary: Summary
    end: Position
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while the file is read
    is_queued: bool = False  # the thread reads it, nobody else does
    sampled: Summary | None = None
    sampled_size: int = 0

    @property
    def nbytes(self) -> int:
        return self.summary.nbytes + (0 if self.sampled is None else self.sampled.nbytes)


class SeriesStore:
    """Summaries of runs, with bounded memory. `curve` may be called from any thread."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._files: OrderedDict[str, _File] = OrderedDict()  # by run id; the last one was asked for last
        self._queue: OrderedDict[str, _File] = OrderedDict()
        self._lock = threading.RLock()
        self._is_wanted = threading.Condition(self._lock)
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._is_wanted.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(file.nbytes for file in self._files.values())

    def curves(
        self, entries: Iterable[Entry], metric: str, x: str, points: int, low: float, high: float
    ) -> list[tuple[Entry, Curve, bool]]:
        """The curves of runs, and whether each is exact, that is, computed from all lines."""
        budget, found = _AT_ONCE, []
        entries = list(entries)
        for entry in entries:
            file = self._file(entry)
            used, is_exact = self._read_now(entry.id, file, budget)
            budget -= used
            with self._lock:
                summary = file.summary if is_exact or file.sampled is None else file.sampled
                curve = summary.curve(metric, x, points, low, high)
            if is_exact and (np.isfinite(low) or np.isfinite(high)):
                most_bytes = _ZOOM_BYTES // len(entries)
                curve = self._zoomed(file, curve, metric, x, points, low, high, most_bytes)
            found.append((entry, curve, is_exact))
        self._forget()
        return found

    def metrics(self, entry: Entry) -> list[str]:
        """The names of a run's metrics: all that were ever seen in its file, as far as it was read."""
        file = self._file(entry)
        self._read_now(entry.id, file, _AT_ONCE // 16)
        with self._lock:
            names = [*file.summary.metrics, *(file.sampled.metrics if file.sampled is not None else ())]
        self._forget()
        return list(dict.fromkeys(names))

    def _file(self, entry: Entry) -> _File:
        with self._lock:
            file = self._files.get(entry.id)
            if file is None or file.folder is not entry.folder:
                file = self._files[entry.id] = _File(entry.folder, Summary(), Position())
            self._files.move_to_end(entry.id)
            return file

    def _read_now(self, run_id: str, file: _File, budget: int) -> tuple[int, bool]:
        """Read the new lines, if they are few; otherwise the thread reads them.

        Returns how many bytes were read, and whether these were all.
        """
        signature = signature_of(file.folder.path / "metrics.jsonl")
        size = 0 if signature is None else signature[1]
        used = 0
        if not file.is_queued and size - file.end.offset <= budget:
            with file.lock:  # another request may read the same file
                is_done = False
                while not is_done and used <= max(0, budget):
                    before = file.end.offset
                    is_done = self._read_part(file)
                    used += abs(file.end.offset - before)
            if is_done:
                return used, True
        self._sample(file, size)
        with self._lock:
            if not file.is_queued and not self._is_stopped:
                file.is_queued = True
                self._queue[run_id] = file
                self._start_thread()
                self._is_wanted.notify()
        return used, False

    def _read_part(self, file: _File) -> bool:
        """Read the next part. Returns whether the file has no more complete lines. The caller has the file's lock."""
        try:
            part = file.folder.part_of_metrics(file.end, _PART)
        except OutplayError as error:  # removed, or no file: there is nothing to show
            log.debug("%s", error)
            with self._lock:
                file.summary, file.end, file.sampled = Summary(), Position(), None
            return True
        columns = columns_of(part.results)
        with self._lock:
            if part.rewritten:
                file.summary, file.sampled = Summary(), None
            file.summary.add(columns, part.offsets)
            file.end = part.end
            if part.is_last:
                file.sampled = None
        return part.is_last

    def _sample(self, file: _File, size: int) -> None:
        if file.sampled is not None and file.sampled_size <= size < file.sampled_size * _RESAMPLE:
            return
        summary = Summary()
        try:
            part = file.folder.sampled_metrics(_SAMPLES)
        except OutplayError as error:
            log.debug("%s", error)
        else:
            summary.add(columns_of(part.results), part.offsets)
        with self._lock:
            file.sampled, file.sampled_size = summary, size

    def _zoomed(
        self,
        file: _File,
        curve: Curve,
        metric: str,
        x: str,
        points: int,
        low: float,
        high: float,
        most_bytes: int,
    ) -> Curve:
        """The curve in more detail, if its buckets are too coarse and the part of the file is small."""
        with self._lock:
            if not curve.has_band or file.summary.size == 1:
                return curve
            span = file.summary.span(x, low, high)
            end = file.end.offset
        if span is None:
            return curve
        start, stop = span[0], end if span[1] < 0 else span[1]
        if not 0 <= stop - start <= most_bytes:
            return curve
        try:
            part = file.folder.lines_of_metrics(start, stop)
        except OutplayError:
            return curve
        detail = Summary(max(2 * points, 2))
        detail.add(columns_of(part.results), part.offsets)
        found = detail.curve(metric, x, points, low, high)
        return Curve(found.x, found.mean, found.low, found.high, found.has_band, curve.total)

    # The thread.

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_queued, name="series", daemon=True)
            self._thread.start()

    def _read_queued(self) -> None:
        _lower_priority()
        while True:
            with self._lock:
                while not self._queue and not self._is_stopped:
                    self._is_wanted.wait()
                if self._is_stopped:
                    return
                run_id, file = next(iter(self._queue.items()))
                is_forgotten = self._files.get(run_id) is not file
            with file.lock:
                is_done = is_forgotten or self._read_part(file)
            if is_done:
                with self._lock:
                    file.is_queued = False
                    del self._queue[run_id]

    def _forget(self) -> None:
        """Forget the summaries that were not asked for longest, until the others fit into the memory."""
        with self._lock:
            used = self.nbytes
            while used > self._memory_bytes and len(self._files) > 1:
                _, file = self._files.popitem(last=False)
                used -= file.nbytes


def _lower_priority() -> None:
    """Linux gives each thread its own priority; elsewhere the thread keeps that of the process."""
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        except OSError:
            log.debug("the priority of the reading thread could not be changed")


def series_answer(found: list[tuple[Entry, Curve, bool]], metric: str, x: str) -> dict[str, Any]:
    """The answer of /api/series."""
    series = []
    for entry, curve, is_exact in found:
        low, high = (curve.low.tolist(), curve.high.tolist()) if curve.has_band else (None, None)
        series.append(
            {
                "run": entry.id,
                "x": curve.x.tolist(),
                "y": curve.mean.tolist(),
                "low": low,
                "high": high,
                "exact": is_exact,
                "total": curve.total,
            }
        )
    return {"metric": metric, "x": x, "series": series}
