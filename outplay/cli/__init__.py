"""The command line interface. Commands import what they need when they run, so that `--help` is fast."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

import typer

from outplay import __version__
from outplay.cli import about, bundle, card, dashboard, evaluate, export, listing, ope, plot, report, serve, train, tune
from outplay.cli.options import Command
from outplay.errors import OutplayError, shortened

app = typer.Typer(
    name="outplay",
    help="Parallel reinforcement learning, on this machine or on a Ray cluster.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
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
        False,
        "--traceback",
        help="Show the traceback of an error, as OUTPLAY_TRACEBACK=1 does. Allowed at any position.",
    ),
) -> None: ...


# The short descriptions are given: typer would cut the others to one line.
for _name, _function, _short in (
    ("train", train.train, "Train an agent: a recipe, an experiment file, or any environment."),
    ("dashboard", dashboard.dashboard, "Show all runs on a web page, live."),
    ("evaluate", evaluate.evaluate, "Evaluate a trained policy on seeds that training did not use."),
    ("export", export.export, "Write a trained policy to a file that acts without Outplay, such as policy.onnx."),
    ("serve", serve.serve, "Serve a trained policy over HTTP and WebSocket."),
    ("card", card.card, "Write a model card: a folder that is ready for a model hub."),
    ("bundle", bundle.bundle, "Write a run to one file, to move it to another machine."),
    ("unbundle", bundle.unbundle, "Unpack a run from a bundle."),
    ("ope", ope.ope, "Estimate a policy's return from recorded episodes: off-policy evaluation."),
    ("plot", plot.plot, "Plot learning curves of runs: a figure for a paper, and its numbers."),
    ("report", report.report, "Write a page about a run: curves, settings, checkpoints and its last video."),
    ("runs", listing.runs, "List runs with their state and last return, newest last."),
    ("recipes", listing.recipes, "List the built-in recipes: outplay train RECIPE."),
    ("settings", listing.settings, "List settings with their defaults: outplay settings [ALGO]."),
    ("check-env", listing.check_env, "Check an environment against the Gymnasium API and list problems."),
    ("info", about.info, "Show versions, cores and GPUs."),
):
    app.command(_name, cls=Command, short_help=_short)(_function)

app.add_typer(
    tune.app, name="tune", short_help="Search for settings: many trials of an experiment file with variables."
)


def main() -> None:
    """Run a command. Exit codes: 2 for a user error, reported in one sentence; 130 for Ctrl-C; 1 for a bug."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    has_option = len(arguments) < len(sys.argv) - 1
    shows_traceback = has_option or os.environ.get("OUTPLAY_TRACEBACK", "") not in ("", "0")
    try:
        app(arguments, prog_name="outplay")  # also for `python -m outplay`
    except (OutplayError, MemoryError) as error:
        if shows_traceback:
            traceback.print_exc()
        reason = error if isinstance(error, OutplayError) else f"not enough memory: {error}"
        typer.echo(f"outplay: {reason}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("outplay: interrupted by Ctrl-C", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader (`head`, for example) has closed the pipe
        sys.stderr.close()
        sys.exit(1)
    except SystemExit as end:
        # typer turns an EOFError into an exit. A broken connection raises EOFError too, and that is a bug.
        cause = getattr(end.__context__, "__cause__", None)
        if isinstance(cause, EOFError):
            _report_bug(cause, shows_traceback)
        raise
    except BaseException as error:  # noqa: BLE001 - the last resort; panics of Rust extensions are no Exception
        _report_bug(error, shows_traceback)
        sys.exit(1)


def _without_token(arguments: list[str]) -> list[str]:
    """The arguments for a report: a token is a secret."""
    pairs = zip(["", *arguments], arguments, strict=False)
    hidden = ["…" if before == "--token" else argument for before, argument in pairs]
    return ["--token=…" if argument.startswith("--token=") else argument for argument in hidden]


def _report_bug(error: BaseException, shows_traceback: bool) -> None:
    """Print one sentence to stderr, and write the traceback to a file. `shows_traceback`: print it to stderr, too."""
    text = "".join(traceback.format_exception(error))
    if shows_traceback:
        typer.echo(text, err=True, nl=False)
    summary = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 200)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="outplay-traceback-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            python = f"Python {platform.python_version()}, {platform.platform()}"
            file.write(f"outplay {__version__}, {python}\n{_without_token(sys.argv)}\n\n{text}")
        where = f"the traceback is in {file.name}"
    except OSError as second:
        where = f"the traceback could not be written: {second.strerror or second}; --traceback shows it"
    typer.echo(f"outplay: {summary}; this is a bug in Outplay: please report it; {where}", err=True)
