"""RunFolder: what it reads is right whatever was written, and by whom."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay import CheckpointError, ConfigError, RunError, RunFolder
from outplay.files import replace_file
from outplay.runs.folder import runs_in
from outplay.runs.history import Position
from tests.runs.common import make


def line(iteration: int, noise: str = "") -> bytes:
    return json.dumps({"training_iteration": iteration, "episode_return_mean": None, "x": {noise: 1}}).encode() + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.yaml").write_text("it: {env: CartPole-v1}")
    return RunFolder(tmp_path)


def write(folder: RunFolder, data: bytes) -> None:
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(data)


def iterations(results: list[dict[str, Any]]) -> list[int]:
    return [result["training_iteration"] for result in results]


def test_only_new_lines_are_returned(folder: RunFolder) -> None:
    first = folder.metrics()
    assert (first.results, first.damaged, first.rewritten) == ([], [], False)
    write(folder, line(1) + line(2) + line(3)[:10])
    second = folder.metrics(since=first.end)
    assert iterations(second.results) == [1, 2]
    assert folder.metrics(since=second.end).results == []  # the third is not whole yet
    write(folder, line(3)[10:])
    third = folder.metrics(since=second.end)
    assert iterations(third.results) == [3]
    assert third.end.lines == 3
    # A position can be sent elsewhere and come back.
    sent = Position(**json.loads(json.dumps(dataclasses.asdict(second.end))))
    assert iterations(folder.metrics(since=sent).results) == [3]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
def test_what_was_read_is_not_read_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten megabytes that were read before, a few kilobytes are looked at."""
    write(folder, line(1, "x" * 100) * 100_000)
    seen = folder.metrics()
    write(folder, line(2))
    read = []
    before = os.stat(folder.path / "metrics.jsonl").st_size
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text: read.append(text) or real(text))
    count = bytes_read(lambda: folder.metrics(since=seen.end))
    assert len(read) == 1
    assert count < 200_000 < before


def bytes_read(work: Callable[[], Any]) -> int:
    def total() -> int:
        fields = dict(text.split(": ") for text in Path("/proc/self/io").read_text().splitlines())
        return int(fields["rchar"])

    before = total()
    work()
    return total() - before


def test_damaged_lines_are_left_out_and_numbered(folder: RunFolder) -> None:
    write(folder, line(1) + b"\xff\n5\n" + line(2))
    first = folder.metrics()
    assert (iterations(first.results), first.damaged) == ([1, 2], [2, 3])
    write(folder, b"{}\n\n" + line(3))
    second = folder.metrics(since=first.end)
    assert (iterations(second.results), second.damaged) == ([3], [5])


def test_a_file_that_is_rewritten_is_read_from_its_beginning(folder: RunFolder) -> None:
    path = folder.path / "metrics.jsonl"
    write(folder, line(1) + line(2) + line(3))
    seen = folder.metrics()
    replace_file(path, (line(1) + line(2)).decode())  # as a run does that is resumed
    write(folder, line(3, "other") + line(4))
    again = folder.metrics(since=seen.end)
    assert (iterations(again.results), again.rewritten) == ([1, 2, 3, 4], True)
    os.truncate(path, len(line(1)))
    shorter = folder.metrics(since=again.end)
    assert (iterations(shorter.results), shorter.rewritten) == ([1], True)
    path.unlink()
    gone = folder.metrics(since=shorter.end)
    assert (gone.results, gone.rewritten) == ([], True)
    write(folder, line(1))
    assert iterations(folder.metrics(since=gone.end).results) == [1]


