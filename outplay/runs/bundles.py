"""Bundles: a run in one zip file, to move it to another machine. Nothing in it is executed.

    config.yaml  metrics.jsonl  status.json  videos/…  checkpoints/checkpoint_000010/…
    outplay-bundle.json     the name of the run, and the SHA-256 hash and size of every file

Files are stored without compression: most are tensors, which hardly shrink. So the same run gives the same bytes, and
what is unpacked is never larger than the bundle. A bundle from elsewhere may be malicious: only files with the names of
a run folder are accepted, each once, as plain files, and each must match its hash.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outplay.errors import CheckpointError, RunError
from outplay.files import remove, sync_folder, writing
from outplay.parsing import parse_json
from outplay.runs.checkpoint import checkpoints_in, find_checkpoint, iteration_of, manifest_files, name_of
from outplay.runs.folder import RunFolder
from outplay.runs.history import as_json
from outplay.runs.results import as_path
from outplay.schema import Hash

_FORMAT = 1
_MANIFEST = "outplay-bundle.json"
_REMEDY = "write it anew: outplay bundle RUN FILE"  # where the run is
_DATE = (1980, 1, 1, 0, 0, 0)  # zip files have no earlier one
_MODE = stat.S_IFREG | 0o644
_CHUNK = 1 << 20
_MOST_FILES = 100_000
_LARGEST_MANIFEST = 50_000_000
_VIDEO = r"videos/[A-Za-z0-9][\w.-]{0,200}"
_FILE = re.compile(
    r"config\.yaml|metrics\.jsonl|status\.json|checkpoints/checkpoint_\d{6,12}/"
    rf"(?:[a-z]{{1,40}}\.(?:json|safetensors)|replay/[A-Za-z0-9_-]{{1,100}}\.safetensors)|{_VIDEO}",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z0-9_][\w. -]{0,200}/[A-Za-z0-9_][\w.-]{0,250}", re.ASCII)


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    sha256: Hash
    size: int = Field(ge=0, lt=2**53)


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)

    format: int
    run: str
    files: dict[str, _File]


@dataclass(frozen=True)
class BundleSummary:
    """What was written, or unpacked."""

    path: Path
    run: str
    files: int
    size: int  # bytes
    is_complete: bool = True  # whether all files of its checkpoints are there; else the replay buffer is not


# Writing.


def write_bundle(
    folder: RunFolder,
    path: str | Path,
    all_checkpoints: bool = False,
    with_replay: bool = True,
    with_videos: bool = True,
) -> BundleSummary:
    """Write a run to a zip file, which must not exist; atomically: after a failure there is no file.

    It has the newest checkpoint, or with `all_checkpoints` all of them. Without the replay buffer (`with_replay`), the
    run of an algorithm that has one can be evaluated and served, but not resumed.
    """
    folder.check_is_run()
    target = as_path(path)
    if os.path.lexists(target):
        raise RunError(f"{target} exists already; delete it, or choose another name")
    newest = find_checkpoint(folder.path)
    checkpoints = folder.checkpoints() if all_checkpoints else [newest]
    name = f"{folder.path.absolute().parent.name}/{folder.path.absolute().name}"
    if not _NAME.fullmatch(name):
        raise RunError(f"the run folder {folder} has a name that bundles cannot have; rename it")
    with _new_file(target) as file, _Writer(file) as bundle:
        bundle.add_bytes("config.yaml", _read(folder.path / "config.yaml"))
        if (metrics := folder.path / "metrics.jsonl").exists():
            whole, newline, _ = _read(metrics).rpartition(b"\n")
            bundle.add_bytes("metrics.jsonl", whole + newline)
        if (status := folder.status()) is not None:
            bundle.add_bytes("status.json", _portable(status))
        for checkpoint in sorted(checkpoints, key=iteration_of):
            for part in manifest_files(checkpoint):
                if with_replay or not part.startswith("replay/"):
                    inside = f"checkpoints/{name_of(iteration_of(checkpoint))}/{part}"
                    bundle.add_file(inside, checkpoint / part)  # raises if the run removes it meanwhile
        for video in sorted(folder.videos_path.glob("*")) if with_videos else ():
            if re.fullmatch(_VIDEO, f"videos/{video.name}", re.ASCII) and video.is_file() and not video.is_symlink():
                bundle.add_file(f"videos/{video.name}", video)
        bundle.finish(name)
    return BundleSummary(target, name, len(bundle.files), target.stat().st_size)


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self.files: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def add_bytes(self, name: str, data: bytes) -> None:
        self._zip.writestr(_entry(name), data)
        self.files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}

    def add_file(self, name: str, path: Path) -> None:
        """Copy a file, and hash what was copied."""
        entry = _entry(name)
        with _opened(path) as source:
            entry.file_size = os.fstat(source.fileno()).st_size
            with self._zip.open(entry, "w", force_zip64=entry.file_size >= 2**31) as inside:
                digest, size = _copy(source, inside)
        self.files[name] = {"sha256": digest, "size": size}

    def finish(self, run: str) -> None:
        manifest = {"format": _FORMAT, "run": run, "files": self.files}
        self._zip.writestr(_entry(_MANIFEST), json.dumps(manifest, indent=1).encode())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.create_system = 3  # Unix, on every system
    entry.external_attr = _MODE << 16
    return entry


def _portable(status: dict[str, Any]) -> bytes:
    """status.json without what is true on this machine only."""
    state = "paused" if status["state"] in ("running", "killed") else status["state"]
    return as_json({**status, "state": state, "pid": 0, "host": ""}).encode() + b"\n"


@contextmanager
def _new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `target` when the block ends without an error."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    with writing(target):
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A plain file of a run folder: no link, no pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        remedy = "; if the run trains and has removed it, try again" if isinstance(error, FileNotFoundError) else ""
        raise RunError(f"{path} cannot be read: {error.strerror or error}{remedy}") from error
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RunError(f"{path} is not a file")
        yield file


def _read(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def _copy(source: IO[bytes], target: IO[bytes]) -> tuple[str, int]:
    """Copy all bytes; (SHA-256, size)."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        target.write(chunk)
    return digest.hexdigest(), size


