"""A terminal for tests: a pseudo-terminal, and a screen that interprets what programs write to it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.|[\s\S]")
_INCOMPLETE = re.compile(r"\x1b(\[[?\d;]*|\][^\x07]*)?$")


class Screen:
    """The lines of a terminal, with those that were scrolled out of it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.history: list[str] = []
        self.rows = [[" "] * columns for _ in range(lines)]
        self.row = self.column = 0
        self.is_cursor_visible = True
        self._rest = ""  # the start of a control sequence

    def feed(self, text: str) -> None:
        text = self._rest + text
        incomplete = _INCOMPLETE.search(text)
        self._rest = incomplete[0] if incomplete else ""
        for token in _TOKEN.finditer(text.removesuffix(self._rest)):
            if token[2]:
                self._control(token[2], token[1])
            elif token[0] == "\r":
                self.column = 0
            elif token[0] == "\n":
                self._newline()
            elif token[0] == "\b":
                self.column = max(0, self.column - 1)
            elif token[0].isprintable():
                self._put(token[0])

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.column = 0
            self._newline()
        self.rows[self.row][self.column] = character
        self.column += 1

    def _newline(self) -> None:
        if self.row == self.lines - 1:
            self.history.append("".join(self.rows.pop(0)))
            self.rows.append([" "] * self.columns)
        else:
            self.row += 1

    def _control(self, kind: str, argument: str) -> None:
        if argument == "?25":
            self.is_cursor_visible = kind == "h"
        count = int(argument) if argument.isdigit() else 0
        if kind == "A":
            self.row = max(0, self.row - max(1, count))
        elif kind == "K":
            self.rows[self.row][self.column :] = [" "] * (self.columns - self.column)
        elif kind == "J":
            self.rows[self.row][self.column :] = [" "] * (self.columns - self.column)
            for row in range(self.row + 1, self.lines):
                self.rows[row] = [" "] * self.columns

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in [*self.history, *map("".join, self.rows)]).rstrip()


class Terminal:
    """A shell with job control in a pseudo-terminal."""

    def __init__(self, folder: Path, columns: int = 80, lines: int = 40) -> None:
        self.screen = Screen(columns, lines)
        self.output = ""  # everything that was written
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")},
            "TERM": "xterm-256color",
            "PS1": "$ ",
            "OUTPLAY_RESULTS": str(folder / "results"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, condition: str | Callable[[Screen], object], seconds: float = 60) -> None:
        """Wait until the screen shows a text, or a condition on the screen is true."""
        end = time.monotonic() + seconds
        while not (condition in self.screen.text if isinstance(condition, str) else condition(self.screen)):
            assert time.monotonic() < end, f"it did not come: {condition}\n{self.screen.text}"
            if select.select([self._master], [], [], 0.1)[0]:
                piece = self._decoder.decode(os.read(self._master, 65536))
                self.output += piece
                self.screen.feed(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._master)  # hangs up: the shell and its jobs end
        self._shell.wait(timeout=60)
