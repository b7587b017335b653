"""Checkpoint: a folder with the state of a trial, written by the trial itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outplay.errors import CheckpointError
from outplay.files import remove, sync_folder, writing


class Checkpoint:
    """A folder of files. `tune.report(…, checkpoint=Checkpoint.from_directory(folder))` keeps a copy of it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        return cls(path)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """The folder, for reading."""
        yield self.path

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to `path`, or to a new temporary folder. Returns it."""
        target = tempfile.mkdtemp() if path is None else str(path)
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


def name_of(iteration: int) -> str:
    return f"checkpoint_{iteration:06d}"


def partial_of(folder: Path, iteration: int) -> Path:
    """Where a checkpoint is written until it is complete."""
    return folder / f".{name_of(iteration)}.partial"


def complete(folder: Path, iteration: int) -> Path:
    """Give a checkpoint its name, atomically. Returns its folder."""
    final = folder / name_of(iteration)
    with writing(final):
        remove(final)
        partial_of(folder, iteration).rename(final)
        sync_folder(folder)
    return final


@contextmanager
def new_folder(folder: Path, iteration: int) -> Iterator[Path]:
    """A folder to write a checkpoint into. It gets its name when it is complete: a reader sees all of it or nothing."""
    final, partial = folder / name_of(iteration), partial_of(folder, iteration)
    with writing(final):
        folder.mkdir(parents=True, exist_ok=True)
        remove(partial)
        partial.mkdir()
    try:
        yield partial
        complete(folder, iteration)
    finally:
        remove(partial)


def keep(given: object, folder: Path, iteration: int) -> Path:
    """Copy a checkpoint that a trial reports to the trial's folder. Returns the copy."""
    if not isinstance(given, str | os.PathLike):
        raise CheckpointError(
            f"checkpoint must be a folder or tune.Checkpoint.from_directory(folder), not {type(given).__name__}"
        )
    source = Path(given)
    if not source.is_dir():
        raise CheckpointError(f"checkpoint={str(source)!r} is no folder; write the files into a folder first")
    if source != folder / name_of(iteration):  # else the trial has put it there itself
        with new_folder(folder, iteration) as target:
            shutil.copytree(source, target, dirs_exist_ok=True)
    return folder / name_of(iteration)
