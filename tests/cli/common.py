"""What tests of the command line share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay.cli import main

SMALL = ["--config", "num_envs=4", "--config", "train_batch_size=40", "--num-workers", "0"]


Outcome = tuple[int, str, str]


def only_run(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "results").glob("*/*")
    return found


def start(tmp_path: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "OUTPLAY_RESULTS": str(tmp_path / "results"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "outplay", "train", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
    return found


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command in this process."""
    monkeypatch.setattr(sys, "argv", ["outplay", *arguments])
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def interrupt_twice(running: subprocess.Popen[str]) -> str:
    """Send Ctrl-C, and again once the command says that it stops after this iteration; its remaining stderr."""
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    while "Ctrl-C again to stop now" not in running.stderr.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err
    return err
