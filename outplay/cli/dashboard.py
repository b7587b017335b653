"""`outplay dashboard`."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, TextIO

import typer

from outplay.cli.output import command_output, say

_PORT = 8265


def dashboard(
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="Address to listen on. Beyond loopback, the page needs a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="P", help="Port; 0 chooses a free one.")] = _PORT,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="OUTPLAY_TOKEN",
            show_default=False,
            help="Requests need it; the printed link has it. Default: none on loopback, else a random one. Other users "
            "of this machine see options of commands: prefer the environment variable.",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="To show an agent at play, import modules that its checkpoint names, from its folders too: the "
            "environment, a custom model.",
        ),
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Show all runs on a web page: live curves, comparisons, the agent at play. Ctrl-C stops it.

    \b
    outplay dashboard
    outplay dashboard --results-dir copied_results --port 8000
    outplay dashboard --host 0.0.0.0

    On a machine that others use too, set OUTPLAY_TOKEN: everyone there reaches loopback. From another machine, use a
    tunnel (ssh -L 8265:localhost:8265 HOST) rather than --host.
    """
    from outplay.dashboard import DashboardServer, DashboardSettings
    from outplay.runs.results import results_folder

    settings = DashboardSettings(results=results_folder(results_dir), host=host, port=port, token=token, trust=trust)
    with command_output() as (_, err):
        server = DashboardServer(settings)
        server.run(lambda: _announce(server.link, settings.results, err, opens=not no_open))
        say("stopped; runs that were started from the page continue", err)


def _announce(link: str, results: Path, err: TextIO, opens: bool) -> None:
    say(f"dashboard of {results}: {link} (Ctrl-C stops)", err)
    if opens:
        open_browser(link)


def open_browser(link: str) -> None:
    """Open a browser if one would appear: not over SSH, and not without a screen."""
    has_screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen and "SSH_CONNECTION" not in os.environ:
        webbrowser.open(link)
