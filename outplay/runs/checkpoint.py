"""Checkpoints on disk: tensors as safetensors, everything else as JSON. No file contains executable code.

    checkpoint_000010/
      weights.safetensors     the network
      optimizer.safetensors   the learner: optimizer moments, normaliser statistics, target networks
      envs.safetensors        the environments: recorded actions or saved state, recurrent state
      state.json              counters, settings, spaces
      replay/                 the replay buffer, in segments (algorithms with a replay buffer)
      manifest.json           SHA-256 hashes of all these files

A full segment never changes: it is written once, and later checkpoints have a hard link to the same file.

Writing is atomic: all files are written and synced to a temporary folder, which is then renamed. A checkpoint that
replaces another of the same iteration is exchanged with it in one system call. On file systems without that call, the
old checkpoint is first renamed to `.checkpoint_000010.old.part`. If the process is killed then, it is read from there.
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
    from torch import Tensor  # importing torch takes seconds, and listing checkpoints does not need it

log = logging.getLogger("outplay")

FORMAT = 1
_BACKUP = ".old.part"
_NAME = re.compile(rf"^checkpoint_(\d{{6,}})$|^\.checkpoint_(\d{{6,}}){re.escape(_BACKUP)}$")
_TENSORS = ("weights", "optimizer")
_SEGMENTS = "replay"
_SEGMENT = re.compile(rf"{_SEGMENTS}/([\w-]+)\.safetensors", re.ASCII)

# Permanent errors: the file will never be readable, so an older checkpoint is used. Other errors (no permission, too
# many open files) may be temporary, and are reported instead.
_PERMANENT = (errno.EISDIR, errno.ELOOP, errno.EIO)

Arrays = dict[str, np.ndarray]
T = TypeVar("T")


class DamagedCheckpointError(CheckpointError):
    """A file of the checkpoint is damaged or missing; an older checkpoint may be readable."""


class NoCheckpointError(CheckpointError):
    """There is no checkpoint at this path, not even a damaged one."""


@dataclass
class Checkpoint:
    """The content of a checkpoint."""

    state: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    envs: Arrays = field(default_factory=dict)
    segments: Mapping[str, Callable[[], Arrays]] = field(default_factory=dict)  # by name: a function that reads it
    hashes: dict[str, str] = field(default_factory=dict)  # of the segments, if the checkpoint was read from disk


@dataclass
class SavedSegments:
    """Segments of the checkpoint that was last written or read: their hashes by name."""

    folder: Path | None = None
    hashes: dict[str, str] = field(default_factory=dict)

    def present(self) -> set[str]:
        """The names of the segments that still exist in the folder, unchanged."""
        return (
            set() if self.folder is None else {n for n, h in hashes_in(self.folder).items() if self.hashes.get(n) == h}
        )


def write_checkpoint(
    checkpoint: Checkpoint, folder: Path, previous: SavedSegments | None = None, known: Collection[str] = ()
) -> SavedSegments:
    """Write a checkpoint to `folder`, atomically: after a failure, `folder` is unchanged.

    The `known` segments of the `previous` checkpoint are linked, not written again. Returns the segments.
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
        _remove_leftovers(folder.parent)
        temporary.mkdir()
        for name, data in files.items():
            write_file(temporary / name, data)
        segments = _write_segments(checkpoint, temporary, previous or SavedSegments(), known)
        hashes |= {_segment_file(name): value for name, value in segments.items()}
        write_file(temporary / "manifest.json", json.dumps(hashes, indent=1).encode())
        sync_folder(temporary)
        _swap(temporary, folder)
        sync_folder(folder.parent)
        _discard(_backup_of(folder))
    except OSError as error:
        raise RunError(f"the checkpoint {folder} could not be written: {error.strerror or error}") from error
    finally:
        _discard(temporary)
    return SavedSegments(folder, segments)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a process that was killed. A backup without a replacement is kept."""
    needed = checkpoints_in(folder)
    for path in folder.glob(".checkpoint_*.part"):
        if path not in needed:
            _discard(path)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next write_checkpoint() tries again
        remove(path)


def _write_segments(
    checkpoint: Checkpoint, folder: Path, previous: SavedSegments, known: Collection[str]
) -> dict[str, str]:
    """Link or write all segments. Returns their hashes by name."""
    from safetensors.numpy import save

    hashes = {}
    if checkpoint.segments:
        (folder / _SEGMENTS).mkdir()
    for name, read in checkpoint.segments.items():
        file = folder / _segment_file(name)
        if previous.folder is not None and name in known:
            _link(previous.folder / _segment_file(name), file)
            hashes[name] = previous.hashes[name]
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
    """The hashes of a checkpoint's segments, by name; empty if the checkpoint was removed."""
    try:
        found = _segments_of(_manifest(folder))
    except CheckpointError:
        return {}
    return {name: value for name, value in found.items() if (folder / _segment_file(name)).is_file()}


