"""Checkpoints on disk: tensors as safetensors, everything else as JSON; nothing that could be executed.

    checkpoint_000010/
      weights.safetensors     the network
      optimizer.safetensors   what the learner knows besides
      envs.safetensors        what environments are rebuilt from
      state.json              counters, settings, spaces
      replay/                 steps that are learned from again, in segments (algorithms with a replay)
      manifest.json           the hash of each of these

A segment that is full never changes: it is written once, and later checkpoints have a hard link to the same file.

A checkpoint appears by a rename after everything in it is on the disk, or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from outplay.errors import CheckpointError, RunError

log = logging.getLogger("outplay")

FORMAT = 1
_NAME = re.compile(r"^checkpoint_(\d{6,})$")
_TENSORS = ("weights", "optimizer")
_SEGMENTS = "replay"
_SEGMENT = re.compile(rf"^{_SEGMENTS}/([\w-]+)\.safetensors$")

Arrays = dict[str, np.ndarray]


class DamagedCheckpointError(CheckpointError):
    """It is not what was written: an older one may do."""


@dataclass
class Checkpoint:
    """What is saved."""

    state: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    envs: Arrays = field(default_factory=dict)
    segments: Mapping[str, Callable[[], Arrays]] = field(default_factory=dict)  # by name: how to get what is in them


@dataclass
class OnDisk:
    """Segments that were written to, or read from, a checkpoint: the hash of each by its name."""

    folder: Path | None = None
    hashes: dict[str, str] = field(default_factory=dict)

    def present(self) -> set[str]:
        """Those that are still there, and still the same."""
        return (
            set() if self.folder is None else {n for n, h in hashes_in(self.folder).items() if self.hashes.get(n) == h}
        )


def write_checkpoint(
    checkpoint: Checkpoint, folder: Path, before: OnDisk | None = None, known: Collection[str] = ()
) -> OnDisk:
    """Write a checkpoint to `folder`. If that fails, nothing is left of it and what was there before still is.

    Segments that are `known` to be there `before` are not written again.
    """
    from safetensors.numpy import save as save_arrays
    from safetensors.torch import save

    contiguous = {name: {k: t.contiguous() for k, t in getattr(checkpoint, name).items()} for name in _TENSORS}
    files = {f"{name}.safetensors": save(tensors) for name, tensors in contiguous.items()}
    files["envs.safetensors"] = save_arrays({k: np.ascontiguousarray(a) for k, a in checkpoint.envs.items()})
    files["state.json"] = json.dumps({"format": FORMAT, **checkpoint.state}, indent=1).encode()
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left_over in folder.parent.glob(".checkpoint_*.part"):  # of a process that was killed while it wrote
            shutil.rmtree(left_over, ignore_errors=True)
        temporary.mkdir()
        for name, data in files.items():
            write_file(temporary / name, data)
        segments = _write_segments(checkpoint, temporary, before or OnDisk(), known)
        hashes |= {_segment_file(name): value for name, value in segments.items()}
        write_file(temporary / "manifest.json", json.dumps(hashes, indent=1).encode())
        _sync_folder(temporary)
        _swap(temporary, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise RunError(f"the checkpoint {folder} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return OnDisk(folder, segments)


def _write_segments(checkpoint: Checkpoint, folder: Path, before: OnDisk, known: Collection[str]) -> dict[str, str]:
    """Link or write all segments; their hashes by name."""
    from safetensors.numpy import save

    hashes = {}
    if checkpoint.segments:
        (folder / _SEGMENTS).mkdir()
    for name, read in checkpoint.segments.items():
        file = folder / _segment_file(name)
        if before.folder is not None and name in known:
            _link(before.folder / _segment_file(name), file)
            hashes[name] = before.hashes[name]
        else:
            data = save({k: np.ascontiguousarray(array) for k, array in read().items()})
            write_file(file, data)
            hashes[name] = hashlib.sha256(data).hexdigest()
    if checkpoint.segments:
        _sync_folder(folder / _SEGMENTS)
    return hashes


def _link(old: Path, new: Path) -> None:
    try:
        new.hardlink_to(old)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(old, new)
        with new.open("rb+") as file:
            os.fsync(file.fileno())


def _segment_file(name: str) -> str:
    return f"{_SEGMENTS}/{name}.safetensors"


def hashes_in(folder: Path) -> dict[str, str]:
    """The hashes of the segments that a checkpoint has, by name; none if it is not there any more."""
    try:
        hashes = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}
    found = {match[1]: value for file, value in hashes.items() if (match := _SEGMENT.match(file))}
    return {name: value for name, value in found.items() if (folder / _segment_file(name)).is_file()}


def _swap(new: Path, folder: Path) -> None:
    """Put `new` into the place of `folder`. What was there is removed only after that."""
    old = new.with_name(f".{folder.name}.old.part")
    if folder.exists():
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_file(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint, verified."""
    state = json.loads(_verified(folder, "state.json"))
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else None
        raise CheckpointError(f"checkpoint {folder} has format {found}, this version of Outplay reads format {FORMAT}")
    return state


