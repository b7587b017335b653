"""What a command says, apart from what environments say.

Environments, and the libraries under them, print and warn as they like: from Python and from C, in the program and in
every worker. While a command runs them, its standard streams lead to a small process (`once.py`), which passes each
message on to stderr the first time. Workers inherit that. The command itself writes to the streams that it had before.
"""

from __future__ import annotations

import io
import math
import os
import select
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, TextIO

_QUIET_S = 30.0  # after so long without a word, a command shows that it is alive
_PASSED_ON_S = 2.0  # for the last messages to be passed on


@contextmanager
def apart_from_environments() -> Iterator[tuple[TextIO, TextIO]]:
    """The command's own stdout and stderr; what others print in the meantime goes to stderr, each message once."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before the program began
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - it stays open to the end of the program
    out, err = sys.stdout, sys.stderr
    if not (_is_descriptor(out, 1) and _is_descriptor(err, 2)):  # a notebook, a test
        with redirect_stdout(err):
            yield out, err
        return
    for stream in (out, err):
        stream.flush()
    own = [_copy(out), _copy(err)]
    try:
        with _said_once(own[1]):
            yield own[0], own[1]
    finally:
        for stream, descriptor in zip(own, (1, 2), strict=True):
            with suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
            os.dup2(stream.fileno(), descriptor)
            with suppress(OSError, ValueError):
                stream.close()


def discard(stream: TextIO) -> None:
    """Nobody reads `stream` any more: what is written to it from now on is lost."""
    with suppress(io.UnsupportedOperation), Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def _is_descriptor(stream: TextIO | None, number: int) -> bool:
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError):
        return False


def _copy(stream: TextIO) -> TextIO:
    copy: TextIO = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors)
    return copy


@contextmanager
def _said_once(err: TextIO) -> Iterator[None]:
    """Lead descriptors 1 and 2 of this process, and of those that it starts, to a process that runs once.py."""
    mark = uuid.uuid4().hex
    passer = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("once.py")), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=err.fileno(),
        start_new_session=True,  # Ctrl-C is not for it: it ends when nobody is left who could say something
    )
    assert passer.stdin is not None
    assert passer.stdout is not None
    with passer.stdin as entrance, passer.stdout as answers:
        for descriptor in (1, 2):
            os.dup2(entrance.fileno(), descriptor)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True, write_through=False)
        try:
            yield
        finally:
            _wait_until_passed_on(entrance, answers, mark)


def _wait_until_passed_on(entrance: IO[bytes], answers: IO[bytes], mark: str) -> None:
    """So that what was said before does not come after the command's last words."""
    with suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(entrance.fileno(), f"\n{mark}\n".encode())
        if select.select([answers], [], [], _PASSED_ON_S)[0]:
            answers.read(1)


@contextmanager
def signs_of_life(what: Callable[[], str], err: TextIO) -> Iterator[Callable[[], None]]:
    """A line on `err` whenever it was quiet for long. The function that is yielded says that something was shown."""
    shown, over = threading.Event(), threading.Event()
    began = time.monotonic()

    def heard() -> None:
        nonlocal began
        began = time.monotonic()
        shown.set()

    def watch() -> None:
        while not over.is_set():
            if shown.wait(_QUIET_S):
                shown.clear()
            else:
                with suppress(OSError, ValueError):  # nobody reads it
                    print(f"{what()}: {time.monotonic() - began:.0f} s so far", file=err, flush=True)

    watcher = threading.Thread(target=watch, name="signs of life", daemon=True)
    watcher.start()
    try:
        yield heard
    finally:
        over.set()
        shown.set()
        watcher.join()


def number(value: float, decimals: int = 1) -> str:
    """A figure with so many decimals, or more where it would otherwise be lost: two digits of it are shown.

    >>> number(21.04), number(0.034), number(-0.5), number(0.0), number(0.00001)
    ('21.0', '0.034', '-0.50', '0.0', '1.0e-05')
    """
    if math.isnan(value):
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:.{decimals}f}"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:.1e}" if magnitude < -4 else f"{value:.{max(decimals, 1 - magnitude)}f}"
