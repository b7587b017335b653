"""A live area: lines at the bottom of a terminal that are redrawn while a command runs."""

from __future__ import annotations

import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_INTERVAL_S = 0.25  # between two redraws
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_DEFAULT_SIZE = os.terminal_size((80, 24))

_shown: LiveArea | None = None


def above() -> AbstractContextManager[None]:
    """A context in which the live area, if any, is erased. What is written within appears above it."""
    return nullcontext() if _shown is None else _shown.hidden()


def restore_terminal() -> None:
    """Show the cursor and echo keys, before the process exits without closing the live area."""
    if _shown is not None:
        _shown.restore_terminal()


def is_live_terminal(stream: TextIO) -> bool:
    """Whether lines on this stream can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class LiveArea:
    """Redraws what `render(size of the terminal, whether this is the last time)` returns, four times per second.

    A thread draws. Meanwhile the cursor is hidden, and the terminal does not echo keys: an echo would move the area.
    Ctrl-Z erases the area and restores the terminal before the process is suspended. `keep`: the last drawing stays.
    """

    def __init__(self, out: TextIO, render: Callable[[os.terminal_size, bool], RenderableType], keep: bool) -> None:
        from rich.console import Console

        self._out, self._render, self._keep = out, render, keep
        self._console: Console = Console(file=out)
        self._lock = threading.RLock()  # of the terminal
        self._depth = 0  # of nested hidden() blocks
        self._width = self._height = 0  # of the last drawing; the height is 0 if nothing is drawn
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="live area", daemon=True)
        self._before: Any = None  # handler of SIGTSTP
        self._echoes = False  # whether the terminal has to echo keys again

    def __enter__(self) -> Self:
        global _shown
        self._before = signal.getsignal(signal.SIGTSTP)
        if self._before == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)
        _shown = self
        self._draw()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop redrawing and show the cursor. Does nothing if the area is closed."""
        global _shown
        with self._lock:
            if self._closed.is_set():
                return
            if self._keep:
                self._draw(is_last=True)
                self._height = 0
            self._erase()
            self._closed.set()
        _shown = None
        if self._before == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._thread.join()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        with self._lock:
            self._erase()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                self._draw()

    def _redraw(self) -> None:
        while not self._closed.wait(_INTERVAL_S):
            with self._lock:
                self._draw()

    def _suspend(self, *_: object) -> None:
        with self.hidden():
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # returns when the process is continued
            signal.signal(signal.SIGTSTP, self._suspend)

    def _draw(self, is_last: bool = False) -> None:
        if self._depth or self._closed.is_set() or not self._is_in_foreground():
            return
        size = self._size()
        self._console.width, self._console.height = size
        with self._console.capture() as captured:
            self._console.print(self._render(size, is_last))
        lines = captured.get().splitlines()[-(size.lines - 1) :]
        self._stop_echo()
        # Each line is overwritten and its rest erased: erasing everything first would flicker.
        text = "".join(f"{line}\x1b[K\n" for line in lines)
        self._write(_HIDE_CURSOR + self._to_top(size.columns) + text + "\x1b[J")
        self._width, self._height = size.columns, len(lines)

    def _erase(self) -> None:
        self._write(self._to_top(self._size().columns) + "\x1b[J" if self._height else "")
        self._height = 0
        self.restore_terminal()

    def restore_terminal(self) -> None:
        """Show the cursor and echo keys."""
        self._write(_SHOW_CURSOR)
        if self._echoes and self._is_in_foreground():  # a process in the background would be stopped
            self._set_echo(termios.ECHO)
            self._echoes = False

    def _stop_echo(self) -> None:
        if not self._echoes:
            self._echoes = self._set_echo(0)

    def _set_echo(self, value: int) -> bool:
        """Set or clear the terminal's flag ECHO. Returns whether it was set."""
        try:
            modes = termios.tcgetattr(self._out.fileno())
            before, modes[3] = modes[3], modes[3] & ~termios.ECHO | value
            termios.tcsetattr(self._out.fileno(), termios.TCSANOW, modes)
        except termios.error:  # the terminal is gone
            return False
        return bool(before & termios.ECHO)

    def _to_top(self, width: int) -> str:
        """Move the cursor to the first line of the last drawing. Its lines wrap if the terminal is narrower now."""
        rows = self._height * -(-self._width // width)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._out.fileno())
        except OSError:
            return _DEFAULT_SIZE
        return size if size.columns and size.lines else _DEFAULT_SIZE

    def _is_in_foreground(self) -> bool:
        """Whether this process may draw: not if the user continued it in the background (`bg`)."""
        try:
            return os.tcgetpgrp(self._out.fileno()) == os.getpgrp()
        except OSError:  # not the controlling terminal
            return True

    def _write(self, text: str) -> None:
        """Write past Python's buffer: a signal handler may interrupt another write."""
        data = text.encode(self._out.encoding or "utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._out.fileno(), data) :]
        except OSError:  # the terminal is gone
            self._closed.set()
