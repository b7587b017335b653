"""The live panel of a training run."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outplay.cli.curve import Curve
from outplay.formatting import duration, number
from outplay.machine import Usage

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from outplay.runs.run import Run

# The learner's metrics that are shown, if there are any of them.
_KEY_FIGURES = (
    *("policy_loss", "vf_loss", "loss", "q_mean", "entropy", "kl", "clip_fraction", "explained_variance"),
    *("epsilon", "stddev", "grad_norm", "lr"),
)
_MOST_FIGURES = 8
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_USAGE_S = 1.0  # between two samples of CPU and memory
_LABEL = 10  # characters
_BAR = 40  # characters
_CURVE_ROWS = 8
_WINDOW = 60  # samples, at most one per second, from which the time left is estimated


class Panel:
    """What the panel shows. `show` is called in the main thread after each iteration, `render` in another thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._result: dict[str, Any] = run.last_result
        self._result_at = time.monotonic()
        self._curve = Curve()
        self._time_left = TimeLeft()
        self._usage = Usage()
        self._usage_at = time.monotonic()
        self._stage, self._stage_at = "", time.monotonic()
        self._restarts = 0
        self._frame = 0
        for result in run.folder.results_until(run.algorithm.iteration)[0]:
            self._add_to_curve(result)
        self._time_left.add(run.fractions(run.last_result), is_start=True)

    def show(self, result: dict[str, Any]) -> None:
        self._result, self._result_at = result, time.monotonic()
        self._restarts = sum(self._run.algorithm.worker_restarts)
        self._add_to_curve(result)
        self._time_left.add(self._run.fractions(result))

    def _add_to_curve(self, result: Mapping[str, Any]) -> None:
        value = _value(result, "episode_return_mean")
        if not math.isnan(value):
            self._curve.add(result["timesteps_total"], value)

    # Rendering.

    def render(self, size: os.terminal_size, is_last: bool = False) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.panel import Panel as Frame
        from rich.text import Text

        self._frame += 1
        if time.monotonic() - self._usage_at >= _USAGE_S:
            self._usage.sample()
            self._usage_at = time.monotonic()
        width = size.columns - 4
        lines = [*flow("", [self._ended() if is_last else self._doing()], width), self._progress(width, is_last)]
        lines += [line for row in self._rows() for line in flow(*row, width)]
        path = flow("run", [str(self._run.folder)], width)
        # One line below the panel holds the cursor.
        room = min(_CURVE_ROWS, size.lines - len(lines) - len(path) - 6)
        curve = [Text(line, style="cyan", no_wrap=True) for line in self._curve.lines(width, room if room > 1 else 0)]
        body = [*lines, *([Text(""), *curve] if curve else []), *path][: max(1, size.lines - 3)]
        title = f"{type(self._run.algorithm).__name__} on {self._run.algorithm.env_spec.name}"
        return Frame(Group(*body), title=Text(title), title_align="left", box=box.ROUNDED, width=size.columns)

    def _rows(self) -> Iterator[tuple[str, list[str]]]:
        """Labels and figures."""
        run, result = self._run, self._result
        yield "goal", _goals(run)
        if result:
            yield "return", _returns(result)
            yield (
                "steps",
                [
                    f"{max(result['timesteps_total'], run.algorithm.timesteps):,}",
                    _counted(result["episodes_total"], "episode"),
                    _counted(result["training_iteration"], "iteration"),
                    *([f"{result['env_steps_per_s']:,.0f} steps/s"] if "env_steps_per_s" in result else []),
                    duration(result["time_total_s"]),
                ],
            )
        if learner := key_figures(result.get("learner", {})):
            yield "learner", learner
        if info := result.get("info", {}):
            yield "info", [f"{name} {number(_value(info, name), 3)}" for name in info][:_MOST_FIGURES]
        if stages := _stages(result.get("stages_s", {})):
            yield "stages", stages
        number_of_workers = run.algorithm.num_workers
        yield (
            "workers",
            [
                f"{number_of_workers}" if number_of_workers else "none: the main process collects",
                *([f"{self._restarts} restarted"] if self._restarts else []),
                f"CPU {self._usage.cpu_percent:.0f}%",
                f"memory {self._usage.memory / 2**20:,.0f} MiB",
            ],
        )

    def _doing(self) -> str:
        """What the run does now, with a spinner."""
        run, now = self._run, time.monotonic()
        spinner = _SPINNER[self._frame % len(_SPINNER)]
        if run.stop_reason:
            video = " and recording a video" if run.experiment.video_at_end and not run.is_stopping else ""
            return f"{spinner} {run.stop_reason}: saving{video}"
        stage = run.algorithm.timers.stage
        if stage != self._stage:
            self._stage, self._stage_at = stage, now
        text = f"{spinner} iteration {self._result.get('training_iteration', 0) + 1:,}"
        if stage:
            text += f": {stage}" + (f" {duration(now - self._stage_at)}" if now - self._stage_at >= 1 else "")
        if now - self._result_at - (now - self._stage_at) >= 1:
            text += f" ({duration(now - self._result_at)} in all)"
        return text + (", the last one: stopping" if run.is_stopping else "")

    def _ended(self) -> str:
        return self._run.stop_reason or f"stopped in iteration {self._result.get('training_iteration', 0) + 1:,}"

    def _progress(self, width: int, is_last: bool) -> Text:
        from rich.text import Text

        if not self._run.experiment.stop:
            return Text("")
        progress = self._run.progress(self._result)
        left = None if is_last else self._time_left.seconds()
        rest = f" {math.floor(progress * 100)}%" + ("" if left is None else f"  about {duration(left)} left")
        bar = max(1, min(_BAR, width - len(rest)))
        done = round(progress * bar)
        return Text.assemble(("━" * done, "green"), ("━" * (bar - done), "bright_black"), rest)


