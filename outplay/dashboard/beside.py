"""A dashboard beside a training command: a process of its own, which ends with the command.

    python -m outplay.dashboard.beside RESULTS

It prints its link, and serves until its stdin is closed: also if the command was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outplay.dashboard.announcing import link_of
from outplay.dashboard.settings import PORT, DashboardSettings
from outplay.errors import ConfigError

_STOP_S = 10.0


@contextmanager
def dashboard_beside(results: Path, tell: Callable[[str, bool], None]) -> Iterator[None]:
    """Within the block, a dashboard serves the results folder. `tell(link, is_new)` is called once it does.

    If there is one already, it is used, and stays. Nothing waits for the dashboard, neither at the start nor later.
    """
    if (link := link_of(results)) is not None:
        tell(link, False)
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "outplay.dashboard.beside", str(results.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run, which saves then; the page shows it until the end
    )
    waiting = threading.Thread(target=_tell, args=(process, tell), name="dashboard", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        _stop(process)
        waiting.join()
        assert process.stdout is not None
        process.stdout.close()


def _tell(process: subprocess.Popen[str], tell: Callable[[str, bool], None]) -> None:
    assert process.stdout is not None
    if link := process.stdout.readline().strip():
        tell(link, True)


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(results: Path) -> None:
    """Serve until stdin is closed. The token is that of OUTPLAY_TOKEN."""
    from outplay.dashboard.server import DashboardServer

    token = os.environ.get("OUTPLAY_TOKEN") or None
    try:
        server = DashboardServer(DashboardSettings(results=results, port=PORT, token=token))
    except ConfigError:  # the port is taken
        server = DashboardServer(DashboardSettings(results=results, port=0, token=token))

    def stop_at_end() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        server.stop()

    def on_start() -> None:
        print(server.link, flush=True)
        threading.Thread(target=stop_at_end, daemon=True).start()

    server.run(on_start)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
