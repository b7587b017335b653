"""`outplay plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outplay.cli import completion
from outplay.errors import ConfigError, nearest


def plot(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Runs, experiments (all their runs) or studies.", autocompletion=completion.runs
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The figure: .svg, .pdf or .png."),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the plotted numbers.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Default episode_return_mean; repeatable: one panel each."),
    ] = None,
    x: Annotated[
        str,
        typer.Option(
            metavar="METRIC",
            help="The x-axis: timesteps_total, time_total_s, episodes_total or training_iteration.",
            autocompletion=completion.x_metrics,
        ),
    ] = "timesteps_total",
    no_bands: Annotated[
        bool, typer.Option("--no-bands", help="Draw each run, not the inter-quartile mean over seeds with a band.")
    ] = False,
    smooth: Annotated[
        float, typer.Option(metavar="WEIGHT", help="Weight of a moving average, from 0 (none) to below 1.")
    ] = 0.0,
    log_x: Annotated[bool, typer.Option("--log-x", help="Logarithmic x-axis.")] = False,
    log_y: Annotated[bool, typer.Option("--log-y", help="Logarithmic y-axis.")] = False,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the figure.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Label of a curve; repeatable, in their order.")
    ] = None,
    width: Annotated[float | None, typer.Option(min=1, max=100, metavar="INCHES", help="Width of the figure.")] = None,
    height: Annotated[
        float | None, typer.Option(min=1, max=100, metavar="INCHES", help="Height of the figure.")
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=100_000, metavar="N", help="Points per curve at most.")] = 400,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
) -> None:
    """Plot learning curves of runs: a figure for a paper, and its numbers.

    Runs that differ only in the seed become one curve: the inter-quartile mean with a 95 % bootstrap band.

    \b
    outplay plot cartpole -o curve.svg
    outplay plot cartpole cartpole-dqn --label PPO --label DQN -o both.pdf
    outplay plot cartpole --metric learner/kl --metric learner/entropy -o learner.png
    """
    if output is None and csv is None:
        raise ConfigError("give the file of the figure, as -o curve.svg, or of its numbers, as --csv curve.csv")
    kind = "" if output is None else _kind(output)
    from outplay.plotting.figure import Look, check_matplotlib, rendered
    from outplay.plotting.output import check_writable, write_files
    from outplay.plotting.panels import Drawing, panels_of
    from outplay.plotting.sources import X_METRICS, find_sources, translated
    from outplay.plotting.table import as_csv
    from outplay.runs.results import results_folder

    if x not in X_METRICS:
        raise ConfigError(f"--x: no x-axis {x!r}{nearest(x, X_METRICS)}")
    if kind:
        check_matplotlib()
    for path in filter(None, (output, csv)):
        check_writable(path)
    drawing = Drawing(
        metrics=tuple(dict.fromkeys(map(translated, metric or ["episode_return_mean"]))),
        x=x,
        bands=not no_bands,
        smooth=smooth,
        points=points,
        labels=tuple(label or ()),
    )
    panels, remarks = panels_of(find_sources(runs, results_folder(results_dir)), drawing)
    look = Look(title=title, width=width, height=height, log_x=log_x, log_y=log_y)
    files: dict[Path, str | bytes] = {}
    if output is not None:
        files[output] = rendered(panels, look, kind)
    if csv is not None:
        files[csv] = as_csv(panels)
    write_files(files)
    for remark in remarks:
        typer.echo(remark, err=True)
    for path in files:
        typer.echo(f"{'figure' if path is output else 'numbers'}: {path}")


def _kind(output: Path) -> str:
    from outplay.plotting.figure import FORMATS

    kind = output.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        names = ", ".join(f".{name}" for name in FORMATS)
        raise ConfigError(f"-o {output}: the name of a figure ends in {names}")
    return kind
