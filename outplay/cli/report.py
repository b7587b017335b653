"""`outplay report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outplay.cli import completion
from outplay.errors import ConfigError


def report(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, or an experiment (its newest run).", autocompletion=completion.runs),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The page to write; default: report.html of the run."),
    ] = None,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
) -> None:
    """Write a page about a run: curves, settings, checkpoints and its last video, in one HTML file.

    The page needs no network. For a study: outplay tune report STUDY.

    \b
    outplay report cartpole -o report.html
    """
    import shlex

    from outplay.plotting.sources import study_folder
    from outplay.runs.finding import find_run
    from outplay.runs.folder import RunFolder
    from outplay.runs.results import results_folder

    results = results_folder(results_dir)
    if study_folder(run, results) is not None:
        where = "" if results_dir is None else f" --results-dir {shlex.quote(str(results_dir))}"
        raise ConfigError(f"{run} is a study; its report: outplay tune report {shlex.quote(run)}{where}")
    from outplay.plotting.report import write_report

    folder = RunFolder(find_run(run, results))
    path = folder.path / "report.html" if output is None else output
    write_report(folder, path)
    typer.echo(f"page: {path}")
