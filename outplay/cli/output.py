"""Output of a command, kept separate from the output of environments.

Environments and their libraries print and warn: from Python and from C, in the main process and in every worker. While
a command runs, file descriptors 1 and 2 are redirected to a helper process (`deduplicate.py`), which copies each
distinct message to stderr once. Workers inherit the redirection. The command itself writes to the original streams.
On a terminal, messages appear above the command's live area (`outplay/live.py`).
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, TextIO

from outplay.live import above

_HEARTBEAT_S = 30.0  # between two heartbeat lines
_FLUSH_TIMEOUT_S = 2.0  # for the last messages of environments
_WRITE_TIMEOUT_S = 1.0  # for the helper process to write a message


@contextmanager
def separate_output() -> Iterator[tuple[TextIO, TextIO]]:
    """Yields the command's own stdout and stderr. All other output goes to stderr, each distinct message once."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the program started
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - stays open until the program exits
    out, err = sys.stdout, sys.stderr
    if not (_is_descriptor(out, 1) and _is_descriptor(err, 2)):  # in a notebook or a test
        with redirect_stdout(err):
            yield out, err
        return
    for stream in (out, err):
        stream.flush()
    own = [_copy(out), _copy(err)]
    try:
        with _deduplicated(own[1]):
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


def _is_descriptor(stream: TextIO | None, number: int) -> bool:
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError):
        return False


def _copy(stream: TextIO) -> TextIO:
    copy: TextIO = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors)
    return copy


@contextmanager
def _deduplicated(err: TextIO) -> Iterator[None]:
    """Redirect descriptors 1 and 2 of this process and its children to a helper process (deduplicate.py)."""
    marker = uuid.uuid4().hex
    with ExitStack() as stack:
        gate = [stack.enter_context(_gate())] if err.isatty() else []
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("deduplicate.py")), marker, *map(str, gate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err.fileno(),
            pass_fds=gate,
            start_new_session=True,  # Ctrl-C must not end the helper: it exits when the last writer closes its stdin
        )
        assert helper.stdin is not None
        assert helper.stdout is not None
        pipe, acknowledgements = stack.enter_context(helper.stdin), stack.enter_context(helper.stdout)
        for descriptor in (1, 2):
            os.dup2(pipe.fileno(), descriptor)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True, write_through=False)
        try:
            yield
        finally:
            _flush(pipe, acknowledgements, marker)


@contextmanager
def _gate() -> Iterator[int]:
    """A socket on which the helper asks for the terminal before it writes. Yields the descriptor for the helper."""
    own, other = socket.socketpair()

    def answer() -> None:
        with suppress(OSError):  # the helper is gone
            while asked := own.recv(1):
                if asked == b"?":  # otherwise a "." that came too late
                    with above():
                        own.send(b"!")
                        if select.select([own], [], [], _WRITE_TIMEOUT_S)[0]:
                            own.recv(1)

    thread = threading.Thread(target=answer, name="messages above the live area", daemon=True)
    thread.start()
    try:
        yield other.fileno()
    finally:
        with suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)
        thread.join()
        own.close()
        other.close()


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


def _flush(pipe: IO[bytes], acknowledgements: IO[bytes], marker: str) -> None:
    """Wait until the helper has written all messages, so that the command's last lines come after them."""
    with suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(pipe.fileno(), f"\n{marker}\n".encode())
        if select.select([acknowledgements], [], [], _FLUSH_TIMEOUT_S)[0]:
            acknowledgements.read(1)


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
