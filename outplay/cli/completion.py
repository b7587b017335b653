"""Completion of names in the shell (`outplay --install-completion`). Imports neither torch nor gymnasium.

typer calls these functions with what was typed so far.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

from outplay import registry


def _starting(with_: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(with_)]


def recipes(incomplete: str) -> list[str]:
    from outplay.runs.experiments import recipe_names

    return _starting(incomplete, recipe_names())


def algorithm_names(incomplete: str) -> list[str]:
    return _starting(incomplete, registry.algorithms.names())


def env_ids(incomplete: str) -> list[str]:
    return _starting(incomplete, registry.env_ids())


def engines(incomplete: str) -> list[str]:
    return _starting(incomplete, ("inline", "process", "ray"))


def x_metrics(incomplete: str) -> list[str]:
    return _starting(incomplete, ("timesteps_total", "time_total_s", "episodes_total", "training_iteration"))


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Experiments; after the slash, their runs."""
    from outplay.runs.results import results_folder, runs_by_name

    known = runs_by_name(results_folder(ctx.params.get("results_dir")))
    experiments = dict.fromkeys(name.partition("/")[0] for name in known)
    return _starting(incomplete, known if "/" in incomplete else experiments)


def studies(ctx: typer.Context, incomplete: str) -> list[str]:
    from outplay.runs.results import results_folder

    results = results_folder(ctx.params.get("results_dir"))
    return _starting(incomplete, sorted(file.parent.name for file in results.glob("*/study.json")))
