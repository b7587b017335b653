"""Checkpoints on disk: tensors as safetensors, everything else as JSON; nothing that could be executed.

    checkpoint_000010/
      weights.safetensors     the network
      optimizer.safetensors   what the learner knows besides
      envs.safetensors        what environments are rebuilt from
      state.json              counters, settings, spaces
      replay/                 steps that are learned from again, in segments (algorithms with a replay)
      manifest.json           the hash of each of these

A segment that is full never changes: it is written once, and later checkpoints have a hard link to the same file.

A checkpoint appears by a rename after everything in it is on the disk, or not at all. One that replaces another of the
same iteration changes places with it in one step. Where the file system cannot do that, the old one is set aside as
`.checkpoint_000010.old.part` for a moment; if the process is killed then, it is found and read there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from outplay.errors import CheckpointError, RunError, shortened
from outplay.files import exchange, remove, sync_folder, write_file
from outplay.parsing import parse_json
from outplay.runs.results import as_path
from outplay.schema import checked_manifest, checked_state

if TYPE_CHECKING:
    from torch import Tensor  # takes seconds to import, and listing checkpoints needs none

log = logging.getLogger("outplay")

FORMAT = 1
_ASIDE = ".old.part"
_NAME = re.compile(rf"^checkpoint_(\d{{6,}})$|^\.checkpoint_(\d{{6,}}){re.escape(_ASIDE)}$")
_TENSORS = ("weights", "optimizer")
_SEGMENTS = "replay"
_SEGMENT = re.compile(rf"{_SEGMENTS}/([\w-]+)\.safetensors", re.ASCII)

# Errors of files that will never be readable. After others (no permission, too many open files) no older checkpoint is
# used instead: they may pass.
_LASTING = (errno.EISDIR, errno.ELOOP, errno.EIO)

Arrays = dict[str, np.ndarray]
T = TypeVar("T")


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
    hashes: dict[str, str] = field(default_factory=dict)  # of the segments of one that was read


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
        _remove_left_overs(folder.parent)
        temporary.mkdir()
        for name, data in files.items():
            write_file(temporary / name, data)
        segments = _write_segments(checkpoint, temporary, before or OnDisk(), known)
        hashes |= {_segment_file(name): value for name, value in segments.items()}
        write_file(temporary / "manifest.json", json.dumps(hashes, indent=1).encode())
        sync_folder(temporary)
        _swap(temporary, folder)
        sync_folder(folder.parent)
        _discard(_aside(folder))
    except OSError as error:
        raise RunError(f"the checkpoint {folder} could not be written: {error.strerror or error}") from error
    finally:
        _discard(temporary)
    return OnDisk(folder, segments)


def _remove_left_overs(folder: Path) -> None:
    """Of a process that was killed while it wrote. What was set aside is kept where nothing took its place."""
    needed = checkpoints_in(folder)
    for path in folder.glob(".checkpoint_*.part"):
        if path not in needed:
            _discard(path)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next checkpoint that is written tries again
        remove(path)


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
        sync_folder(folder / _SEGMENTS)
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
        found = _segments_of(_manifest(folder))
    except CheckpointError:
        return {}
    return {name: value for name, value in found.items() if (folder / _segment_file(name)).is_file()}


def _segments_of(hashes: dict[str, str]) -> dict[str, str]:
    return {match[1]: value for file, value in hashes.items() if (match := _SEGMENT.fullmatch(file))}


def _swap(new: Path, folder: Path) -> None:
    """Put `new` into the place of `folder`. What was there is then at `new`, or aside; it is never nowhere."""
    if not os.path.lexists(folder):
        new.rename(folder)
    elif not exchange(new, folder):
        aside = _aside(folder)
        remove(aside)
        folder.rename(aside)
        try:
            new.rename(folder)
        except OSError:
            aside.rename(folder)
            raise


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_ASIDE}")


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint, verified."""
    return _parsed_state(folder, _manifest(folder))


def _parsed_state(folder: Path, hashes: dict[str, str]) -> dict[str, Any]:
    state = _checked(folder, "state.json", parse_json, _verified(folder, "state.json", hashes))
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = shortened(repr(state.get("format") if isinstance(state, dict) else None))
        raise CheckpointError(f"checkpoint {folder} has format {found}, this version of Outplay reads format {FORMAT}")
    return _checked(folder, "state.json", checked_state, state)


