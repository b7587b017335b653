"""The recorded videos of a run: a listing of its folder videos/. Does not import torch."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_SUFFIXES = (".mp4", ".webm", ".gif", ".mkv", ".mov", ".avi")


@dataclass(frozen=True)
class Video:
    """A video file of a run."""

    path: Path
    bytes: int
    written: datetime  # with the local time zone

    @property
    def name(self) -> str:
        return self.path.name


def videos_in(folder: Path) -> list[Video]:
    """The videos in a folder, oldest first. Files that are being written, links and other files are left out."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:  # an error: there is no such folder yet
        for entry in entries:
            is_video = Path(entry.name).suffix.lower() in _SUFFIXES and not entry.name.startswith(".")
            with suppress(OSError):  # it was removed meanwhile
                if is_video and entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    found.sort(key=lambda video: (video[1].st_mtime_ns, video[0].name))
    return [Video(path, info.st_size, datetime.fromtimestamp(info.st_mtime).astimezone()) for path, info in found]
