"""`outplay runs`, `outplay recipes`, `outplay settings`, `outplay check-env`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outplay.cli import completion
from outplay.formatting import number
from outplay.runs.folder import RunFolder, runs_in
from outplay.runs.results import results_folder

if TYPE_CHECKING:
    from outplay.runs.reference import Group

_LEAST_ROOM = 24  # columns for descriptions on a narrow terminal


def runs(
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
    trials: Annotated[bool, typer.Option("--trials", help="List the trials of studies one by one.")] = False,
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
    if not trials:
        found = _with_studies(found, results)
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


def _with_studies(rows: list[dict[str, Any]], results: Path) -> list[dict[str, Any]]:
    """One row for all trials of a study: the sum of their steps, the best return."""
    listed: list[dict[str, Any]] = []
    studies: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        experiment = row["run"].partition("/")[0]
        if not (results / experiment / "study.json").exists():
            listed.append(row)
        else:
            studies.setdefault(experiment, []).append(row)
    for study, trials in studies.items():
        states = {row["state"] for row in trials}
        returns = [row["episode_return_mean"] for row in trials if row["episode_return_mean"] is not None]
        listed.append(
            {
                "run": f"{study} ({len(trials)} trial{'s' * (len(trials) > 1)})",
                "state": "running" if "running" in states else trials[-1]["state"] if len(states) == 1 else "ended",
                "training_iteration": max(row["training_iteration"] for row in trials),
                "timesteps_total": sum(row["timesteps_total"] for row in trials),
                "episode_return_mean": max(returns, default=None),
                "updated": trials[-1]["updated"],
            }
        )
    return sorted(listed, key=lambda row: row["updated"] or "")


def recipes() -> None:
    """List the built-in recipes: outplay train RECIPE."""
    from outplay.runs.experiments import load_recipe, recipe_names

    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        typer.echo(f"{name:<{width}}  {load_recipe(name).description}")


def settings(
    algorithm: Annotated[
        str | None,
        typer.Argument(
            metavar="ALGO",
            help="The algorithm; else: settings of experiments.",
            autocompletion=completion.algorithm_names,
        ),
    ] = None,
) -> None:
    """List settings with their defaults: of experiments, or of an algorithm.

    \b
    outplay settings
    outplay settings PPO
    """
    from outplay.registry import algorithms
    from outplay.runs import reference
    from outplay.runs.experiments import METRICS

    if algorithm is not None:
        for group in reference.settings_of(algorithm):
            whose = group.algorithm or "all algorithms"
            _print_settings(f"{whose}: {group.prefix}" if group.prefix else whose, group)
        typer.echo("set with --config KEY=VALUE, or under config in a file")
        return
    _print_settings("experiments", reference.experiment_group())
    typer.echo("set with --set KEY=VALUE, or beside config in a file\n")
    typer.echo("metrics of stop conditions (--stop METRIC=VALUE); also learner/… and evaluation/… of metrics.jsonl")
    _print_columns([(name,) for name in METRICS])
    typer.echo(f"\nsettings of an algorithm: outplay settings {' | '.join(algorithms.names())}")


def _print_settings(title: str, group: Group) -> None:
    typer.echo(title)
    prefix = f"{group.prefix}." if group.prefix else ""
    _print_columns([(prefix + row.name, row.default or "–", row.description) for row in group.rows])
    typer.echo()


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of a table. On a terminal, the last column is wrapped; elsewhere a row is one line, for grep."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for row in rows:
        start = "".join(f"  {cell:<{width}}" for cell, width in zip(row[:-1], widths, strict=True)) + "  "
        room = max(terminal - len(start), _LEAST_ROOM) if terminal else max(len(row[-1]), 1)
        lines = textwrap.wrap(row[-1], room) or [""]
        typer.echo("\n".join((start if line is lines[0] else " " * len(start)) + line for line in lines))


def check_env(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="A Gymnasium id, or an import path (module:Class).", autocompletion=completion.env_ids
        ),
    ],
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of env_config; repeatable.")
    ] = None,
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
