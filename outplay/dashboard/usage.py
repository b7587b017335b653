"""The machine: CPU, memory, disk and GPUs, sampled at most every few seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from outplay.machine import MachineUsage

INTERVAL_S = 5.0
_TIMEOUT_S = 5.0
_MOST_FAILURES = 3  # in a row; then nvidia-smi is not asked again
_QUERY = "index,name,utilization.gpu,memory.used,memory.total"


class Machine:
    """The machine of the dashboard. `sample` may be called from any thread, and as often as wanted."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._usage = MachineUsage()
        self._gpus = Gpus()
        self._sampled_at = -INTERVAL_S
        self._last: dict[str, Any] = {}
        self._lock = threading.Lock()

    def sample(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() - self._sampled_at >= INTERVAL_S:
                self._last = {
                    "host": os.uname().nodename,
                    **self._usage.sample(),
                    "disk_free_bytes": _free(self._results),
                }
                self._gpus.ask()
                self._sampled_at = time.monotonic()
            return {**self._last, "gpus": self._gpus.found}


class Gpus:
    """The NVIDIA GPUs, as nvidia-smi tells. It may take seconds, so it runs in a thread, and nobody waits for it."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []  # of the last answer; empty if there is none
        self._program = shutil.which("nvidia-smi")
        self._failures = 0  # in a row
        self._thread: threading.Thread | None = None
        self.ask()

    def ask(self) -> None:
        """Ask again, unless it is being asked."""
        if self._program is None or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._ask, args=(self._program,), daemon=True)
        self._thread.start()

    def _ask(self, program: str) -> None:
        command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            self._failures += 1
            if self._failures >= _MOST_FAILURES:  # it has no driver, or it hangs
                self._program, self.found = None, []
            return
        self._failures = 0
        self.found = gpus_of(done.stdout)


def gpus_of(text: str) -> list[dict[str, Any]]:
    """The output of nvidia-smi as JSON. What a GPU does not tell is null."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5:
            continue
        percent, used, total = map(_number, cells[2:])
        found.append(
            {
                "index": cells[0],
                "name": cells[1],
                "percent": percent,
                "memory_used_bytes": None if used is None else int(used * 2**20),
                "memory_total_bytes": None if total is None else int(total * 2**20),
            }
        )
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