# Reading.


def is_bundle(path: str | Path) -> bool:
    """Whether this is a zip file."""
    path = as_path(path)
    try:
        if not path.is_file():  # opening a pipe would block
            return False
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def unpack(path: str | Path, results: Path) -> BundleSummary:
    """Unpack a bundle to `results`/<experiment>/<run>, which must not exist; atomically."""
    path = as_path(path)
    with _reading(path) as (archive, manifest):
        target = results / manifest.run
        if os.path.lexists(target):
            raise RunError(f"the run {target} exists already; delete it, or choose another --results-dir")
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
            try:
                temporary.mkdir()
                _extract(path, archive, manifest, temporary, lambda _: True)
                is_complete = _has_replay(path, temporary)
                temporary.rename(target)
                sync_folder(target.parent)
            except BaseException:
                remove(temporary)
                with suppress(OSError):  # it has other runs
                    target.parent.rmdir()
                raise
        size = sum(file.size for file in manifest.files.values())
        return BundleSummary(target, manifest.run, len(manifest.files), size, is_complete)


def _has_replay(path: Path, folder: Path) -> bool:
    """Whether an unpacked run has all files. Raises CheckpointError if others than the replay buffer are missing."""
    missing = [
        name
        for checkpoint in checkpoints_in(folder / "checkpoints")
        for name in manifest_files(checkpoint)
        if not (checkpoint / name).exists()
    ]
    for name in missing:
        if not name.startswith("replay/"):
            raise CheckpointError(f"the bundle {path} is damaged: a checkpoint has no {name}")
    return not missing


def unpacked_checkpoint(path: str | Path) -> Path:
    """The newest checkpoint of a bundle, in a temporary folder that is removed when the program ends.

    It has no replay buffer: it is for its weights.
    """
    path = as_path(path)
    with _reading(path) as (archive, manifest):
        found = sorted(
            {name.split("/")[1] for name in manifest.files if name.startswith("checkpoints/")}, key=_iteration
        )
        folder = Path(tempfile.mkdtemp(prefix="outplay-bundle-"))
        atexit.register(remove, folder)
        start = f"checkpoints/{found[-1]}/"
        with writing(folder):
            _extract(path, archive, manifest, folder, lambda name: name.startswith(start) and "/replay/" not in name)
    return folder / start


