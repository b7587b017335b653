"""`outplay runs`, `outplay recipes`, `outplay check-env`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outplay.cli.output import number
from outplay.runs.folder import RunFolder, runs_in
from outplay.runs.results import results_folder


def runs(
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
) -> None:
    """List runs with their state and last return, newest last."""
    results = results_folder(results_dir)
    found = [row for folder in runs_in(results) if (row := _row(folder, results)) is not None]
    found.sort(key=lambda row: row["updated"] or "")
    if as_json:
        for row in found:
            typer.echo(json.dumps(row))
        return
    if not found:
        typer.echo(f"no runs in {results}; start one: outplay train cartpole")
        return
    width = max(len(row["run"]) for row in found)
    typer.echo(f"{'run':<{width}}  {'state':<9}{'iter':>6}{'steps':>12}{'return':>9}  updated")
    for row in found:
        value = "" if row["episode_return_mean"] is None else number(row["episode_return_mean"])
        typer.echo(
            f"{row['run']:<{width}}  {row['state']:<9}{row['training_iteration']:>6}{row['timesteps_total']:>12,}"
            f"{value:>9}  {row['updated']}"
        )
    typer.echo(f"in {results}")


def _row(folder: RunFolder, results: Path) -> dict[str, Any] | None:
    status = folder.status()
    if status is None:
        return None  # just created, or not a run
    keys = ("state", "training_iteration", "timesteps_total", "episode_return_mean", "updated")
    return {"run": str(folder.path.relative_to(results)), **{key: status.get(key) for key in keys}}


def recipes() -> None:
    """List the built-in recipes: outplay train RECIPE."""
    from outplay.runs.experiments import load_recipe, recipe_names

    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        typer.echo(f"{name:<{width}}  {load_recipe(name).description}")


def check_env(
    env: Annotated[str, typer.Argument(help="A Gymnasium id, or an import path (module:Class).")],
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of env_config; repeatable.")] = None,
) -> None:
    """Check an environment against the Gymnasium API and list problems."""
    import outplay
    from outplay.runs.experiments import parse_setting

    env_config = dict(parse_setting(text, "--config") for text in config or [])
    problems = 0
    for kind, sentence in outplay.check_env(env, env_config):
        typer.echo(f"{kind:<8} {sentence}")
        problems += kind == "problem"
    typer.echo("no problem found" if not problems else f"{problems} problem{'s' if problems > 1 else ''} found")
    if problems:
        raise typer.Exit(2)
