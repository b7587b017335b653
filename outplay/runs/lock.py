"""A lock on a run folder: one writer at a time. The system releases it when its process ends, also by `kill -9`."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import stat
import time
import weakref
from pathlib import Path
from typing import Any

from outplay.errors import RunError
from outplay.files import writing
from outplay.parsing import parse_json

log = logging.getLogger("outplay")

_FILE = ".lock"
_RETRY_S, _PAUSE_S = 0.5, 0.01  # a reader that looks whether the lock is free holds it for a moment
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems have none
_MOST_BYTES = 1000


class FolderLock:
    """An exclusive `flock` on the file `.lock` in a folder.

    The file holds the process, the host and a random token of its last holder. The process is for messages only: a
    process id may be reused. By the token, who locks the folder again sees whether anyone else did in between.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = ""  # of the last time that it was acquired
        self._descriptor: int | None = None
        self._unlock: weakref.finalize[Any, Any] | None = None

    @property
    def is_mine(self) -> bool:
        return self._unlock is not None

    def acquire(self) -> None:
        """Raises RunError if the folder is locked, or was locked by another since this lock was released."""
        if self.is_mine:
            return
        with writing(self._folder):
            # A run folder may come from anyone: a link would let it name a file elsewhere, which is then written.
            descriptor = os.open(
                self._folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
            )
        try:
            self._check_is_file(descriptor)
            self._wait_for(descriptor)
            self._check_unchanged(descriptor)
            self._write_holder(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._unlock = weakref.finalize(self, _release, descriptor)
        _held.add(self)

    def _check_is_file(self, descriptor: int) -> None:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RunError(f"{self._folder / _FILE} is not a file; delete it")

    def _wait_for(self, descriptor: int) -> None:
        deadline = time.monotonic() + _RETRY_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunError(self._held_by(_holder(descriptor))) from None
                time.sleep(_PAUSE_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise RunError(f"{self._folder} cannot be locked: {error.strerror or error}") from error
                log.warning("%s cannot be locked on this file system: do not train the run twice", self._folder)
                return
            else:
                return

    def _held_by(self, holder: dict[str, Any]) -> str:
        pid, host = holder.get("pid"), holder.get("host")
        if host == os.uname().nodename and pid == os.getpid():
            return f"run {self._folder} is open in this process already; pause() or close() it there first"
        where = "" if host in (None, os.uname().nodename) else f" on {host}"
        return f"run {self._folder} is being trained by process {pid or 'unknown'}{where}; end that first"

    def _check_unchanged(self, descriptor: int) -> None:
        holder = _holder(descriptor)
        if self._token and holder.get("token") != self._token:
            raise RunError(
                f"run {self._folder} was opened by process {holder.get('pid', 'unknown')} after it was paused here; "
                "Run.resume() continues from what that process saved"
            )

    def _write_holder(self, descriptor: int) -> None:
        self._token = secrets.token_hex(8)
        holder = {"pid": os.getpid(), "host": os.uname().nodename, "token": self._token}
        with writing(self._folder):
            os.pwrite(descriptor, f"{json.dumps(holder)}\n".encode().ljust(200), 0)

    def release(self) -> None:
        """Another process may lock the folder now. Nothing happens if this lock is not held."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = self._descriptor = None

    def forget_in_forked_child(self) -> None:
        """A forked child has a copy of the descriptor, which would keep the lock after the parent's death."""
        if self._unlock is not None and self._descriptor is not None:
            self._unlock.detach()
            os.close(self._descriptor)
            self._unlock = self._descriptor = None


def is_locked(folder: Path) -> bool | None:
    """Whether any process holds the lock of this folder; None if that cannot be known."""
    try:
        descriptor = os.open(folder / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _holder(descriptor: int) -> dict[str, Any]:
    """Who wrote the lock file last; empty if it does not say."""
    try:
        found = parse_json(os.pread(descriptor, _MOST_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _release(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would not, if code in C has forked
    except OSError:
        log.debug("the lock of a run folder was gone before it was released")
    finally:
        os.close(descriptor)


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    for lock in list(_held):
        lock.forget_in_forked_child()


os.register_at_fork(after_in_child=_forget_in_forked_child)
