"""Processes whose memory is limited by a control group (cgroup), and measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


class Limited:
    """A cgroup with a memory limit, of version 1 or 2. `peak` is the largest sum of anonymous and shared memory.

    >>> with limited(1500 * 10**6) as group:
    ...     process = group.start([sys.executable, "-c", "print(1)"])
    """

    def __init__(self, folder: Path | None, limit: int) -> None:
        self.folder, self.peak, self._first = folder, 0, 0
        self.is_v1 = folder is not None and (folder / "memory.limit_in_bytes").exists()
        if folder is not None:
            (folder / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(limit))

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        def enter() -> None:
            if self.folder is not None:
                (self.folder / "cgroup.procs").write_text("0")

        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
        self._first = process.pid
        return process

    def sample(self) -> None:
        if self.folder is not None:
            lines = (line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
            found = {name: int(value) for name, value in lines}
            used = found["total_rss"] + found["total_shmem"] if self.is_v1 else found["anon"] + found["shmem"]
        else:
            used = sum(map(resident, descendants(self._first)))
        self.peak = max(self.peak, used)


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Limited]:
    folder = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        roots = {"memory": Path("/sys/fs/cgroup/memory"), "": Path("/sys/fs/cgroup")}
        root = roots.get("memory" if "memory" in controllers.split(",") else controllers)
        if root is None or folder is not None or (number == "0" and not (root / "cgroup.controllers").exists()):
            continue
        with contextlib.suppress(OSError):
            candidate = root / path.lstrip("/") / f"larger-than-memory-{os.getpid()}"
            candidate.mkdir()
            if any((candidate / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
                folder = candidate
            else:
                candidate.rmdir()
    try:
        yield Limited(folder, limit)
    finally:
        if folder is not None:
            for _ in range(100):  # the kernel needs a moment after the last process has ended
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent}/task").glob("*/children")
            found += [int(child) for path in children for child in path.read_text().split()]
    return found


def resident(pid: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
        return int(line.split()[1]) * 1024
    return 0
