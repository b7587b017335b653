"""`outplay bundle` and `outplay unbundle`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from outplay.cli import completion
from outplay.formatting import counted


def bundle(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, or an experiment (its newest run).", autocompletion=completion.runs),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip file to write; it must not exist.")],
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Include all checkpoints, not just the newest.")
    ] = False,
    replay: Annotated[
        bool,
        typer.Option("--replay/--no-replay", help="Include the replay buffer, which only resuming the run needs."),
    ] = True,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
) -> None:
    """Write a run to one file, to move it to another machine.

    \b
    outplay bundle cartpole cartpole.zip
    outplay evaluate cartpole.zip
    outplay train cartpole --init-from cartpole.zip
    outplay unbundle cartpole.zip
    """
    from outplay.runs.bundles import write_bundle
    from outplay.runs.finding import find_run
    from outplay.runs.folder import RunFolder
    from outplay.runs.results import results_folder

    folder = RunFolder(find_run(run, results_folder(results_dir)))
    written = write_bundle(folder, file, all_checkpoints, replay)
    typer.echo(f"{written.path}: {written.run}, {counted(written.files, 'file')}, {written.size / 1e6:.1f} MB")


def unbundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `outplay bundle` wrote.")],
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
) -> None:
    """Unpack a run from a bundle.

    Every file is verified by its hash. Nothing is executed.
    """
    from outplay.runs.bundles import unpack
    from outplay.runs.results import results_folder

    unpacked = unpack(file, results_folder(results_dir))
    typer.echo(f"{counted(unpacked.files, 'file')} verified; the run is in {unpacked.path}")
    options = "" if results_dir is None else f" --results-dir {shlex.quote(str(results_dir))}"
    if unpacked.is_complete:
        typer.echo(f"to train it further: outplay train --resume {unpacked.run} --stop METRIC=VALUE{options}")
    else:
        typer.echo("it has no replay buffer, so it cannot be resumed")
        typer.echo(f"to evaluate it: outplay evaluate {unpacked.run}{options}")
