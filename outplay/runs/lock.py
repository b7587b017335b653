"""Lock of a run folder: one writer at a time. The operating system releases it when the process ends."""

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
_TIMEOUT_S, _RETRY_INTERVAL_S = 0.5, 0.01  # is_locked() of a reader holds the lock for a moment
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # network file systems without locks
_MAX_BYTES = 1000


class FolderLock:
    """An exclusive `flock` on the file `.lock` in a folder.

    The file contains the process id, the host and a random token of its last holder. The process id is only for error
    messages: the operating system may reuse it. The token shows whether another process held the lock in between.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = ""  # written when the lock was last acquired
        self._descriptor: int | None = None
        self._unlock: weakref.finalize[Any, Any] | None = None

    @property
    def is_held(self) -> bool:
        return self._unlock is not None

    def acquire(self) -> None:
        """Acquire the lock. Raises RunError if it is held, or was held by another since this object released it."""
        if self.is_held:
            return
        with writing(self._folder):
            # O_NOFOLLOW: in an untrusted run folder, .lock may be a link to a file outside, which must not be written.
            descriptor = os.open(
                self._folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
            )
        try:
            self._check_is_file(descriptor)
            self._flock(descriptor)
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

    def _flock(self, descriptor: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunError(self._held_by(_holder(descriptor))) from None
                time.sleep(_RETRY_INTERVAL_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise RunError(f"{self._folder} cannot be locked: {error.strerror or error}") from error
                log.warning("%s: this file system has no locks; do not train the run in two processes", self._folder)
                return
            else:
                return

    def _held_by(self, holder: dict[str, Any]) -> str:
        pid, host = holder.get("pid"), holder.get("host")
        if host == os.uname().nodename and pid == os.getpid():
            return f"run {self._folder} is already open in this process; pause() or close() it first"
        where = "" if host in (None, os.uname().nodename) else f" on {host}"
        return f"run {self._folder} is being trained by process {pid or 'unknown'}{where}; stop that process first"

    def _check_unchanged(self, descriptor: int) -> None:
        holder = _holder(descriptor)
        if self._token and holder.get("token") != self._token:
            raise RunError(
                f"run {self._folder} was opened by process {holder.get('pid', 'unknown')} after this process paused "
                "it; use Run.resume() to continue from the checkpoint of that process"
            )

    def _write_holder(self, descriptor: int) -> None:
        self._token = secrets.token_hex(8)
        holder = {"pid": os.getpid(), "host": os.uname().nodename, "token": self._token}
        with writing(self._folder):
            os.pwrite(descriptor, f"{json.dumps(holder)}\n".encode().ljust(200), 0)

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = self._descriptor = None

    def forget_in_forked_child(self) -> None:
        """Close the descriptor in a forked child: it would keep the lock after the parent has exited."""
        if self._unlock is not None and self._descriptor is not None:
            self._unlock.detach()
            os.close(self._descriptor)
            self._unlock = self._descriptor = None


def is_locked(folder: Path) -> bool | None:
    """Whether a process holds the lock of this folder; None if this cannot be determined."""
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
    """The last holder, from the lock file; empty if the file is damaged."""
    try:
        found = parse_json(os.pread(descriptor, _MAX_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _release(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # close() does not unlock if C code has forked
    except OSError:
        log.debug("a run folder could not be unlocked")
    finally:
        os.close(descriptor)


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    for lock in list(_held):
        lock.forget_in_forked_child()


os.register_at_fork(after_in_child=_forget_in_forked_child)
