"""Signal handlers of a run at the command line: the first Ctrl-C stops gracefully, the second stops at once."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from outplay.cli.hints import resume_command
from outplay.cli.output import say
from outplay.live import restore_terminal

if TYPE_CHECKING:
    from outplay.cli.display import Display
    from outplay.runs.run import Run

_GRACE = 10.0  # seconds after the second Ctrl-C for closing environments and stopping workers


@contextmanager
def interruptible(run: Run, shown: Display, err: TextIO) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM while a run trains.

    The first Ctrl-C, or SIGTERM: stop after this iteration, with a checkpoint. The second Ctrl-C: stop now. If an
    environment hangs, the process is terminated 10 seconds after the second Ctrl-C.
    """

    def on_signal(number: int, _: Any) -> None:
        if number == signal.SIGINT and run.is_stopping:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third Ctrl-C kills the process at once
            shown.close()
            say(lost_by_stopping_now(run), err)
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, on_signal)
        _reset_when_delivered(signal.SIGINT)
        is_ending = bool(run.stop_reason)
        run.request_stop("stopped by Ctrl-C" if number == signal.SIGINT else "stopped by a signal", interrupted=True)
        now = (
            "the run has ended and is being saved" if is_ending else "stopping after this iteration, with a checkpoint"
        )
        say(f"{now}; press Ctrl-C again to stop now", err)

    with _watchdog():
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        _reset_when_delivered(signal.SIGINT)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def lost_by_stopping_now(run: Run) -> str:
    """What a run loses if it stops now, and how to resume it."""
    running = run.last_result.get("training_iteration", 0) + (not run.stop_reason)
    saved = [path.name for path in run.folder.checkpoints()]
    newest = int(saved[-1].rpartition("_")[2]) if saved else 0
    if running <= newest:
        lost = "nothing is lost"
    else:
        lost = f"iteration {running} is" if running == newest + 1 else f"iterations {newest + 1} to {running} are"
        lost += " lost"
    checkpoint = f"the newest checkpoint is that of iteration {newest}" if saved else "there is no checkpoint"
    return f"stopping now: {lost}; {checkpoint}; to resume: {resume_command(run)}"


@contextmanager
def _watchdog() -> Iterator[None]:
    """Count Ctrl-C in a thread: Python runs signal handlers only after C code returns, and C code may hang."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_exit_at_second_interrupt, args=(read_end,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write_end)


def _exit_at_second_interrupt(read_end: int) -> None:
    stopping = False
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGINT and stopping:
            time.sleep(_GRACE)
            restore_terminal()
            os.write(2, b"outplay: interrupted by Ctrl-C; an environment or a worker did not stop in time\n")
            os._exit(130)
        stopping |= number[0] in (signal.SIGINT, signal.SIGTERM)
    os.close(read_end)


def _reset_when_delivered(number: int) -> None:
    """Make the handler of this signal one-shot: the next signal kills the process, unless Python handled the first.

    C code that holds the GIL blocks the watchdog thread, too. Python's `signal` cannot set one-shot handlers; libc's
    `sysv_signal` can.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sysv_signal"):
        return  # not Linux
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = libc.sysv_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = libc.signal(number, None)
    libc.sysv_signal(number, handler)