class TimeLeft:
    """Estimates the time until a run stops, from the progress of each stop condition over the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=_WINDOW)
        self._has_start = False
        self._left: float | None = None

    def add(self, fractions: Mapping[str, float], is_start: bool = False, now: float | None = None) -> None:
        """Record the progress (0 to 1) of each stop condition."""
        now = time.monotonic() if now is None else now
        samples = self._samples
        if len(samples) > 1 and now - samples[-2][0] < 1:  # the last sample is too close to the one before it
            samples.pop()
        samples.append((now, fractions))
        if is_start:
            self._has_start = True
        elif self._has_start and len(samples) > 2:  # the first iteration starts the workers: it is slower
            samples.popleft()
            self._has_start = False
        started, before = samples[0]
        rates = {name: (value - before.get(name, 0.0)) / (now - started or 1.0) for name, value in fractions.items()}
        times = [(1 - fractions[name]) / rate for name, rate in rates.items() if rate > 0]
        self._left = min(times, default=None)

    def seconds(self, now: float | None = None) -> float | None:
        """Seconds left; None if no stop condition comes closer."""
        if self._left is None:
            return None
        now = time.monotonic() if now is None else now
        return max(0.0, self._left - (now - self._samples[-1][0]))


def flow(label: str, items: list[str], width: int) -> list[Text]:
    """A label and items in as many lines as they need."""
    from rich.text import Text

    indent = _LABEL if label else 0
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= width - indent:
            lines[-1] += f"   {item}"
        else:
            lines += _folded(item, width - indent)
    starts = [label, *[""] * (len(lines) - 1)]
    return [
        Text.assemble((f"{start:<{indent}}", "bright_black"), line, no_wrap=True)
        for start, line in zip(starts, lines, strict=True)
    ]


def _folded(text: str, width: int) -> list[str]:
    width = max(1, width)
    return [text[i : i + width] for i in range(0, len(text), width)]


def key_figures(metrics: Mapping[str, Any]) -> list[str]:
    """The learner's metrics that matter most; the first ones, if none of them is known."""
    known = [name for name in _KEY_FIGURES if name in metrics] or list(metrics)
    return [f"{name} {number(_value(metrics, name), 3)}" for name in known[:_MOST_FIGURES]]


def _value(metrics: Mapping[str, Any], name: str) -> float:
    """A metric; NaN if it is null, as metrics.jsonl has it."""
    value = metrics.get(name)
    return math.nan if value is None else value


def _returns(result: Mapping[str, Any]) -> list[str]:
    if math.isnan(_value(result, "episode_return_mean")):
        return ["no episode has ended yet"]
    named = {"mean": "return_mean", "best": "return_max", "worst": "return_min", "length": "len_mean"}
    figures = [f"{name} {number(_value(result, f'episode_{metric}'))}" for name, metric in named.items()]
    if "evaluation" in result:
        figures.append(f"evaluation {number(_value(result['evaluation'], 'episode_return_mean'))}")
    return figures


def _stages(seconds: Mapping[str, float]) -> list[str]:
    stages = {name: spent for name, spent in seconds.items() if "/" not in name}
    total = sum(stages.values()) or 1.0
    return [f"{name} {spent / total:.0%}" for name, spent in sorted(stages.items(), key=lambda stage: -stage[1])]


def _goals(run: Run) -> list[str]:
    stop = run.experiment.stop
    goals = [f"{name} ≥ {value:,.0f}" if value % 1 == 0 else f"{name} ≥ {value:g}" for name, value in stop.items()]
    return [goals[0], *(f"or {goal}" for goal in goals[1:])] if goals else ["none: until Ctrl-C"]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
