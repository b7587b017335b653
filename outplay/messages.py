"""What environments, trials and their libraries print, kept apart from Outplay's own output.

They print and warn from Python and from C, in this process and in every worker. `relayed` redirects file descriptors
1 and 2 to a helper process (`deduplicate.py`), which copies messages to a terminal or file. On a terminal, they appear
above the live area (`live.py`). Processes that are started later inherit the redirection. Others `join` the relay.
"""

from __future__ import annotations

import io
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from outplay.live import above

_FLUSH_TIMEOUT_S = 2.0  # for the last messages
_WRITE_TIMEOUT_S = 1.0  # for the helper process to write a message

_relay: Path | None = None  # that this process has joined


def is_descriptor(stream: TextIO | None, number: int) -> bool:
    """Whether a stream is this file descriptor: not in a notebook, or in a test."""
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError):
        return False


def copy_of(stream: TextIO) -> TextIO:
    """The same file under another descriptor."""
    copy: TextIO = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors)
    return copy


@contextmanager
def relayed(
    to: TextIO, descriptors: Sequence[int] = (1, 2), once: bool = True, fifo: Path | None = None
) -> Iterator[None]:
    """Redirect descriptors of this process and its children to a helper process, which copies messages to `to`.

    The caller restores the descriptors. `once`: each distinct message is copied once. `fifo`: processes that run
    already can `join` there.
    """
    marker = uuid.uuid4().hex
    with ExitStack() as stack:
        gate = [stack.enter_context(_gate())] if to.isatty() else []
        source, pipe = stack.enter_context(_pipe(fifo))
        script = str(Path(__file__).with_name("deduplicate.py"))
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", script, marker, "once" if once else "all", *map(str, gate)],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=to.fileno(),
            pass_fds=gate,
            start_new_session=True,  # Ctrl-C must not end the helper: it exits when the last writer closes its stdin
        )
        os.close(source)
        assert helper.stdout is not None
        acknowledgements = stack.enter_context(helper.stdout)
        for descriptor in descriptors:
            os.dup2(pipe, descriptor)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True, write_through=False)
        try:
            yield
        finally:
            _flush(pipe, acknowledgements, marker)


@contextmanager
def above_live_area(fifo: Path) -> Iterator[TextIO]:
    """Yields stdout for a live area. What else is printed on the terminal appears above it.

    Processes that run already can `join` at `fifo`.
    """
    out = sys.stdout
    if not is_descriptor(out, 1):
        yield out
        return
    for stream in (out, sys.stderr):
        stream.flush()
    terminals = {descriptor: os.dup(descriptor) for descriptor in (1, 2) if os.isatty(descriptor)}
    try:
        with copy_of(out) as own, relayed(own, list(terminals), once=False, fifo=fifo):
            yield own
    finally:
        for descriptor, copy in terminals.items():
            os.dup2(copy, descriptor)
            os.close(copy)


def join(fifo: Path) -> None:
    """Redirect what this process prints on a terminal to another process, if that reads `fifo` on this machine."""
    global _relay
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
    try:
        if not terminals or not stat.S_ISFIFO(fifo.stat().st_mode):
            return
        pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # there is none, or nobody reads it here
        return
    os.set_blocking(pipe, True)
    for descriptor in terminals:
        os.dup2(pipe, descriptor)
    os.close(pipe)
    _relay = fifo


def relay() -> Path | None:
    """The relay that this process has joined. Processes that it starts through the engine can join it too."""
    return _relay


@contextmanager
def _pipe(fifo: Path | None) -> Iterator[tuple[int, int]]:
    """A pipe, with a name if it can have one: its read end, which the caller closes, and its write end."""
    named = fifo is not None and _made(fifo)
    if fifo is None or not named:
        source, pipe = os.pipe()
    else:
        source = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # else it would wait for a writer
        pipe = os.open(fifo, os.O_WRONLY)
        os.set_blocking(source, True)
    try:
        yield source, pipe
    finally:
        os.close(pipe)
        if fifo is not None and named:
            fifo.unlink(missing_ok=True)


def _made(fifo: Path) -> bool:
    try:
        fifo.unlink(missing_ok=True)  # of a process that was killed
        os.mkfifo(fifo, 0o600)
    except OSError:  # some file systems have no named pipes
        return False
    return True


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


def _flush(pipe: int, acknowledgements: IO[bytes], marker: str) -> None:
    """Wait until the helper has written all messages, so that the caller's last lines come after them."""
    with suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(pipe, f"\n{marker}\n".encode())
        if select.select([acknowledgements], [], [], _FLUSH_TIMEOUT_S)[0]:
            acknowledgements.read(1)
