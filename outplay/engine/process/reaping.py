"""Kills processes together with all their descendants."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

WORKER_VARIABLE = "OUTPLAY_WORKER"  # in the environment of a worker, and of all its descendants
_PR_SET_CHILD_SUBREAPER = 36
_MAX_FILES = 65536


def raise_file_limit() -> None:
    """Raise the limit on open files: every segment needs a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft < wanted:
        with suppress(ValueError, OSError):  # a system may allow less than its hard limit; then the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, so that they can be found and killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_group(pid: int) -> None:
    """Kill a worker and all processes in its process group."""
    with suppress(ProcessLookupError, PermissionError):  # it is gone already
        os.killpg(pid, signal.SIGKILL)


def kill_orphans(run: str, living: set[int]) -> None:
    """Kill adopted processes whose worker is not among `living`. They left its group, but have its mark.

    `run` distinguishes the processes of this engine from those of an engine that was started inside a worker.
    """
    if sys.platform != "linux":
        return
    for pid in _children(os.getpid()):
        mark = _mark_of(pid)
        if mark is not None and mark[0] == run and mark[1] not in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def mark(run: str, worker: int) -> str:
    return f"{run}:{worker}"


def _mark_of(pid: int) -> tuple[str, int] | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it has ended
    start = f"{WORKER_VARIABLE}=".encode()
    for variable in variables:
        if variable.startswith(start):
            run, _, worker = variable[len(start) :].decode().rpartition(":")
            return run, int(worker)
    return None


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The process name, in parentheses, may have any characters. The fields after it are "state ppid …".
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def reap() -> dict[int, int]:
    """Collect the exit codes of children that have ended, by process id. Negative: killed by that signal."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def describe_exit(code: int | None) -> str:
    """How a process ended, for error messages."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (possibly out of memory)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
