"""Progress output of a run: a live panel on a terminal, lines elsewhere, JSON with `--json`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from outplay.cli.output import discard, heartbeat, number
from outplay.metrics import running_mean
from outplay.runs.history import as_json as to_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from outplay.runs.run import Run

Show = Callable[[dict[str, Any]], None]

_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 60  # characters


@contextmanager
def display(run: Run, as_json: bool, out: TextIO, err: TextIO) -> Iterator[Show]:
    """Yields a function that shows a result. Call it after each iteration."""
    by_episode = run.experiment.show == "episodes" and not as_json
    if out.isatty() and not as_json and not by_episode:
        with _panel(run, out) as show:
            yield show
        return

    running = run.algorithm.episodes.running

    def show_line(result: dict[str, Any]) -> None:
        nonlocal running
        if by_episode:
            text, running = episode_lines(result, running)
        else:
            text = to_json(result) if as_json else line(result)
        if not text:  # no episode ended
            return
        reset_timer()
        try:
            print(text, file=out, flush=True)
        except BrokenPipeError:  # the reader (`head`, for example) has closed the pipe: save, then stop
            discard(out)
            run.request_stop("stdout was closed by its reader")

    def current_stage() -> str:
        stage = run.algorithm.timers.stage
        return f"after iteration {run.algorithm.iteration}{', ' * bool(stage)}{stage}"

    with heartbeat(current_stage, err) as reset_timer:
        yield show_line


def line(result: dict[str, Any]) -> str:
    """The result of an iteration as one line."""
    mean, least, greatest = (result[f"episode_return_{name}"] for name in ("mean", "min", "max"))
    returns = "no episode yet" if math.isnan(mean) else f"return {number(mean)} ({number(least)} to {number(greatest)})"
    evaluation = result.get("evaluation")
    evaluated = "" if evaluation is None else f"  evaluation {number(evaluation['episode_return_mean'])}"
    return (
        f"iteration {result['training_iteration']}  steps {result['timesteps_total']:,}  {returns}  "
        f"{result['env_steps_per_s']:,.0f} steps/s  {result['time_total_s']:.1f} s{evaluated}"
    )


def episode_lines(result: dict[str, Any], running: float | None) -> tuple[str, float | None]:
    """One line per episode of an iteration. Returns the lines, and the running mean after the last episode."""
    lines = []
    for value in result["episode_returns"]:
        running = running_mean(running, value)
        lines.append(f"batch {result['training_iteration']}, reward {value:g}, running mean {number(running, 2)}")
    return "\n".join(lines), running


@contextmanager
def _panel(run: Run, out: TextIO) -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    returns: list[float] = []
    with Live(_empty_panel(run), console=Console(file=out), refresh_per_second=8, transient=False) as live:

        def show(result: dict[str, Any]) -> None:
            if not math.isnan(result["episode_return_mean"]):
                returns.append(result["episode_return_mean"])
            live.update(_panel_of(run, result, returns))

        yield show


def _empty_panel(run: Run) -> RenderableType:
    from rich.panel import Panel

    return Panel("running the first iteration …", title=_title(run))


def _title(run: Run) -> str:
    return f"{type(run.algorithm).__name__} on {run.algorithm.env_spec.name}"


def _panel_of(run: Run, result: dict[str, Any], returns: list[float]) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    facts.add_row("iteration", f"{result['training_iteration']:,}", "steps", f"{result['timesteps_total']:,}")
    facts.add_row("episodes", f"{result['episodes_total']:,}", "steps/s", f"{result['env_steps_per_s']:,.0f}")
    facts.add_row("return", number(result["episode_return_mean"]), "time", f"{result['time_total_s']:.1f} s")
    if "evaluation" in result:
        facts.add_row("evaluation", number(result["evaluation"]["episode_return_mean"]))
    goal = Table.grid(padding=(0, 2))
    goal.add_column()
    goal.add_column(width=40)
    goal.add_row(_goal(run), ProgressBar(total=1.0, completed=run.progress(result)))
    stages = {name: seconds for name, seconds in result["stages_s"].items() if "/" not in name}
    total = sum(stages.values()) or 1.0
    shares = "   ".join(
        f"{name} {seconds / total:.0%}" for name, seconds in sorted(stages.items(), key=lambda s: -s[1])
    )
    return Panel(Group(goal, facts, f"return   {sparkline(returns)}", f"stages   {shares}"), title=_title(run))


def _goal(run: Run) -> str:
    stop = run.experiment.stop
    return "until " + " or ".join(f"{name} ≥ {value:g}" for name, value in stop.items()) if stop else "until Ctrl-C"


def sparkline(values: list[float], width: int = _CURVE) -> str:
    """A learning curve as one line of text.

    >>> sparkline([0.0, 5.0, 10.0])
    '▁▄█'
    """
    if len(values) > width:  # averages over equal intervals
        edges = [len(values) * i // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in values)
