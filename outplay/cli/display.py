"""Progress output of a run: a live panel on a terminal (`panel.py`), lines elsewhere, JSON with `--json`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from outplay.cli.output import discard, heartbeat
from outplay.formatting import number
from outplay.live import LiveArea, is_live_terminal
from outplay.metrics import running_mean
from outplay.runs.history import as_json as to_json

if TYPE_CHECKING:
    from outplay.runs.run import Run


@dataclass(frozen=True)
class Display:
    show: Callable[[dict[str, Any]], None]  # called with the result of each iteration
    close: Callable[[], None] = lambda: None  # releases the terminal


@contextmanager
def display(run: Run, as_json: bool, out: TextIO, err: TextIO) -> Iterator[Display]:
    """Shows the results of a run, until the block ends."""
    by_episode = run.experiment.show == "episodes" and not as_json
    if is_live_terminal(out) and not as_json and not by_episode:
        from outplay.cli.panel import Panel

        panel = Panel(run)
        with LiveArea(out, panel.render, keep=True) as area:
            yield Display(panel.show, area.close)
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
        yield Display(show_line)


def line(result: dict[str, Any]) -> str:
    """The result of an iteration as one line."""
    mean, least, greatest = (result[f"episode_return_{name}"] for name in ("mean", "min", "max"))
    returns = f"return {number(mean)} ({number(least)} to {number(greatest)})"
    if math.isnan(mean):
        returns = _losses(result["learner"]) if "epochs" in result["learner"] else "no episode yet"
    evaluation = result.get("evaluation")
    evaluated = "" if evaluation is None else f"  evaluation {number(evaluation['episode_return_mean'])}"
    return (
        f"iteration {result['training_iteration']}  steps {result['timesteps_total']:,}  {returns}  "
        f"{result['env_steps_per_s']:,.0f} steps/s  {result['time_total_s']:.1f} s{evaluated}"
    )


def _losses(metrics: dict[str, float]) -> str:
    """What an algorithm has that learns from recorded data: the losses, and the passes over the data."""
    losses = [f"{name.replace('_', ' ')} {metrics[name]:.4g}" for name in sorted(metrics) if name.endswith("loss")]
    return "  ".join([*losses, f"epochs {metrics['epochs']:.4g}"])


def episode_lines(result: dict[str, Any], running: float | None) -> tuple[str, float | None]:
    """One line per episode of an iteration. Returns the lines, and the running mean after the last episode."""
    lines = []
    for value in result["episode_returns"]:
        running = running_mean(running, value)
        lines.append(f"batch {result['training_iteration']}, reward {value:g}, running mean {number(running, 2)}")
    return "\n".join(lines), running
