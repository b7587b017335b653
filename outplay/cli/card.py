"""`outplay card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outplay.cli import completion
from outplay.cli.output import separate_output


def card(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, or an experiment (its newest run).", autocompletion=completion.runs),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The folder to write; default: the run's name and -card."),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Evaluate the newest checkpoint for this many episodes; default: known results."),
    ] = None,
    env: Annotated[str | None, typer.Option(help="With --episodes: the environment, if it is an import path.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="With --episodes: import what the checkpoint names.")] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
) -> None:
    """Write a model card: a folder with results, learning curve, video, settings and the model, ready for a model hub.

    Nothing is sent anywhere.
    """
    from outplay.runs.finding import find_run
    from outplay.runs.folder import RunFolder
    from outplay.runs.results import results_folder
    from outplay.sharing.card import check_new, write_card

    results = results_folder(results_dir)
    folder = RunFolder(find_run(run, results))
    target = check_new(folder, output)
    evaluate = None if episodes is None else lambda checkpoint: _evaluated(checkpoint, results, episodes, env, trust)
    typer.echo(f"the model card is in {write_card(folder, target, evaluate)}")


def _evaluated(path: Path, results: Path, episodes: int, env: str | None, trust: bool) -> dict[str, Any]:
    from outplay.errors import RunError
    from outplay.runs.playing import SavedPolicy, play

    settings = {
        "evaluation_duration": episodes,
        "evaluation_duration_unit": "episodes",
        "evaluation_explore": False,
    }
    with separate_output():
        played = play(SavedPolicy.find(path, results, env=env, trust=trust), settings)
    if played.is_partial:
        raise RunError("the evaluation was interrupted; no card was written")
    return played.metrics
