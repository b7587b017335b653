"""`outplay ope`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outplay.cli import completion
from outplay.cli.output import separate_output
from outplay.formatting import number


def ope(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT", help="The policy: a checkpoint, a run, or the name of an experiment.",
            autocompletion=completion.runs,
        ),
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Recorded episodes: a folder of Parquet files, or minari:NAME.")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="is: importance sampling; wis: weighted importance sampling; fqe: fitted Q evaluation; repeatable. "
            "Default: all three."
        ),
    ] = None,
    gamma: Annotated[float | None, typer.Option(min=0, max=1, help="Discount factor; default: the run's.")] = None,
    explore: Annotated[
        bool, typer.Option("--explore", help="Estimate the policy that samples its actions, not the greedy one.")
    ] = False,
    fqe_updates: Annotated[
        int, typer.Option(min=1, help="fqe: maximum gradient steps; it stops when the estimate has settled.")
    ] = 20_000,
    env: Annotated[str | None, typer.Option(help="The environment; must match the checkpoint.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import modules that the checkpoint names.")] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimates as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Estimate a policy's return from recorded episodes: off-policy evaluation.

    The return is discounted; the episodes may be those of another policy.
    """
    from outplay.runs.playing import SavedPolicy, estimate
    from outplay.runs.results import results_folder

    saved = SavedPolicy.find(checkpoint, results_folder(results_dir), None, env, trust)
    with separate_output():
        found = estimate(saved, data, method, explore, gamma, fqe_updates)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, figures in found.items():
        error = figures.get("standard_error")
        typer.echo(
            f"{name}: discounted return {number(figures['return_mean'], 3)}"
            + ("" if error is None else f" ± {number(error, 3)} (standard error)")
            + ("" if figures.get("converged", True) else f" (not converged after {figures['updates']:,} updates)")
        )
