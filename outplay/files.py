"""Atomic file operations. An OSError becomes a RunError in one sentence. Does not import torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outplay.errors import RunError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def writing(path: Path, what: str = "written") -> Iterator[None]:
    """Convert an OSError to a RunError: `path` cannot be written (or `what`)."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be {what}: {error.strerror or error}") from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file and sync it to disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a small file atomically: a reader sees the old or the new content."""
    temporary = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):  # on a read-only disk, unlink fails as well
                temporary.unlink()
            raise


def overwrite_file(path: Path, text: str) -> None:
    """Overwrite a small file in place. Works on a full disk, where `replace_file` has no space for a new file."""
    with writing(path), path.open("rb+") as file:
        file.write(text.encode())
        file.truncate()


class LogFile:
    """A file that is appended to. Unbuffered: close() does not repeat a failed write."""

    def __init__(self, path: Path, check_s: float = 0.0) -> None:
        """`check_s`: seconds between checks that the file was not deleted or moved; 0: check at each write."""
        self.path = path
        self._check_s, self._next_check = check_s, 0.0
        with writing(path):
            self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        with writing(self.path):
            if not self._is_in_place():
                raise RunError(f"{self.path} was deleted or moved during training; the run cannot continue")
            while data:
                data = data[self._file.write(data) :]

    def _is_in_place(self) -> bool:
        """Whether the path still refers to the open file. Writing to a deleted file raises no error."""
        if (now := time.monotonic()) < self._next_check:
            return True
        self._next_check = now + self._check_s
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def clear(self) -> None:
        with writing(self.path):
            self._file.truncate(0)

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not supported by all file systems
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content. Does nothing if the path does not exist."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically. Returns False on failure: not all file systems support it."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:  # not Linux
        return False
    paths = os.fsencode(one), os.fsencode(other)
    return bool(renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)
