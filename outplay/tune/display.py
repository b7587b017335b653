"""The progress of a study: a table that is redrawn in a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from outplay.formatting import duration
from outplay.live import LiveArea, above, is_live_terminal
from outplay.messages import above_live_area
from outplay.runs.results import results_folder
from outplay.tune.callbacks import Callback
from outplay.tune.ledger import REPORT
from outplay.tune.objective import Objective, known
from outplay.tune.text import (
    error_text,
    metric_text,
    table,
    time_text,
    value_text,
    values_text,
    variable_text,
    variables_of,
)
from outplay.tune.trial import Metrics, Status, Trial
from outplay.tune.worker import RELAY

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LINE_S = 10.0  # between two lines, without a terminal
_COUNTS = {
    Status.RUNNING: "running",
    Status.PENDING: "pending",
    Status.PAUSED: "paused",
    Status.TERMINATED: "done",
    Status.ERROR: "failed",
}


class StudyDisplay(Callback):
    """Shows a study while it runs. Each call only stores what it is given; a thread draws."""

    def __init__(self, out: TextIO | None = None) -> None:
        """`out`: default stdout."""
        self._given_out = out
        self._trials: Sequence[Trial] = ()
        self._errors: set[str] = set()
        self._ended_trials, self._ended_seconds = 0, 0.0  # of trials that ended since the start or resume
        self._live = ExitStack()  # the live area, and what prints above it
        self._closed = threading.Event()

    # What the study says.

    def setup(self, **info: Any) -> None:
        self._name, self._folder = str(info["study"]), Path(info["folder"])
        self._objective: Objective = info["objective"]
        self._total: int | None = info["total"]
        self._budget: float | None = info["time_budget_s"]
        self._spent = float(info["seconds"])  # in earlier sessions
        self._started = time.monotonic()
        self._handled = sys.exception()  # `tune.run` may be called while an exception is handled
        self._out = sys.stdout if self._given_out is None else self._given_out
        is_main = threading.current_thread() is threading.main_thread()  # only it can handle signals
        if is_main and is_live_terminal(self._out):
            if self._given_out is None:  # the command line separates the output of trials itself
                self._out = self._live.enter_context(above_live_area(self._folder / RELAY))
            self._live.enter_context(LiveArea(self._out, self.render, keep=False))
        else:
            threading.Thread(target=self._print_lines, name="study display", daemon=True).start()

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        self._trials = trials

    def on_trial_result(
        self,
        iteration: int,  # noqa: ARG002
        trials: Sequence[Trial],
        trial: Trial,  # noqa: ARG002
        result: Metrics,  # noqa: ARG002
        **info: Any,  # noqa: ARG002
    ) -> None:
        self._trials = trials

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        self._trials = trials
        self._ended_trials += 1
        self._ended_seconds += trial.seconds

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.on_trial_complete(iteration, trials, trial, **info)
        text = error_text(trial.error)
        kind = re.sub(r"[\d.e+-]+", "#", text)  # one bug may fail hundreds of trials
        if kind not in self._errors:
            self._errors.add(kind)
            self._print(f"trial {trial.id} failed: {text}")

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:  # noqa: ARG002
        self._trials = trials
        self._closed.set()
        self._live.close()
        self._out = sys.stdout if self._given_out is None else self._given_out
        self._print("\n".join(self.summary()))

    # What is known of the study.

    @property
    def _searched(self) -> list[Trial]:
        return [trial for trial in self._trials if trial.id != REPORT]

    @property
    def _seconds(self) -> float:
        return self._spent + time.monotonic() - self._started

    def best(self) -> Trial | None:
        """The best of the trials that have ended; before any has, of those that run.

        A metric such as the number of steps, which is to be small, is the smallest in a trial that has just begun.
        """
        if not self._objective.metrics:
            return None
        score = self._objective.score
        ended = [trial for trial in self._searched if trial.status.is_finished and trial.last_result]
        tried = [(known(score(trial.last_result)), -trial.index, trial) for trial in ended or self._searched]
        value, _, trial = max(tried, default=(float("-inf"), 0, None))
        return None if value == float("-inf") else trial

    def time_left(self) -> float | None:
        """Seconds until all trials have ended, at the rate so far; None if it cannot be told.

        A trial that runs counts as done by the share of the mean time of the trials that have ended.
        """
        limits = []
        if self._budget is not None:
            limits.append(max(0.0, self._budget - self._seconds))
        elapsed = time.monotonic() - self._started
        if self._total is not None and self._ended_trials and elapsed > 0:
            mean = self._ended_seconds / self._ended_trials
            unfinished = [trial for trial in self._searched if not trial.status.is_finished]
            shares = [min(trial.seconds / mean, 0.95) if mean > 0 else 0.0 for trial in unfinished]
            left = self._total - (len(self._searched) - len(unfinished)) - sum(shares)
            limits.append(max(0.0, left) * elapsed / (self._ended_trials + sum(shares)))
        return min(limits, default=None)

    def _counts(self) -> list[str]:
        counts = Counter(trial.status for trial in self._searched)
        if self._total is not None and counts[Status.PENDING] == 0:
            counts[Status.PENDING] = max(0, self._total - len(self._searched))  # not suggested yet
        return [f"{counts[status]} {word}" for status, word in _COUNTS.items() if counts[status]]

    def _progress(self) -> str:
        searched = self._searched
        ended = sum(trial.status.is_finished for trial in searched)
        total = "" if self._total is None else f" of {max(self._total, len(searched))}"
        left = self.time_left()
        time_left = "? left" if left is None else f"{duration(left)} left"
        return f"{ended}{total} trials, {duration(self._seconds)}, {time_left}"

    def _best_text(self, trial: Trial) -> str:
        objective = self._objective
        names = zip(objective.metrics, (Objective((m,), ("max",)) for m in objective.metrics), strict=True)
        figures = ", ".join(f"{name} {metric_text(one.value(trial.last_result))}" for name, one in names)
        return figures if trial.id == REPORT else f"{figures} (trial {trial.id})"

    # Lines.

    def _print(self, text: str) -> None:
        with above(), suppress(OSError, ValueError):  # the reader is gone
            print(text, file=self._out, flush=True)

    def _print_lines(self) -> None:
        while not self._closed.wait(_LINE_S):
            self._print(self.line())

    def line(self) -> str:
        best = self.best()
        found = "" if best is None else f"; best {self._best_text(best)}: {values_text(best.values)}"
        return f"{self._name}: {self._progress()}; {', '.join(self._counts()) or 'starting'}{found}"

    def summary(self) -> list[str]:
        """What is printed at the end."""
        counts = Counter(trial.status for trial in self._searched)
        unfinished = sum(number for status, number in counts.items() if not status.is_finished)
        parts = [(counts[Status.TERMINATED], "done"), (counts[Status.ERROR], "failed"), (unfinished, "unfinished")]
        told = ", ".join(f"{number} {word}" for number, word in parts if number) or "no trial"
        lines = [f"{told} in {duration(self._seconds)}; the study is in {self._folder}"]
        if (best := self.best()) is not None:
            lines.append(f"best: {self._best_text(best)}: {values_text(best.values) or 'no variables'}")
            lines += [
                f"on seeds that the search has not used: {self._best_text(trial)}"
                for trial in self._trials
                if trial.id == REPORT and trial.last_result
            ]
        if self._given_out is None and sys.exception() is not self._handled:  # the command line has --resume instead
            lines.append(f"interrupted; to resume: the same call with name={self._name!r}, resume=True")
        if self._searched:
            lines.append(f"to see all trials: outplay tune report {argument_of(self._folder)}")
        return lines

    # The table.

    def render(self, size: os.terminal_size, is_last: bool = False) -> RenderableType:  # noqa: ARG002
        from rich import box
        from rich.console import Group
        from rich.panel import Panel as Frame
        from rich.text import Text

        width, height = size.columns - 4, max(1, size.lines - 3)  # the frame, and a line for the cursor
        head = [self._bar(width), *self._labelled("trials", [", ".join(self._counts()) or "starting"], width)]
        if (best := self.best()) is not None:
            head += self._labelled("best", [self._best_text(best), values_text(best.values)], width)
        running = [trial for trial in self._trials if trial.status == Status.RUNNING]
        room = height - len(head) - 2  # an empty line, the header
        body = [Text(""), *self._running(running, width, room)] if running and room >= 1 else []
        frame = Group(*[*head, *body][:height])
        return Frame(
            frame, title=Text(self._name), title_align="left", box=box.ROUNDED, width=size.columns, border_style="dim"
        )

    def _bar(self, width: int) -> Text:
        """The share of trials that have ended, and the time left."""
        from rich.text import Text

        text = self._progress()
        ended = sum(trial.status.is_finished for trial in self._searched)
        room = min(30, width - len(text) - 2)
        if self._total is None or room < 10:
            return Text(text, no_wrap=True, overflow="ellipsis")
        filled = round(room * min(1.0, ended / max(1, self._total)))
        bar = Text(no_wrap=True, overflow="ellipsis").append("━" * filled, style="cyan")
        return bar.append("━" * (room - filled), style="dim").append("  " + text)

    def _labelled(self, label: str, texts: Sequence[str], width: int) -> list[Text]:
        from rich.text import Text

        lines = []
        for i, text in enumerate(texts):
            line = Text(no_wrap=True, overflow="ellipsis").append(f"{label if i == 0 else '':<8}", style="dim")
            line.append(text)
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
        return lines

    def _running(self, trials: Sequence[Trial], width: int, room: int) -> list[Text]:
        """The trials that run, in at most `room` lines and a header."""
        from rich.text import Text

        shown = trials if len(trials) <= room else trials[: max(0, room - 1)]
        variables = variables_of(shown)
        metric = self._objective.metrics[:1]
        header = ["trial", "iteration", *metric, "time", *map(variable_text, variables)]
        rows = []
        for trial in shown:
            value = [metric_text(self._objective.value(trial.last_result)) for _ in metric]
            cells = [value_text(trial.values[name], 20) if name in trial.values else "–" for name in variables]
            rows.append([trial.id, f"{trial.iteration:,}", *value, time_text(trial.seconds), *cells])
        lines = table(header, rows, width, left=(0,))
        texts = [Text(line, style="dim" if i == 0 else "", no_wrap=True) for i, line in enumerate(lines)]
        if more := len(trials) - len(shown):
            texts.append(Text(f"… {more} more", style="dim"))
        return texts


def argument_of(folder: Path) -> str:
    """What names a study on the command line: its name, or its path if it is not in the default folder."""
    is_default = folder.parent.absolute() == results_folder(None).absolute()
    return shlex.quote(folder.name if is_default else str(folder))