def _iteration(name: str) -> int:
    return int(name.rpartition("_")[2])


@contextmanager
def _reading(path: Path) -> Iterator[tuple[zipfile.ZipFile, _Manifest]]:
    """A bundle whose structure is checked; hashes are checked when a file is extracted."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive, _checked(path, archive)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a bundle, or is damaged: {error}; {_REMEDY}") from error
    except OSError as error:
        raise CheckpointError(f"the bundle {path} cannot be read: {error.strerror or error}") from error


def _checked(path: Path, archive: zipfile.ZipFile) -> _Manifest:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if _MANIFEST not in names:
        raise CheckpointError(f"{path} is not a bundle of a run: it has no {_MANIFEST}; {_REMEDY}")
    if len(names) > _MOST_FILES or len(set(names)) < len(names):
        raise CheckpointError(f"the bundle {path} has too many files, or two of the same name")
    for entry in entries:
        mode = entry.external_attr >> 16
        if entry.filename != _MANIFEST and not _FILE.fullmatch(entry.filename):
            raise CheckpointError(f"the bundle {path} has a file that runs do not have: {entry.filename[:100]!r}")
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise CheckpointError(f"the bundle {path}: {entry.filename} is not a plain file")
        is_stored = entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
        if not is_stored or entry.flag_bits & 1:
            raise CheckpointError(f"the bundle {path}: {entry.filename} is compressed or encrypted")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise CheckpointError(f"the bundle {path} is damaged: its files are larger than the bundle")
    if archive.getinfo(_MANIFEST).file_size > _LARGEST_MANIFEST:
        raise CheckpointError(f"the bundle {path}: {_MANIFEST} is too large")
    return _parsed(path, archive.read(_MANIFEST), {entry.filename: entry.file_size for entry in entries})


def _parsed(path: Path, data: bytes, sizes: dict[str, int]) -> _Manifest:
    try:
        manifest = _Manifest.model_validate(parse_json(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([_MANIFEST, *map(str, first["loc"])])
        raise CheckpointError(f"the bundle {path} is damaged: {place}: {first['msg']}; {_REMEDY}") from None
    except ValueError as error:
        raise CheckpointError(f"the bundle {path} is damaged: {_MANIFEST} is not JSON: {error}; {_REMEDY}") from None
    if manifest.format != _FORMAT:
        raise CheckpointError(
            f"the bundle {path} has format {manifest.format}, this version of Outplay reads format {_FORMAT}"
        )
    if not _NAME.fullmatch(manifest.run):
        raise CheckpointError(f"the bundle {path} is damaged: the name of its run is {manifest.run[:100]!r}")
    del sizes[_MANIFEST]
    if {name: file.size for name, file in manifest.files.items()} != sizes:
        raise CheckpointError(f"the bundle {path} is damaged: its files are not those that {_MANIFEST} lists")
    if "config.yaml" not in manifest.files or not any(name.startswith("checkpoints/") for name in manifest.files):
        raise CheckpointError(f"the bundle {path} is damaged: it has no config.yaml, or no checkpoint")
    return manifest


def _extract(
    path: Path, archive: zipfile.ZipFile, manifest: _Manifest, folder: Path, wanted: Callable[[str], bool]
) -> None:
    """Write files of a bundle into a folder. Raises CheckpointError if one does not match its hash."""
    # config.yaml makes a folder a run: it comes last.
    for name in sorted(filter(wanted, manifest.files), key=lambda name: (name == "config.yaml", name)):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("xb") as file:
            digest, _ = _copy(source, file)
            file.flush()
            os.fsync(file.fileno())
        if digest != manifest.files[name].sha256:
            raise CheckpointError(f"the bundle {path} is damaged: {name} does not match its hash")