def _checked(folder: Path, name: str, check: Callable[[Any], T], value: Any) -> T:
    """`check(value)`; its ValueError is damage to the file `name`."""
    try:
        return check(value)
    except ValueError as error:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name}: {error}") from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint, verified by its hashes. Segments are large: each is read and verified when it is asked for."""
    from safetensors.numpy import load as load_arrays
    from safetensors.torch import load

    hashes = _manifest(folder)
    state = _parsed_state(folder, hashes)
    weights, optimizer = (_tensors(folder, f"{name}.safetensors", hashes, load) for name in _TENSORS)
    envs = _tensors(folder, "envs.safetensors", hashes, load_arrays)
    found = _segments_of(hashes)
    segments = {name: functools.partial(_tensors, folder, _segment_file(name), hashes, load_arrays) for name in found}
    return Checkpoint(state, weights, optimizer, envs, segments, found)


def _tensors(folder: Path, name: str, hashes: dict[str, str], load: Callable[[bytes], dict[str, T]]) -> dict[str, T]:
    """The tensors of a file, by name."""
    from safetensors import SafetensorError

    data = _verified(folder, name, hashes)
    try:
        return load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        # A KeyError is a dtype that torch or numpy does not have.
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name}: {error}") from error


def _manifest(folder: Path) -> dict[str, str]:
    """The hashes of a checkpoint's files, by their names."""
    manifest = _checked(folder, "manifest.json", parse_json, _read(folder, "manifest.json"))
    return _checked(folder, "manifest.json", checked_manifest, manifest)


def _verified(folder: Path, name: str, hashes: dict[str, str]) -> bytes:
    data = _read(folder, name)
    if hashlib.sha256(data).hexdigest() != hashes.get(name):
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name} is not what was written")
    return data


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
            raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name} is not a file")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedCheckpointError(f"{folder} is no checkpoint, or not a whole one: it has no {name}") from error
    except OSError as error:
        kind = DamagedCheckpointError if error.errno in _LASTING else CheckpointError
        raise kind(f"checkpoint {folder}: {name} cannot be read: {error.strerror or error}") from error


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; each at its own name, or set aside if it is only there."""
    paths = [*folder.glob(f".checkpoint_*{_ASIDE}"), *folder.glob("checkpoint_*")]
    found = {iteration_of(path): path for path in paths if _NAME.match(path.name)}
    return [found[iteration] for iteration in sorted(found)]


def name_of(iteration: int) -> str:
    return f"checkpoint_{iteration:06d}"


def iteration_of(checkpoint: Path) -> int:
    match = _NAME.match(checkpoint.name)
    assert match is not None
    return int(match[1] or match[2])


def find_checkpoint(path: str | Path) -> Path:
    """A checkpoint from what a user wrote, as `use_checkpoint` finds it, verified except for its segments."""

    def verify(folder: Path) -> Path:
        read_checkpoint(folder)
        return folder

    return use_checkpoint(path, verify)


def use_checkpoint(path: str | Path, use: Callable[[Path], T]) -> T:
    """`use` of the checkpoint that a user's path names: itself, a file in it, or the run that it belongs to.

    Of a run it is the newest that is not damaged: one with which `use` raises DamagedCheckpointError is passed over.
    """
    path = as_path(path)
    if not path.exists() and _aside(path).exists():
        path = _aside(path)
    if (path / "manifest.json").exists():
        return use(path)
    if path.is_file() and (path.parent / "manifest.json").exists():
        return use(path.parent)
    for folder in (path, path / "checkpoints"):
        if found := checkpoints_in(folder):
            return _newest(found, use)
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint and no run at {path}")
    raise CheckpointError(f"{path} is no checkpoint and holds none")


def _newest(checkpoints: list[Path], use: Callable[[Path], T]) -> T:
    damaged: list[str] = []
    for path in reversed(checkpoints):
        try:
            used = use(path)
        except DamagedCheckpointError as error:
            damaged.append(str(error))
            continue
        for sentence in damaged:
            log.warning("%s; going back to %s", sentence, name_of(iteration_of(path)))
        return used
    raise CheckpointError("none of the checkpoints can be read: " + "; ".join(damaged))
