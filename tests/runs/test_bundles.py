"""Bundles: a run moves to another machine and continues there; nothing that is not a run is unpacked."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay.errors import CheckpointError, OutplayError, RunError
from outplay.runs.bundles import is_bundle, unpack, unpacked_checkpoint, write_bundle
from outplay.runs.folder import RunFolder
from outplay.runs.loading import find_weights
from outplay.runs.run import Run
from tests.runs.common import lines, make, until, weights

MANIFEST = "outplay-bundle.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make(tmp_path_factory.mktemp("here"), stop={"training_iteration": 2}, checkpoint_freq=1)
    run.train()
    videos = run.folder.videos_path
    videos.mkdir()
    (videos / "checkpoint_000002.mp4").write_bytes(b"film")
    (videos / "link.mp4").symlink_to("/etc/passwd")
    return run


@pytest.fixture(scope="module")
def bundle(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(run.folder, tmp_path_factory.mktemp("bundle") / "run.zip").path


def test_a_run_continues_after_it_was_moved(run: Run, bundle: Path, tmp_path: Path) -> None:
    moved = unpack(bundle, tmp_path / "there")
    assert moved.path == tmp_path / "there" / "it" / run.folder.path.name
    assert moved.run == f"it/{run.folder.path.name}"
    there = RunFolder(moved.path)
    assert [path.name for path in there.checkpoints()] == ["checkpoint_000002"]
    assert (there.videos_path / "checkpoint_000002.mp4").read_bytes() == b"film"
    assert not (there.videos_path / "link.mp4").exists()
    status = there.status()
    assert status is not None
    assert (status["state"], status["host"], status["pid"]) == ("finished", "", 0)
    copy = write_bundle(run.folder, tmp_path / "again.zip")  # before the run goes on
    continued = Run.resume(moved.path, until({"training_iteration": 4}))
    continued.train()
    other = Run.resume(unpack(copy.path, tmp_path / "other").path, until({"training_iteration": 4}))
    other.train()
    whole = make(tmp_path, stop={"training_iteration": 4})
    whole.train()
    assert weights(continued) == weights(other) == weights(whole)
    assert [line["training_iteration"] for line in lines(continued)] == [1, 2, 3, 4]


def test_the_same_run_gives_the_same_bytes(run: Run, bundle: Path, tmp_path: Path) -> None:
    again = write_bundle(run.folder, tmp_path / "again.zip").path
    assert again.read_bytes() == bundle.read_bytes()
    everything = write_bundle(run.folder, tmp_path / "all.zip", all_checkpoints=True)
    with zipfile.ZipFile(everything.path) as archive:
        assert "checkpoints/checkpoint_000001/weights.safetensors" in archive.namelist()


def test_its_weights_can_be_used_as_they_are(run: Run, bundle: Path, tmp_path: Path) -> None:
    found = find_weights(bundle, tmp_path)
    newest = run.folder.checkpoints()[-1]
    assert (found / "weights.safetensors").read_bytes() == (newest / "weights.safetensors").read_bytes()
    started = make(tmp_path / "new", stop={"training_iteration": 1})
    created = Run.create(started.experiment, tmp_path / "new", init_from=str(bundle))
    assert weights(created) == (newest / "weights.safetensors").read_bytes()
    started.pause()
    created.pause()


def test_a_bundle_without_a_replay_buffer_is_not_resumed(tmp_path: Path) -> None:
    run = _dqn(tmp_path)
    small = write_bundle(run.folder, tmp_path / "small.zip", with_replay=False).path
    whole = write_bundle(run.folder, tmp_path / "whole.zip").path
    assert small.stat().st_size < whole.stat().st_size
    find_weights(small, tmp_path)
    Run.resume(unpack(whole, tmp_path / "whole").path, until({"training_iteration": 3})).train()
    without = unpack(small, tmp_path / "small")
    assert not without.is_complete
    with pytest.raises(OutplayError, match=r"has no replay buffer .*--no-replay.* cannot be resumed; .*--init-from"):
        Run.resume(without.path, until({"training_iteration": 3})).train()


def _dqn(tmp_path: Path) -> Run:
    from outplay.runs.experiments import experiment

    config = {"num_envs": 2, "num_workers": 0, "train_batch_size": 8, "learning_starts": 8}
    data = {"name": "it", "env": "CartPole-v1", "run": "DQN", "stop": {"training_iteration": 2}, "config": config}
    run = Run.create(experiment(data, "the test"), tmp_path)
    run.train()
    return run


def test_nothing_is_overwritten_and_nothing_is_left(run: Run, bundle: Path, tmp_path: Path) -> None:
    before = bundle.read_bytes()
    with pytest.raises(RunError, match="exists already"):
        write_bundle(run.folder, bundle)
    assert bundle.read_bytes() == before
    with pytest.raises(RunError, match="cannot be written: No such file"):
        write_bundle(run.folder, tmp_path / "missing" / "run.zip")
    unpack(bundle, tmp_path)
    with pytest.raises(RunError, match="exists already"):
        unpack(bundle, tmp_path)
    unpacked = RunFolder(next((tmp_path / "it").iterdir()))
    optimizer = unpacked.checkpoints()[-1] / "optimizer.safetensors"
    copied = optimizer.read_bytes()
    optimizer.unlink()
    with pytest.raises(OutplayError):
        write_bundle(unpacked, tmp_path / "missing.zip")
    (tmp_path / "it" / "copy").write_bytes(copied)
    optimizer.symlink_to(tmp_path / "it" / "copy")  # its hash is right
    with pytest.raises(RunError, match=r"optimizer\.safetensors cannot be read: Too many levels of symbolic links"):
        write_bundle(unpacked, tmp_path / "linked.zip")
    empty = make(tmp_path / "empty")
    with pytest.raises(CheckpointError):
        write_bundle(empty.folder, tmp_path / "empty.zip")
    empty.pause()
    assert sorted(os.listdir(tmp_path)) == ["empty", "it"]


Entries = list[tuple[zipfile.ZipInfo, bytes]]


def entries(bundle: Path) -> Entries:
    with zipfile.ZipFile(bundle) as archive:
        return [(entry, archive.read(entry)) for entry in archive.infolist()]


def with_manifest(found: Entries, change: Callable[[dict[str, Any]], None]) -> Entries:
    manifest = json.loads(found[-1][1])
    change(manifest)
    return [*found[:-1], (found[-1][0], json.dumps(manifest).encode())]


def added(found: Entries, name: str, data: bytes = b"evil", mode: int = stat.S_IFREG | 0o644) -> Entries:
    """One more file, which the manifest lists with its hash."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    listed = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    changed = with_manifest(found, lambda manifest: manifest["files"].update({name: listed}))
    return [(entry, data), *changed]


