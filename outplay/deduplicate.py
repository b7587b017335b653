"""A program that copies messages from stdin to stderr: all of them, or each distinct message once.

A message is a line with the indented lines after it (a Python warning has one), or a complete traceback. Several
processes write at the same time; short messages arrive in one piece. The first argument is a marker: when a line equal
to it is read, all messages before it are written, and a newline on stdout acknowledges it.

The second argument is "once" or "all". If stderr is a terminal, the third argument is a socket to the command. Before a
message is written, the command is asked to erase its live area: `?` asks, `!` permits, `.` reports that the message is
written. If the command does not answer in time or is gone, the message is written anyway.
"""

import contextlib
import os
import select
import sys
import termios

_TIMEOUT_S = 0.1  # for the rest of a message
_MAX_MESSAGES = 10_000  # that are remembered
_ANSWER_S = 1.0  # for the command to erase its live area
_SHOW_CURSOR = b"\x1b[?25h"


class Deduplicator:
    """Assembles messages from lines and writes them; with `once`, each distinct message once."""

    def __init__(self, gate: int | None, once: bool) -> None:
        self.once = once
        self.message: list[bytes] = []
        self.seen: set[bytes] = set()
        self.gate = gate  # the socket to the command

    def add(self, line: bytes) -> None:
        if not self._continues(line):
            self.flush()
        if line:
            self.message.append(line)

    def _continues(self, line: bytes) -> bool:
        if not self.message or line.startswith((b" ", b"\t")):
            return bool(self.message)
        is_traceback = self.message[0].startswith(b"Traceback (most recent call last)")
        return is_traceback and all(part.startswith((b" ", b"\t")) for part in self.message[1:])

    def flush(self) -> None:
        text = b"".join(line + b"\n" for line in self.message)
        self.message = []
        if text and not self.once:
            self.write(text)
        elif text and text not in self.seen:
            if len(self.seen) >= _MAX_MESSAGES:
                self.seen.clear()
            self.seen.add(text)
            self.write(text)

    def write(self, text: bytes) -> None:
        """Write a message above the live area of the command."""
        if self.gate is None or not text:
            write(text)
            return
        try:
            while select.select([self.gate], [], [], 0)[0] and os.read(self.gate, 1):
                pass  # an answer that came too late
            os.write(self.gate, b"?")
            if select.select([self.gate], [], [], _ANSWER_S)[0]:
                os.read(self.gate, 1)
            write(text)
            os.write(self.gate, b".")
        except OSError:  # the command is gone
            self.gate = None
            write(text)


def write(text: bytes, descriptor: int = 2) -> None:
    with contextlib.suppress(OSError):  # the reader is gone; the writing processes must not fail for that
        while text:
            text = text[os.write(descriptor, text) :]


def restore_terminal() -> None:
    """Show the cursor, and echo keys unless a shell already reads a line and echoes them itself."""
    write(_SHOW_CURSOR)
    with contextlib.suppress(termios.error):
        modes = termios.tcgetattr(2)
        if modes[3] & termios.ICANON:
            modes[3] |= termios.ECHO
            termios.tcsetattr(2, termios.TCSANOW, modes)


def main(marker: bytes, once: bool, gate: int | None) -> None:
    messages, rest = Deduplicator(gate, once), b""
    has_ended = False  # whether the command has ended in an orderly way
    while True:
        if not select.select([0], [], [], _TIMEOUT_S if messages.message or rest else None)[0]:
            messages.flush()
            messages.write(rest)  # a prompt, or the start of a line
            rest = b""
            continue
        data = os.read(0, 65536)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == marker:
                messages.flush()
                write(b"\n", 1)
                has_ended = True
            else:
                messages.add(line)
        if not data:
            messages.flush()
            messages.write(rest)
            if gate is not None and not has_ended:  # the command was killed
                restore_terminal()
            return


if __name__ == "__main__":
    main(sys.argv[1].encode(), sys.argv[2] == "once", int(sys.argv[3]) if len(sys.argv) > 3 else None)
