"""A progress bar for `learn(progress=True)`, in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from outplay.metrics import Result
    from outplay.runs.run import Run


@contextmanager
def progress_bar(run: Run, console: Console | None = None) -> Iterator[Callable[[Result], None]]:
    """Show the progress towards the run's stop conditions. Yields a function that is called with each result."""
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%")),
        *(TextColumn("{task.fields[facts]}"), TimeRemainingColumn(), TextColumn("left")),
    )
    already = run.progress(run.last_result)  # of an earlier call: the bar begins at 0
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{type(run.algorithm).__name__} on {run.algorithm.env_spec.name}", total=1.0, facts="")

        def show(result: Result) -> None:
            done = run.progress(result)
            share = (done - already) / (1 - already) if already < 1 else 1.0
            bar.update(task, completed=max(0.0, share), facts=_facts(result))

        yield show


def _facts(result: Mapping[str, Any]) -> str:
    mean = result["episode_return_mean"]
    returned = "" if mean != mean else f"  return {mean:.1f}"
    return f"{result['env_steps_per_s']:,.0f} steps/s{returned}"