def manifest_files(folder: Path) -> list[str]:
    """The names of a checkpoint's files, manifest.json included, sorted."""
    return sorted([*_manifest(folder), "manifest.json"])


def _segments_of(hashes: dict[str, str]) -> dict[str, str]:
    return {match[1]: value for file, value in hashes.items() if (match := _SEGMENT.fullmatch(file))}


def _swap(new: Path, folder: Path) -> None:
    """Replace `folder` by `new`. The old content is then at `new` or at the backup path; it always exists somewhere."""
    if not os.path.lexists(folder):
        new.rename(folder)
    elif not exchange(new, folder):
        backup = _backup_of(folder)
        remove(backup)
        folder.rename(backup)
        try:
            new.rename(folder)
        except OSError:
            backup.rename(folder)
            raise


def _backup_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_BACKUP}")


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint, verified and validated."""
    return _parsed_state(folder, _manifest(folder))


def _parsed_state(folder: Path, hashes: dict[str, str]) -> dict[str, Any]:
    state = _checked(folder, "state.json", parse_json, _verified(folder, "state.json", hashes))
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = shortened(repr(state.get("format") if isinstance(state, dict) else None))
        raise CheckpointError(f"checkpoint {folder} has format {found}, this version of Outplay reads format {FORMAT}")
    return _checked(folder, "state.json", checked_state, state)


def _checked(folder: Path, name: str, check: Callable[[Any], T], value: Any) -> T:
    """`check(value)`. A ValueError becomes a DamagedCheckpointError about the file `name`."""
    try:
        return check(value)
    except ValueError as error:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name}: {error}") from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint and verify its hashes. Segments are large: each is read and verified on access."""
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
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name} does not match its hash")
    return data


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block forever
            raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {name} is not a file")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if _SEGMENT.fullmatch(name) and not (folder / _SEGMENTS).exists():
            raise DamagedCheckpointError(
                f"checkpoint {folder} has no replay buffer (bundles made with --no-replay leave it out), so the run "
                "cannot be resumed; start a new run from its weights: outplay train --init-from"
            ) from error
        raise DamagedCheckpointError(f"{folder} is not a checkpoint, or is incomplete: it has no {name}") from error
    except OSError as error:
        kind = DamagedCheckpointError if error.errno in _PERMANENT else CheckpointError
        raise kind(f"checkpoint {folder}: {name} cannot be read: {error.strerror or error}") from error


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first. A backup is listed only if its checkpoint is missing."""
    paths = [*folder.glob(f".checkpoint_*{_BACKUP}"), *folder.glob("checkpoint_*")]
    found = {iteration_of(path): path for path in paths if _NAME.match(path.name)}
    return [found[iteration] for iteration in sorted(found)]


def name_of(iteration: int) -> str:
    return f"checkpoint_{iteration:06d}"


def iteration_of(checkpoint: Path) -> int:
    match = _NAME.match(checkpoint.name)
    assert match is not None
    return int(match[1] or match[2])


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint for a user's path, as `use_checkpoint` finds it; verified, except for its segments."""

    def verify(folder: Path) -> Path:
        read_checkpoint(folder)
        return folder

    return use_checkpoint(path, verify)


def use_checkpoint(path: str | Path, use: Callable[[Path], T]) -> T:
    """Call `use` with the checkpoint for a user's path: a checkpoint, a file in one, or a run folder.

    For a run folder it is the newest checkpoint with which `use` does not raise DamagedCheckpointError.
    """
    path = as_path(path)
    if not path.exists() and _backup_of(path).exists():
        path = _backup_of(path)
    if (path / "manifest.json").exists():
        return use(path)
    if path.is_file() and (path.parent / "manifest.json").exists():
        return use(path.parent)
    for folder in (path, path / "checkpoints"):
        if found := checkpoints_in(folder):
            return _newest(found, use)
    if not path.exists():
        raise NoCheckpointError(f"there is no checkpoint and no run at {path}")
    raise NoCheckpointError(f"{path} is not a checkpoint and contains none")


def _newest(checkpoints: list[Path], use: Callable[[Path], T]) -> T:
    damaged: list[str] = []
    for path in reversed(checkpoints):
        try:
            used = use(path)
        except DamagedCheckpointError as error:
            damaged.append(str(error))
            continue
        for sentence in damaged:
            log.warning("%s; using %s instead", sentence, name_of(iteration_of(path)))
        return used
    raise CheckpointError("none of the checkpoints can be read: " + "; ".join(damaged))
