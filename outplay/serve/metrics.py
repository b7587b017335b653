"""Metrics of a server in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counter:
    """A number that grows, for each combination of label values."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self._labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + by

    def samples(self) -> Iterator[str]:
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_labelled(zip(self._labels, labels, strict=True))} {_number(value)}"


class Gauge:
    """A number that is read when metrics are asked for."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.name, self.text, self._read = name, text, read

    def samples(self) -> Iterator[str]:
        yield f"{self.name} {_number(self._read())}"


class Histogram:
    """How many values were at most each bound. `observe` may be called from any thread."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self._bounds = name, text, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect.bisect_left(self._bounds, value)] += 1
            self._sum += value

    def samples(self) -> Iterator[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        cumulative = 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            cumulative += count
            yield f"{self.name}_bucket{_labelled([('le', _number(bound))])} {cumulative}"
        yield f"{self.name}_sum {_number(total)}"
        yield f"{self.name}_count {cumulative}"


class ServerMetrics:
    """All metrics of a server."""

    def __init__(self) -> None:
        self.requests = Counter(
            "outplay_requests_total", "HTTP requests and WebSocket messages, by path and status.", ("path", "status")
        )
        self.request_seconds = Histogram("outplay_request_seconds", "Time from request to response.", _SECONDS)
        self.batch_rows = Histogram("outplay_batch_observations", "Observations per batch, without padding.", _ROWS)
        self.inference_seconds = Histogram("outplay_inference_seconds", "Time of one batch in the policy.", _SECONDS)
        self.reloads = Counter("outplay_reloads_total", "New checkpoints that were loaded.")
        self.reload_failures = Counter("outplay_reload_failures_total", "New checkpoints that could not be loaded.")
        self._gauges: list[Gauge] = []

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._gauges.append(Gauge(name, text, read))

    def text(self) -> str:
        lines = []
        metrics: list[Counter | Gauge | Histogram] = [self.requests, self.request_seconds, self.batch_rows]
        metrics += [self.inference_seconds, self.reloads, self.reload_failures, *self._gauges]
        for metric in metrics:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *metric.samples()]
        return "\n".join(lines) + "\n"


def _labelled(pairs: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return "{" + text + "}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """As Prometheus reads it: +Inf, integers without a fraction."""
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))
