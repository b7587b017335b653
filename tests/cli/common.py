"""What tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
