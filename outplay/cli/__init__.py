"""The command line: thin, and light to load."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from outplay import __version__

app = typer.Typer(
    name="outplay",
    help="Reinforcement learning in parallel, on this machine or on a Ray cluster.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_PARTS = ("numpy", "torch", "gymnasium", "ray", "optuna", "onnx", "tensorboard", "envpool")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outplay {__version__}")
        raise typer.Exit


@app.callback()
def _outplay(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def info() -> None:
    """Show versions, cores and GPUs."""
    from outplay.engine.slots import count_cpus, visible_gpus

    rows = {
        "outplay": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": str(count_cpus()),
        "gpus": str(len(visible_gpus())),
        **{part: _installed(part) for part in _PARTS},
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")


def _installed(part: str) -> str:
    # Only looked up: importing them all would take seconds.
    if importlib.util.find_spec(part) is None:
        return "not installed"
    try:
        return version(part)
    except PackageNotFoundError:
        return "installed"


def main() -> None:
    app()
