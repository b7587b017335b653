"""The command line: thin, and light to load."""

from __future__ import annotations

import sys

import typer

from outplay import __version__
from outplay.cli import about, evaluate, listing, train
from outplay.errors import OutplayError

app = typer.Typer(
    name="outplay",
    help="Reinforcement learning in parallel, on this machine or on a Ray cluster.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outplay {__version__}")
        raise typer.Exit


@app.callback()
def _outplay(
    _: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None: ...


app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("runs")(listing.runs)
app.command("recipes")(listing.recipes)
app.command("check-env")(listing.check_env)
app.command("info")(about.info)


def main() -> None:
    """Run a command. A mistake is one sentence and exit code 2; Ctrl-C is exit code 130."""
    try:
        app()
    except OutplayError as error:
        typer.echo(f"outplay: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("outplay: ended by Ctrl-C", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        sys.stderr.close()
        sys.exit(1)
