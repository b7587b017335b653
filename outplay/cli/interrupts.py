"""Signals of a run at the command line: Ctrl-C once, and twice."""

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

_GRACE = 10.0  # seconds that the second Ctrl-C leaves for closing environments and ending workers
_SHOW_CURSOR = b"\x1b[?25h"  # a live panel hides it


@contextmanager
def interruptible(run: Run, out: TextIO) -> Iterator[None]:
    """Ctrl-C once: end after this iteration, with a checkpoint. Twice: end now. SIGTERM is like the first.

    The second one ends the program whatever it does: where an environment does not let go, 10 seconds later.
    """

    def on_signal(number: int, _: Any) -> None:
        if number == signal.SIGINT and run.is_stopping:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one does not wait
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, on_signal)
        _reset_when_delivered(signal.SIGINT)
        run.request_stop("stopped by Ctrl-C" if number == signal.SIGINT else "stopped by a signal")
        print("ending after this iteration, with a checkpoint; Ctrl-C again ends now", file=sys.stderr)

    with _watched(out):
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        _reset_when_delivered(signal.SIGINT)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _watched(out: TextIO) -> Iterator[None]:
    """A thread that counts Ctrl-C: Python's handlers have to wait until code in C returns, which it may never do."""
    watched, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_the_second, args=(watched, out), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)


def _end_at_the_second(watched: int, out: TextIO) -> None:
    stopping = False
    while number := os.read(watched, 1):
        if number[0] == signal.SIGINT and stopping:
            time.sleep(_GRACE)
            if out.isatty():
                os.write(out.fileno(), _SHOW_CURSOR)
            os.write(2, b"outplay: ended by Ctrl-C; something did not let go of the program\n")
            os._exit(130)
        stopping |= number[0] in (signal.SIGINT, signal.SIGTERM)
    os.close(watched)


def _reset_when_delivered(number: int) -> None:
    """Once this signal was delivered, another one ends the program, unless Python got to handle the first.

    For code in C that keeps all of Python waiting, the thread above included. Python's `signal` has no flag for it;
    libc's `sysv_signal` sets a handler that is good for one signal.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sysv_signal"):
        return  # not Linux
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = libc.sysv_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = libc.signal(number, None)
    libc.sysv_signal(number, handler)
