"""Which dashboard serves a results folder: RESULTS/.dashboard/ says so while the dashboard runs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outplay.errors import OutplayError
from outplay.files import remove
from outplay.parsing import parse_json
from outplay.runs.lock import FolderLock, is_locked

log = logging.getLogger("outplay")

_FOLDER = ".dashboard"
_FILE = "address.json"
_MOST_BYTES = 10_000


@contextmanager
def announced(results: Path, link: str) -> Iterator[None]:
    """Say within the block that a dashboard serves this folder, at this link.

    The system releases the lock if the process is killed. Nothing is said if the folder cannot be written, or if
    another dashboard serves it, too.
    """
    folder = results / _FOLDER
    lock = FolderLock(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        _write_private(folder / _FILE, json.dumps({"link": link, "host": os.uname().nodename}))
    except (OSError, OutplayError) as error:
        log.debug("the dashboard is not announced: %s", error)
    try:
        yield
    finally:
        if lock.is_held:
            with suppress(OSError):
                remove(folder)
            lock.release()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read: the link has the token."""
    remove(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)


def link_of(results: Path) -> str | None:
    """The link of the dashboard of this machine that serves a folder; None if there is none."""
    folder = results / _FOLDER
    if is_locked(folder) is not True:
        return None
    try:
        with open(os.open(folder / _FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = parse_json(file.read(_MOST_BYTES) or b"")
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("host") != os.uname().nodename:
        return None
    link = found.get("link")
    return link if isinstance(link, str) and link.startswith("http://") and link.isprintable() else None
