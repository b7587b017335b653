"""A program that passes on to stderr what it reads from stdin, each message once.

A message is a line with the indented lines after it (a Python warning has one), or a whole traceback. Several processes
write at the same time; short messages arrive in one piece. The line that is given as the argument is answered on stdout
when all that came before it is passed on.
"""

import contextlib
import os
import select
import sys

_TOGETHER_S = 0.1  # that the rest of a message may take
_MOST = 10_000  # messages that are remembered


class Once:
    """Messages, line by line."""

    def __init__(self) -> None:
        self.message: list[bytes] = []
        self.seen: set[bytes] = set()

    def add(self, line: bytes) -> None:
        if not self._continues(line):
            self.pass_on()
        if line:
            self.message.append(line)

    def _continues(self, line: bytes) -> bool:
        if not self.message or line.startswith((b" ", b"\t")):
            return bool(self.message)
        is_traceback = self.message[0].startswith(b"Traceback (most recent call last)")
        return is_traceback and all(part.startswith((b" ", b"\t")) for part in self.message[1:])

    def pass_on(self) -> None:
        text = b"".join(line + b"\n" for line in self.message)
        self.message = []
        if text and text not in self.seen:
            if len(self.seen) >= _MOST:
                self.seen.clear()
            self.seen.add(text)
            write(text)


def write(text: bytes, descriptor: int = 2) -> None:
    with contextlib.suppress(OSError):  # nobody reads it; those who write must not be stopped by that
        while text:
            text = text[os.write(descriptor, text) :]


def main(mark: bytes) -> None:
    once, rest = Once(), b""
    while True:
        if not select.select([0], [], [], _TOGETHER_S if once.message or rest else None)[0]:
            once.pass_on()
            write(rest)  # a prompt perhaps, or the beginning of a line
            rest = b""
            continue
        data = os.read(0, 65536)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == mark:
                once.pass_on()
                write(b"\n", 1)
            else:
                once.add(line)
        if not data:
            once.pass_on()
            write(rest)
            return


if __name__ == "__main__":
    main(sys.argv[1].encode())
