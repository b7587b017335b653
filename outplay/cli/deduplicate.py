"""A program that copies messages from stdin to stderr, each distinct message once.

A message is a line with the indented lines after it (a Python warning has one), or a complete traceback. Several
processes write at the same time; short messages arrive in one piece. The argument is a marker: when a line equal to it
is read, all messages before it are written, and a newline on stdout acknowledges it.
"""

import contextlib
import os
import select
import sys

_TIMEOUT_S = 0.1  # for the rest of a message
_MAX_MESSAGES = 10_000  # that are remembered


class Deduplicator:
    """Assembles messages from lines and writes each distinct message once."""

    def __init__(self) -> None:
        self.message: list[bytes] = []
        self.seen: set[bytes] = set()

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
        if text and text not in self.seen:
            if len(self.seen) >= _MAX_MESSAGES:
                self.seen.clear()
            self.seen.add(text)
            write(text)


def write(text: bytes, descriptor: int = 2) -> None:
    with contextlib.suppress(OSError):  # the reader is gone; the writing processes must not fail for that
        while text:
            text = text[os.write(descriptor, text) :]


def main(marker: bytes) -> None:
    messages, rest = Deduplicator(), b""
    while True:
        if not select.select([0], [], [], _TIMEOUT_S if messages.message or rest else None)[0]:
            messages.flush()
            write(rest)  # a prompt, or the start of a line
            rest = b""
            continue
        data = os.read(0, 65536)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == marker:
                messages.flush()
                write(b"\n", 1)
            else:
                messages.add(line)
        if not data:
            messages.flush()
            write(rest)
            return


if __name__ == "__main__":
    main(sys.argv[1].encode())