def without(found: Entries, part: str) -> Entries:
    """Without the files whose path contains `part`, in the manifest, too."""

    def drop(manifest: dict[str, Any]) -> None:
        manifest["files"] = {name: file for name, file in manifest["files"].items() if part not in name}

    return with_manifest([(entry, data) for entry, data in found if part not in entry.filename], drop)


def flipped(found: Entries) -> Entries:
    index = next(i for i, (entry, _) in enumerate(found) if entry.filename.endswith("weights.safetensors"))
    entry, data = found[index]
    return [*found[:index], (entry, data[:-1] + bytes([data[-1] ^ 1])), *found[index + 1 :]]


ATTACKS: dict[str, tuple[Callable[[Entries], Entries], str]] = {
    "zip slip": (lambda found: added(found, "../../evil"), "a file that runs do not have"),
    "absolute path": (lambda found: added(found, "/tmp/evil"), "a file that runs do not have"),
    "zip slip inside": (lambda found: added(found, "videos/../../evil"), "a file that runs do not have"),
    "other file": (lambda found: added(found, "evil.py"), "a file that runs do not have"),
    "pickle": (lambda found: added(found, "checkpoints/checkpoint_000002/model.pkl"), "that runs do not have"),
    "symlink": (lambda found: added(found, "videos/x.mp4", b"/etc", stat.S_IFLNK | 0o777), "not a plain file"),
    "folder": (lambda found: added(found, "videos/x.mp4", b"", stat.S_IFDIR | 0o777), "not a plain file"),
    "changed bytes": (flipped, "weights.safetensors does not match its hash"),
    "missing file": (lambda found: found[1:], "not those that"),
    "no settings": (lambda found: without(found, "config.yaml"), "no config.yaml, or no checkpoint"),
    "no checkpoint": (lambda found: without(found, "checkpoints/"), "no config.yaml, or no checkpoint"),
    "unlisted file": (
        lambda found: with_manifest(found, lambda manifest: manifest["files"].pop("config.yaml")),
        "not those that",
    ),
    "no manifest": (lambda found: found[:-1], "is not a bundle of a run: it has no outplay-bundle.json; write it anew"),
    "twice": (lambda found: [found[0], *found], "two of the same name"),
    "run elsewhere": (lambda found: with_manifest(found, lambda m: m.update(run="../x")), "the name of its run"),
    "deep run": (lambda found: with_manifest(found, lambda m: m.update(run="a/b/c")), "the name of its run"),
    "newer format": (lambda found: with_manifest(found, lambda m: m.update(format=2)), "has format 2"),
    "manifest is no JSON": (
        lambda found: [*found[:-1], (found[-1][0], b"{")],
        "is damaged: outplay-bundle.json is not JSON: .*; write it anew: outplay bundle RUN FILE",
    ),
    "manifest is no object": (
        lambda found: [*found[:-1], (found[-1][0], b"[]")],
        "is damaged: outplay-bundle.json: .*; write it anew: outplay bundle RUN FILE",
    ),
    "manifest without files": (
        lambda found: with_manifest(found, lambda m: m.pop("files")),
        "is damaged: outplay-bundle.json.files: Field required; write it anew: outplay bundle RUN FILE",
    ),
    "wrong hash type": (lambda found: with_manifest(found, lambda m: m.update(files=[1])), "is damaged"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_not_a_run_is_refused(attack: str, bundle: Path, tmp_path: Path) -> None:
    change, words = ATTACKS[attack]
    crafted = tmp_path / "crafted.zip"
    with zipfile.ZipFile(crafted, "w") as archive:
        for entry, data in change(entries(bundle)):
            archive.writestr(entry, data)
    for use in (lambda: unpack(crafted, tmp_path / "results"), lambda: unpacked_checkpoint(crafted)):
        with pytest.raises(CheckpointError, match=words):
            use()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [crafted]


def test_a_checkpoint_without_weights_is_not_unpacked(bundle: Path, tmp_path: Path) -> None:
    crafted = tmp_path / "crafted.zip"
    with zipfile.ZipFile(crafted, "w") as archive:
        for entry, data in without(entries(bundle), "weights.safetensors"):
            archive.writestr(entry, data)
    with pytest.raises(CheckpointError, match=r"a checkpoint has no weights\.safetensors"):
        unpack(crafted, tmp_path / "results")
    assert not list((tmp_path / "results").iterdir())


def test_compressed_files_are_refused(bundle: Path, tmp_path: Path) -> None:
    """So nothing can be larger than the bundle itself."""
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in added(entries(bundle), "videos/x.mp4", bytes(50_000_000)):
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    assert bomb.stat().st_size < 1_000_000
    with pytest.raises(CheckpointError, match="is compressed or encrypted"):
        unpack(bomb, tmp_path / "results")


def test_damaged_and_other_files_are_one_sentence(bundle: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    for name, content in (("cut", data[: len(data) // 2]), ("text", b"hello"), ("empty", b""), ("head", b"PK\3\4")):
        file = tmp_path / f"{name}.zip"
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="is not a bundle, or is damaged"):
            unpack(file, tmp_path / "results")
    with pytest.raises(CheckpointError, match="there is no file"):
        unpack(tmp_path / "nothing.zip", tmp_path / "results")
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack(tmp_path, tmp_path / "results")
    os.mkfifo(tmp_path / "pipe")
    assert not is_bundle(tmp_path / "pipe")
    assert is_bundle(bundle)
    assert not is_bundle(tmp_path)
    assert not (tmp_path / "results").exists()
