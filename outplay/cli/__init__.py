"""The command line: thin, and light to load."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

import typer

from outplay import __version__
from outplay.cli import about, evaluate, listing, train
from outplay.errors import OutplayError, shortened

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
    __: bool = typer.Option(
        False, "--traceback", help="Show the traceback of an error; so does OUTPLAY_TRACEBACK=1. May stand anywhere."
    ),
) -> None: ...


app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("runs")(listing.runs)
app.command("recipes")(listing.recipes)
app.command("check-env")(listing.check_env)
app.command("info")(about.info)


def main() -> None:
    """Run a command. A mistake is one sentence and exit code 2; Ctrl-C is exit code 130; a bug is exit code 1."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    asked = len(arguments) < len(sys.argv) - 1
    shows_traceback = asked or os.environ.get("OUTPLAY_TRACEBACK", "") not in ("", "0")
    try:
        app(arguments)
    except (OutplayError, MemoryError) as error:
        if shows_traceback:
            traceback.print_exc()
        reason = error if isinstance(error, OutplayError) else f"not enough memory: {error}"
        typer.echo(f"outplay: {reason}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("outplay: ended by Ctrl-C", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        sys.stderr.close()
        sys.exit(1)
    except SystemExit as end:
        # typer turns an EOFError, which a broken connection raises too, into an exit.
        cause = getattr(end.__context__, "__cause__", None)
        if isinstance(cause, EOFError):
            _report_bug(cause, shows_traceback)
        raise
    except BaseException as error:  # noqa: BLE001 - the last resort; a panic of a Rust extension is no Exception
        _report_bug(error, shows_traceback)
        sys.exit(1)


def _report_bug(error: BaseException, shows_traceback: bool) -> None:
    """One sentence on stderr. The traceback goes to a file, or to stderr if asked for or if no file can be written."""
    text = "".join(traceback.format_exception(error))
    if shows_traceback:
        typer.echo(text, err=True, nl=False)
    summary = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 200)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="outplay-traceback-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            python = f"Python {platform.python_version()}, {platform.platform()}"
            file.write(f"outplay {__version__}, {python}\n{sys.argv}\n\n{text}")
        where = f"the traceback is in {file.name}"
    except OSError as second:
        where = f"the traceback could not be written: {second.strerror or second}; --traceback shows it"
    typer.echo(f"outplay: {summary}; this is a bug in Outplay: please report it; {where}", err=True)