def read_checkpoint(folder: Path, with_segments: bool = True) -> Checkpoint:
    """A checkpoint, verified by its hashes. Segments are large: they are verified now and read when asked for."""
    from safetensors.numpy import load as load_arrays
    from safetensors.torch import load

    state = read_state(folder)
    weights, optimizer = (load(_verified(folder, f"{name}.safetensors")) for name in _TENSORS)
    segments = {}
    for file in _hashes(folder) if with_segments else ():
        if name := _SEGMENT.match(file):
            _verified(folder, file)
            segments[name[1]] = functools.partial(_read_arrays, folder / file)
    return Checkpoint(state, weights, optimizer, load_arrays(_verified(folder, "envs.safetensors")), segments)


def _read_arrays(file: Path) -> Arrays:
    from safetensors.numpy import load

    return load(file.read_bytes())


def _hashes(folder: Path) -> dict[str, str]:
    """By the names of the files that they are of."""
    _verified(folder, "state.json")
    hashes: dict[str, str] = json.loads((folder / "manifest.json").read_bytes())
    return hashes


def _verified(folder: Path, name: str) -> bytes:
    try:
        hashes = json.loads((folder / "manifest.json").read_bytes())
        data = (folder / name).read_bytes()
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise DamagedCheckpointError(f"{folder} is no checkpoint, or not a whole one: it has no {missing}") from error
    except ValueError as error:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {error}") from error
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} cannot be read: {error.strerror or error}") from error
    if not isinstance(hashes, dict) or hashlib.sha256(data).hexdigest() != hashes.get(name):
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name} is not what was written")
    return data


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint_*") if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found)]


def name_of(iteration: int) -> str:
    return f"checkpoint_{iteration:06d}"


def find_checkpoint(path: str | Path, with_segments: bool = True) -> Path:
    """A checkpoint from what a user wrote: itself, a file in it, or the run that it belongs to (its newest).

    Without segments, which are large, those are not verified.
    """
    path = Path(path).expanduser()
    if (path / "manifest.json").exists():
        return path
    if path.is_file() and (path.parent / "manifest.json").exists():
        return path.parent
    for folder in (path, path / "checkpoints"):
        if found := checkpoints_in(folder):
            return newest_valid(found, with_segments)
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint and no run at {path}")
    raise CheckpointError(f"{path} is no checkpoint and holds none")


def newest_valid(checkpoints: list[Path], with_segments: bool = True) -> Path:
    """The newest checkpoint that is not damaged; says so if that is not the newest of all."""
    damaged: list[str] = []
    for path in reversed(checkpoints):
        try:
            read_checkpoint(path, with_segments)
        except DamagedCheckpointError as error:
            damaged.append(str(error))
            continue
        for sentence in damaged:
            log.warning("%s; going back to %s", sentence, path.name)
        return path
    raise CheckpointError("none of the checkpoints can be read: " + "; ".join(damaged))
