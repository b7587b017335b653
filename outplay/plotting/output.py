"""Writing the files of a figure: all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outplay.errors import RunError
from outplay.files import replace_file


def check_writable(path: Path) -> None:
    """Raise RunError if there is no folder for a file, before another file is written."""
    if not path.parent.is_dir():
        raise RunError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise RunError(f"{path} cannot be written: it is a folder")


def write_files(contents: Mapping[Path, str | bytes]) -> None:
    """Replace each file atomically."""
    for path in contents:
        check_writable(path)
    for path, content in contents.items():
        replace_file(path, content)
