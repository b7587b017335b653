"""Signal handlers of a run at the command line: the first Ctrl-C stops gracefully, the second stops at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from outplay.runs.run import Run

_GRACE = 10.0  # seconds after the second Ctrl-C for closing environments and stopping workers
_SHOW_CURSOR = b"\x1b[?25h"  # the live panel hides the cursor


@contextmanager
def interruptible(run: Run, out: TextIO) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM while a run trains.

    The first Ctrl-C, or SIGTERM: stop after this iteration, with a checkpoint. The second Ctrl-C: stop now. If an
    environment hangs, the process is terminated 10 seconds after the second Ctrl-C.
    """

    def on_signal(number: int, _: Any) -> None:
        if number == signal.SIGINT and run.is_stopping:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third Ctrl-C kills the process at once
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, on_signal)
        _reset_when_delivered(signal.SIGINT)
        run.request_stop("stopped by Ctrl-C" if number == signal.SIGINT else "stopped by a signal")
        print("stopping after this iteration, with a checkpoint; press Ctrl-C again to stop now", file=sys.stderr)

    with _watchdog(out):
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        _reset_when_delivered(signal.SIGINT)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _watchdog(out: TextIO) -> Iterator[None]:
    """Count Ctrl-C in a thread: Python runs signal handlers only after C code returns, and C code may hang."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_exit_at_second_interrupt, args=(read_end, out), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write_end)


def _exit_at_second_interrupt(read_end: int, out: TextIO) -> None:
    stopping = False
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGINT and stopping:
            time.sleep(_GRACE)
            if out.isatty():
                os.write(out.fileno(), _SHOW_CURSOR)
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
