"""Output of a command, kept separate from the output of environments.

While a command runs, what environments and their libraries print is redirected (`outplay/messages.py`): each distinct
message is copied to stderr once. Workers inherit the redirection. The command itself writes to the original streams.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from outplay.live import above
from outplay.messages import copy_of, is_descriptor, relayed

_HEARTBEAT_S = 30.0  # between two heartbeat lines


@contextmanager
def separate_output() -> Iterator[tuple[TextIO, TextIO]]:
    """Yields the command's own stdout and stderr. All other output goes to stderr, each distinct message once."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the program started
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - stays open until the program exits
    out, err = sys.stdout, sys.stderr
    if not (is_descriptor(out, 1) and is_descriptor(err, 2)):  # in a notebook or a test
        with redirect_stdout(err):
            yield out, err
        return
    for stream in (out, err):
        stream.flush()
    own = [copy_of(out), copy_of(err)]
    try:
        with relayed(own[1]):
            yield own[0], own[1]
    finally:
        for stream, descriptor in zip(own, (1, 2), strict=True):
            with suppress(OSError, ValueError):  # the reader is gone
                stream.flush()
            os.dup2(stream.fileno(), descriptor)
            with suppress(OSError, ValueError):
                stream.close()


@contextmanager
def command_output() -> Iterator[tuple[TextIO, TextIO]]:
    """stdout and stderr without the output of environments. Log messages of the package go to stderr."""

    class Handler(logging.StreamHandler[TextIO]):
        def emit(self, record: logging.LogRecord) -> None:
            with above():
                super().emit(record)

    with separate_output() as (out, err):
        handler = Handler(err)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logging.getLogger("outplay").addHandler(handler)
        try:
            yield out, err
        finally:
            logging.getLogger("outplay").removeHandler(handler)


def discard(stream: TextIO) -> None:
    """Redirect `stream` to /dev/null, after its reader has closed it."""
    with suppress(io.UnsupportedOperation), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), stream.fileno())


def say(text: str, err: TextIO) -> None:
    """Print a line to `err`, above the live area. Safe in a signal handler, which may interrupt another print."""
    with above():
        try:
            descriptor = err.fileno()
        except (OSError, ValueError):  # in a notebook or a test
            print(text, file=err)
            return
        with suppress(OSError):  # the reader is gone
            os.write(descriptor, f"{text}\n".encode(err.encoding, "replace"))


@contextmanager
def heartbeat(stage: Callable[[], str], err: TextIO) -> Iterator[Callable[[], None]]:
    """Print a line to `err` after every 30 seconds without output. Yields a function that restarts the interval.

    `stage` returns the start of that line: what the command is doing.
    """
    restarted, stopped = threading.Event(), threading.Event()
    started_at = time.monotonic()

    def reset_timer() -> None:
        nonlocal started_at
        started_at = time.monotonic()
        restarted.set()

    def print_heartbeats() -> None:
        while not stopped.is_set():
            if restarted.wait(_HEARTBEAT_S):
                restarted.clear()
            else:
                with suppress(OSError, ValueError):  # the reader is gone
                    print(f"{stage()}: {time.monotonic() - started_at:.0f} s so far", file=err, flush=True)

    thread = threading.Thread(target=print_heartbeats, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield reset_timer
    finally:
        stopped.set()
        restarted.set()
        thread.join()
