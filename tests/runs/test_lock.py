"""One writer at a time: a lock that the system releases when its process ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outplay import RunError, RunFolder
from outplay.runs import lock
from outplay.runs.lock import is_locked
from outplay.runs.run import Run
from tests.cli.common import start
from tests.runs.common import make

HOLD = """
import sys, time
from outplay import RunFolder

folder = RunFolder(sys.argv[1])
folder.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, script: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    """Another process that has locked a folder."""
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    before = {path: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()}
    with holder(run.folder.path) as process:
        with pytest.raises(RunError, match=f"is being trained by process {process.pid}; stop that process first"):
            Run.resume(run.folder)
        after = {path: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()}
        assert {path.name for path in after if after[path] != before.get(path)} == {".lock"}
        assert is_locked(run.folder.path) is True
        process.kill()  # kill -9
        process.wait()
    assert is_locked(run.folder.path) is False
    again = Run.resume(run.folder)
    assert again.resumed_from == 4
    again.close()


@pytest.mark.slow
def test_the_command_line_says_who_trains_it(tmp_path: Path) -> None:
    arguments = ["--env", "CartPole-v1", "--config", "num_envs=4", "--config", "train_batch_size=40", "--json"]
    with start(tmp_path, *arguments) as running:
        assert running.stdout is not None
        running.stdout.readline()
        (folder,) = (tmp_path / "results").glob("*/*")
        second = start(tmp_path, "--resume", str(folder))
        _, err = second.communicate(timeout=60)
        assert second.returncode == 2
        assert err == f"outplay: run {folder} is being trained by process {running.pid}; stop that process first\n"
        status = RunFolder(folder).status()
        assert status is not None
        assert status["state"] == "running"
        running.kill()
        running.wait()
        status = RunFolder(folder).status()
        assert status is not None
        assert status["state"] == "killed"


def test_a_process_id_that_is_used_again_locks_nothing(tmp_path: Path) -> None:
    """The process that trained the run was killed, and another one has its id now: this one's parent."""
    run = make(tmp_path)
    run.train()
    status = json.loads((run.folder.path / "status.json").read_text())
    (run.folder.path / "status.json").write_text(json.dumps({**status, "state": "running", "pid": os.getppid()}))
    held = {"pid": os.getppid(), "host": os.uname().nodename, "token": "x"}
    (run.folder.path / ".lock").write_text(json.dumps(held))
    again = Run.resume(run.folder)
    assert again.resumed_from == 4
    again.close()


def test_a_run_folder_without_a_lock_file_is_resumed(tmp_path: Path) -> None:
    """As version 0.2.0 left them."""
    run = make(tmp_path)
    run.train()
    (run.folder.path / ".lock").unlink()
    again = Run.resume(run.folder)
    assert again.resumed_from == 4
    again.close()


def test_twice_in_one_process(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(RunError, match=r"is already open in this process; pause\(\) or close\(\) it first"):
        Run.resume(run.folder)
    run.step()
    with pytest.raises(RunError, match="is already open in this process"):
        Run.resume(run.folder)
    run.train()
    Run.resume(run.folder).close()
    Run.resume(run.folder).close()


def test_a_run_that_was_dropped_is_free(tmp_path: Path) -> None:
    run = make(tmp_path)
    folder = run.folder.path
    assert is_locked(folder)
    run.algorithm.stop()
    del run
    assert is_locked(folder) is False


FORKED = """
import os, sys, time
from outplay import RunFolder

folder = RunFolder(sys.argv[1])
folder.lock()
if os.fork() == 0:
    print("locked", flush=True)
    sys.stdin.read()  # longer than the parent lives
    os._exit(0)
time.sleep(1000)
"""


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """An environment may fork. When the run is killed, its children may live on for a while."""
    (tmp_path / "config.yaml").touch()
    with holder(tmp_path, FORKED) as process:
        assert is_locked(tmp_path) is True
        process.kill()
        process.wait()
        assert is_locked(tmp_path) is False


def test_a_reader_does_not_keep_a_writer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To see whether the lock is held, a reader takes it for a moment: the writer waits for that."""
    folder = RunFolder(tmp_path)
    folder.lock()
    folder.unlock()
    reader = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    waited = []

    def let_go(_: float) -> None:
        waited.append(1)
        if len(waited) == 3:
            os.close(reader)

    monkeypatch.setattr(lock, "_TIMEOUT_S", 60.0)
    monkeypatch.setattr(lock.time, "sleep", let_go)
    folder.lock()
    assert len(waited) == 3
    folder.unlock()


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = RunFolder(tmp_path)
    folder.lock()
    assert "this file system has no locks; do not train the run in two processes" in caplog.text
    assert is_locked(tmp_path) is None
    folder.unlock()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """A folder from a stranger does not let us write to a file elsewhere."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    run.mkdir()
    mine.write_text("precious")
    file = run / ".lock"
    {"link": lambda: file.symlink_to(mine), "pipe": lambda: os.mkfifo(file), "folder": file.mkdir}[kind]()
    with pytest.raises(RunError, match=r"cannot be written|is not a file"):
        RunFolder(run).lock()
    assert mine.read_text() == "precious"


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist; it was deleted or moved"):
        RunFolder(tmp_path / "nowhere").lock()
    assert not (tmp_path / "nowhere").exists()
