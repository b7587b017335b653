"""`outplay serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outplay.cli import completion
from outplay.cli.output import command_output, say
from outplay.errors import ConfigError

_MOST_MB = 1_000_000


def serve(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A run (its newest checkpoint, and each new one), a checkpoint, or a bundle.",
            autocompletion=completion.runs,
        ),
    ],
    port: Annotated[int, typer.Option(metavar="P", help="Port; 0 chooses a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on. Beyond loopback, a token is needed.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="OUTPLAY_TOKEN",
            show_default=False,
            help="Clients must send it: Authorization: Bearer TOKEN. Other users of this machine see options of "
            "commands: prefer the environment variable.",
        ),
    ] = None,
    max_batch_size: Annotated[int, typer.Option(metavar="N", help="Observations per batch, and per request.")] = 64,
    max_wait_ms: Annotated[
        float, typer.Option(metavar="MS", help="How long the first request of a batch waits for others.")
    ] = 0.0,
    explore: Annotated[
        bool, typer.Option("--explore", help="Sample actions from the policy instead of acting greedily.")
    ] = False,
    check_bounds: Annotated[
        bool,
        typer.Option(
            "--check-bounds/--no-check-bounds", help="Refuse observations outside of the bounds of a Box space."
        ),
    ] = True,
    max_sessions: Annotated[int, typer.Option(metavar="N", help="Sessions and WebSocket connections.")] = 1000,
    session_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="A session ends after this time without a request.")
    ] = 600.0,
    max_body_mb: Annotated[float, typer.Option(metavar="MB", help="Largest request.")] = 16.0,
    reload_interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between looks for a new checkpoint of the run; 0: never.")
    ] = 1.0,
    env: Annotated[str | None, typer.Option(help="The environment; must match the checkpoint.")] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Import modules that the checkpoint names: the environment, a custom model."),
    ] = False,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
) -> None:
    """Serve a trained policy over HTTP and WebSocket.

    \b
    outplay serve cartpole --port 8000
    curl -d '{"observation": [0.1, 0.0, 0.02, 0.0]}' localhost:8000/act

    A new checkpoint of the run is loaded without dropping a request. SIGTERM and Ctrl-C stop the server after the
    requests that are under way.
    """
    from outplay.serve import PolicyServer, PolicySource, ServeSettings

    if not 0 < max_body_mb <= _MOST_MB:
        raise ConfigError(f"--max-body-mb must be more than 0 and at most {_MOST_MB:,}, not {max_body_mb:g}")
    settings = ServeSettings(
        host=host,
        port=port,
        token=token,
        max_batch_size=max_batch_size,
        max_wait_ms=max_wait_ms,
        explore=explore,
        check_bounds=check_bounds,
        max_sessions=max_sessions,
        session_timeout_s=session_timeout,
        max_body_bytes=max(1, int(max_body_mb * 2**20)),
        reload_interval_s=reload_interval,
    )
    with command_output() as (_, err):
        server = PolicyServer(PolicySource.find(checkpoint, results_dir, env, trust), settings)
        served = server.served
        what = f"{served.algorithm} on {served.env}, iteration {served.iteration}"
        answered = server.run(lambda: say(f"serving {what}, at {server.url}; Ctrl-C stops", err))
        say("stopped: " + ("all requests were answered" if answered else "requests under way were dropped"), err)