LINES = st.integers(0, 30).map(line) | st.sampled_from(
    [b"\n", b"5\n", b"\xff\n", b"{}\n", b'{"training_iteration": 1\n']
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(LINES, max_size=5).map(b"".join), st.integers(0, 200)),
        st.tuples(st.just("replace"), st.lists(LINES, max_size=5).map(b"".join), st.integers(0, 200)),
        st.tuples(st.just("truncate"), st.just(b""), st.integers(0, 300)),
        st.tuples(st.just("overwrite"), st.lists(LINES, max_size=5).map(b"".join), st.integers(0, 200)),
        st.tuples(st.just("delete"), st.just(b""), st.just(0)),
        st.tuples(st.just("read"), st.just(b""), st.just(0)),
    ),
    max_size=20,
)


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES)
def test_a_reader_that_follows_knows_what_one_that_starts_anew_knows(
    changes: list[tuple[str, bytes, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Appends of whole and half lines, rewriting, truncation, deletion, in any order, with reads in between."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    path = folder.path / "metrics.jsonl"
    position: Position | None = None
    known: list[dict[str, Any]] = []
    damaged: list[int] = []
    for change, data, cut in [*changes, ("read", b"", 0)]:
        if change == "append":
            write(folder, data[: max(0, len(data) - cut % 20)])
        elif change == "replace":
            replace_file(path, data.decode("latin-1"))
        elif change == "overwrite":
            path.write_bytes(data)
        elif change == "delete":
            path.unlink(missing_ok=True)
        elif change == "truncate" and path.exists():
            os.truncate(path, min(cut, path.stat().st_size))
        elif change == "read":
            new = folder.metrics(since=position)
            if new.rewritten:
                known, damaged = [], []
            known += new.results
            damaged += new.damaged
            position = new.end
            whole = folder.metrics()
            assert (known, damaged, position) == (whole.results, whole.damaged, whole.end)


@pytest.mark.parametrize("position", [Position(-5, 0, 0, ""), Position(10**12, 3, 0, ""), Position(5, 1, 0, "x")])
def test_a_position_that_makes_no_sense(folder: RunFolder, position: Position) -> None:
    write(folder, line(1))
    assert iterations(folder.metrics(since=position).results) == [1]


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(folder: RunFolder) -> None:
    for name in ("metrics.jsonl", "status.json"):
        os.mkfifo(folder.path / name)
    with pytest.raises(RunError, match=r"metrics.jsonl cannot be read: "):
        folder.metrics()
    assert folder.status() is None


# Status


def status(**changed: Any) -> dict[str, Any]:
    return {
        "state": "running", "pid": os.getpid(), "host": os.uname().nodename, "updated": "2026-01-01T00:00:00+00:00",
        "training_iteration": 3, "timesteps_total": 120, **changed,
    }  # fmt: skip


def test_who_holds_the_lock_is_running(folder: RunFolder) -> None:
    """Not who has the process id that status.json names: that may be another process by now."""
    folder.write_status(status())
    read = folder.status()
    assert read is not None
    assert read["state"] == "killed"
    with RunFolder(folder.path).locked():
        assert folder.status() == status()
    folder.write_status(status(host="elsewhere"))
    assert folder.status() == status(host="elsewhere")


@pytest.mark.parametrize("text", ["", "5", "{", '{"state": "running"}', json.dumps(status(pid="x"))])
def test_a_damaged_status_is_none(folder: RunFolder, text: str) -> None:
    (folder.path / "status.json").write_text(text)
    assert folder.status() is None
    assert RunFolder(folder.path / "nowhere").status() is None


# Requests


def test_requests(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="outplay")
    assert folder.take_requests() == set()
    folder.request("stop")
    RunFolder(folder.path).request("evaluate")
    (folder.path / "control" / "dance").touch()
    assert folder.take_requests() == {"stop", "evaluate"}
    assert "control/dance is not a request" in caplog.text
    assert folder.take_requests() == set()
    with pytest.raises(ConfigError, match="no request 'halt'"):
        folder.request("halt")
    with pytest.raises(CheckpointError, match="there is no run at"):
        RunFolder(folder.path / "nowhere").request("stop")
    assert not (folder.path / "nowhere").exists()


def test_a_run_obeys_requests_and_is_read_while_it_trains(tmp_path: Path) -> None:
    run = make(tmp_path, stop={"training_iteration": 50})
    watching = RunFolder(run.folder.path)
    asked = {3: "checkpoint", 5: "evaluate", 8: "stop"}
    position = Position()

    def watch(result: dict[str, Any]) -> None:
        nonlocal position
        new = watching.metrics(since=position)
        position = new.end
        assert (iterations(new.results), new.rewritten) == ([result["training_iteration"]], False)
        if (request := asked.get(result["training_iteration"])) is not None:
            watching.request(request)

    assert run.train(watch) == "stopped by a request in control/"
    assert [path.name for path in watching.checkpoints()] == ["checkpoint_000004", "checkpoint_000009"]
    read = watching.status()
    assert read is not None
    assert read["state"] == "stopped"
    assert "evaluation" in watching.metrics().results[5]
    assert [found.path for found in runs_in(tmp_path)] == [run.folder.path]


def test_reading_a_run_folder_is_light(
    tmp_path: Path, run_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """As a dashboard does it: without torch and gymnasium."""
    run = make(tmp_path, stop={"training_iteration": 1})
    run.train()
    result = run_script(
        "import sys, outplay\n"
        f"folder = outplay.RunFolder({str(run.folder)!r})\n"
        "print(folder.status()['state'], len(folder.metrics().results), len(folder.checkpoints()))\n"
        "folder.request('stop')\n"
        "print([m for m in ('torch', 'gymnasium', 'ray') if m in sys.modules])\n"
    )
    assert result.stdout.splitlines() == ["finished 1 1", "[]"], result.stderr
