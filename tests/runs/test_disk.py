"""What a crash, a full disk, a read-only one or a damaged file costs: never a checkpoint, and at most one sentence."""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay import CheckpointError, RunError
from outplay.runs.checkpoint import DamagedCheckpointError, find_checkpoint, read_checkpoint
from outplay.runs.experiments import experiment
from outplay.runs.folder import RunFolder
from outplay.runs.run import Run

SMALL = ["--env", "CartPole-v1", "--config", "num_envs=4", "--config", "train_batch_size=40", "--num-workers", "0"]
CONFIG = {"num_envs": 4, "num_workers": 0, "train_batch_size": 40}
PROJECT = Path(__file__).parents[2]


def make(results: Path, **body: Any) -> Run:
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 4}, **body, "config": CONFIG}
    return Run.create(experiment(data, "the test"), results)


def until(iteration: int) -> Any:
    return lambda recorded: recorded.model_copy(update={"stop": {"training_iteration": iteration}})


def weights(run: Run) -> bytes:
    return (run.folder.checkpoints()[-1] / "weights.safetensors").read_bytes()


def iterations(run: Run) -> list[int]:
    return [
        json.loads(line)["training_iteration"] for line in (run.folder.path / "metrics.jsonl").read_text().splitlines()
    ]


def status(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return read


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The folder of a run of 4 iterations with checkpoints of 2 and 4; the weights that it has after 6."""
    folder = tmp_path_factory.mktemp("trained")
    whole = make(folder, stop={"training_iteration": 6})
    whole.train()
    run = make(folder, checkpoint_freq=2)
    run.train()
    return run.folder.path, weights(whole)


@pytest.fixture
def copied(trained: tuple[Path, bytes], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "it" / trained[0].name))


# A checkpoint that is replaced

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from outplay import DQN
from outplay.runs import checkpoint
from outplay.runs.checkpoint import checkpoints_in, find_checkpoint, read_checkpoint

if sys.argv[1] == "two renames":
    checkpoint.exchange = lambda *_: False
CHANGES = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"}


def killed_before(change, trainer, folder):
    "Save in a process that kills itself before it changes something on the disk for the n-th time; whether it did."
    child = os.fork()
    if not child:
        changes = 0

        def count(event, _):
            nonlocal changes
            if event in CHANGES:
                changes += 1
                if changes == change:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        trainer.save(folder)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def steps_in(path):
    saved = read_checkpoint(path)
    assert [read() for read in saved.segments.values()], "no segments"
    return saved.state["timesteps_total"]


config = {"num_envs": 2, "num_workers": 0, "learning_starts": 10, "buffer_size": 500}
with DQN(env="CartPole-v1", config=config) as trainer:
    trainer.train()
    trainer.timesteps = 1
    name = Path(trainer.save("before")).name
    found = []
    for change in range(1, 1000):
        folder = Path(f"killed {change}")
        shutil.copytree("before", folder)
        trainer.timesteps = 2
        was_killed = killed_before(change, trainer, folder)
        for path in (folder, folder / name):
            found.append(steps_in(find_checkpoint(path)))
        trainer.restore(folder)
        trainer.iteration += 1
        trainer.timesteps = 4
        trainer.save(folder)  # this one does not cost the other
        assert [steps_in(path) for path in checkpoints_in(folder)] == [found[-1], 4]
        trainer.restore(find_checkpoint(folder / name))
        trainer.timesteps = 3
        trainer.save(folder)
        assert steps_in(folder / name) == 3
        assert len(list(folder.iterdir())) == 2, list(folder.iterdir())
        if not was_killed:
            break
    assert found == sorted(found) and set(found) == {1, 2}, found
    print(change)
"""


@pytest.mark.parametrize("way", ["exchange", pytest.param("two renames", marks=pytest.mark.slow)])
def test_replacing_a_checkpoint_survives_a_kill_at_any_step(
    run_script: Callable[..., subprocess.CompletedProcess[str]], way: str
) -> None:
    done = run_script(KILLED, way)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20  # steps


# The newest checkpoint is damaged


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [as_folder, as_loop, as_pipe])
@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json"])
def test_a_file_that_is_none(
    copied: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(copied / "checkpoints" / "checkpoint_000004" / name)
    run = Run.resume(copied)
    run.close()
    assert run.resumed_from == 2
    assert f"{name} is not a file" in caplog.text or f"{name} cannot be read: Too many levels" in caplog.text
    assert "using checkpoint_000002 instead" in caplog.text
    assert find_checkpoint(copied).name == "checkpoint_000002"


def test_a_checkpoint_that_is_a_file(
    copied: Path, trained: tuple[Path, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """It is passed over, it does not count as one that is kept, and it is replaced when its turn comes."""
    for number in (6, 99):
        (copied / "checkpoints" / f"checkpoint_{number:06d}").write_text("")
    change: Any = lambda recorded: recorded.model_copy(  # noqa: E731
        update={"stop": {"training_iteration": 6}, "keep_checkpoints": 1, "checkpoint_freq": 1}
    )
    run = Run.resume(copied, change)
    assert run.resumed_from == 4
    assert caplog.text.count("it has no manifest.json; using checkpoint_000004 instead") == 2
    kept: list[list[str]] = []
    run.train(lambda _: kept.append([path.name for path in run.folder.checkpoints()]))
    assert "checkpoint_000005" in kept[0]
    read_checkpoint(run.folder.checkpoints_path / "checkpoint_000006")
    assert (run.folder.checkpoints_path / "checkpoint_000006" / "weights.safetensors").read_bytes() == trained[1]
    assert not list(run.folder.checkpoints_path.glob(".*"))


def test_no_permission_is_told_and_nothing_older_is_used(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may pass: going back would cost iterations."""
    real = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.name == "weights.safetensors":
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError, match=r"checkpoint_000004: weights.safetensors cannot be read: Permission"):
        Run.resume(copied)


# Segments of a replay

REPLAY = {"num_envs": 4, "num_env_groups": 2, "num_workers": 0, "learning_starts": 50, "buffer_size": 1000}
COUNTED = """
import sys
from collections import Counter
from pathlib import Path
from outplay.runs.run import Run

opened = Counter()
sys.addaudithook(lambda event, args: opened.update([str(args[0])] if event == "open" else []))
run = Run.resume(Path(sys.argv[1]))
run.algorithm.stop()
files = [str(file) for file in Path(sys.argv[1]).glob("checkpoints/*/replay/*")]
print(run.resumed_from, [opened[file] for file in files])
"""


def replay_run(results: Path, last: int = 2) -> Run:
    data = {
        "name": "replay", "env": "CartPole-v1", "run": "DQN", "checkpoint_freq": 1, "config": REPLAY,
        "stop": {"training_iteration": last},
    }  # fmt: skip
    run = Run.create(experiment(data, "the test"), results)
    run.train()
    return run


@pytest.mark.slow
def test_segments_are_read_once(tmp_path: Path, run_script: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    run = replay_run(tmp_path, last=1)
    done = run_script(COUNTED, str(run.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 [1, 1]\n"


def test_what_is_verified_is_what_is_used(tmp_path: Path) -> None:
    """A segment that changes after the checkpoint was opened is found out when it is used."""
    saved = read_checkpoint(find_checkpoint(replay_run(tmp_path).folder.path))
    name, read = next(iter(saved.segments.items()))
    assert set(read()) >= {"actions", "rewards"}
    (file,) = tmp_path.glob(f"*/*/checkpoints/checkpoint_000002/replay/{name}.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match=f"{name}.safetensors does not match its hash"):
        read()


def test_a_damaged_segment_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = weights(replay_run(tmp_path, last=3))
    run = replay_run(tmp_path)
    file = sorted((run.folder.checkpoints_path / "checkpoint_000002" / "replay").iterdir())[-1]
    file.write_bytes(file.read_bytes()[:-1])
    again = Run.resume(run.folder, until(3))
    assert again.resumed_from == 1
    assert f"{file.name} does not match its hash; using checkpoint_000001 instead" in caplog.text
    again.train()
    assert weights(again) == expected


# metrics.jsonl is damaged


@pytest.mark.parametrize(
    ("number", "damage"),
    [
        (1, lambda line: line[:20] + b"\xff" + line[20:]),
        (2, lambda _: b"5"),
        (3, lambda _: b'{"training_iteration": 3}'),
        (3, lambda line: line.replace(b'"training_iteration":3', b'"training_iteration":"three"')),
        (4, lambda line: line.replace(b'"timesteps_total":160', b'"timesteps_total":"many"')),
        (4, lambda line: line.replace(b'"timesteps_total":160', b'"timesteps_total":1' + b"0" * 400)),
        (2, lambda _: b"[" * 100_000),
        (2, lambda _: b'{"a":' * 900 + b"1" + b"}" * 900),
        (4, lambda line: line[:-5]),
    ],
    ids=["byte", "number", "no return", "iteration", "text", "large", "deep list", "deep", "cut off"],
)
def test_damaged_metrics_do_not_block_a_resume(
    copied: Path,
    trained: tuple[Path, bytes],
    number: int,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = copied / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    before = lines[number - 1]
    lines[number - 1] = damage(before)
    assert lines[number - 1] != before
    path.write_bytes(b"\n".join(lines) + b"\n")
    run = Run.resume(copied, until(6))
    assert not run.is_finished
    run.train()
    assert f"metrics.jsonl: 1 damaged line was dropped (line {number})" in caplog.text
    assert iterations(run) == [i for i in range(1, 7) if i != number]
    assert weights(run) == trained[1]


def test_a_finished_run_is_finished_without_its_metrics(copied: Path) -> None:
    """The checkpoint knows how far it is: a run whose last line is lost does not train on."""
    (copied / "metrics.jsonl").write_bytes(b"\x00\x01\n5\n")
    run = Run.resume(copied)
    assert run.is_finished
    assert run.train() == "training_iteration reached 4"
    assert RunFolder(copied).results_until(4) == ([], [])


# The disk


def start(folder: Path, *arguments: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
    """`outplay train`, perhaps as the last words of another command."""
    environment = {**os.environ, "OUTPLAY_RESULTS": str(folder), "PYTHONPATH": str(PROJECT)}
    command = [*before, sys.executable, "-m", "outplay", "train", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote to stdout and stderr until its end."""
    try:
        return process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def told(process: subprocess.Popen[str]) -> str:
    """The one sentence that it ends with, exit code 2."""
    _, err = ended(process)
    assert "Traceback" not in err
    assert process.returncode == 2, err
    (sentence,) = [line for line in err.splitlines() if not line.startswith(("no stop condition", "resumed from"))]
    return sentence


@functools.cache
def can_mount() -> bool:
    """Whether this user may have mounts of their own."""
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return tried.returncode == 0


@pytest.mark.slow
def test_metrics_that_find_no_room(tmp_path: Path) -> None:
    """The system refuses files beyond 16 KB, as a full disk would; only metrics.jsonl gets there."""
    limits = (16_000, 16_000)
    process = start(tmp_path, *SMALL, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
    sentence = told(process)
    (folder,) = tmp_path.glob("*/*")
    assert sentence == f"outplay: {folder / 'metrics.jsonl'} cannot be written: File too large"
    assert status(folder)["state"] == "failed"
    assert status(folder)["error"] == sentence.removeprefix("outplay: ")


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounting is not allowed here")
def test_a_full_disk_while_metrics_are_written(tmp_path: Path) -> None:
    """A disk of 64 KB. There is no room for a new status.json, so the old one is written over."""
    script = 'mount -t tmpfs -o size=64k tmpfs "$0" && cd "$0" && "$@"; code=$?; cat */*/status.json; exit $code'
    process = start(tmp_path, *SMALL, before=("unshare", "-rm", "sh", "-c", script, str(tmp_path)))
    out, err = ended(process)
    assert process.returncode == 2, err
    *_, sentence = err.splitlines()
    assert len(err.splitlines()) == 2, err  # the other: no stop condition
    assert re.search(r"(metrics.jsonl|status.json) cannot be written: No space left on device$", sentence)
    said = json.loads(out.splitlines()[-1])
    assert (said["state"], f"outplay: {said['error']}") == ("failed", sentence)


@pytest.mark.skipif(not can_mount(), reason="mounting is not allowed here")
def test_resuming_on_a_read_only_disk(copied: Path) -> None:
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    again = ["--resume", str(copied), "--stop", "training_iteration=9"]
    process = start(copied.parent, *again, before=("unshare", "-rm", "sh", "-c", script, str(copied)))
    assert told(process) == f"outplay: {copied} cannot be written: Read-only file system"
    assert {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()} == before


def test_a_run_folder_that_is_deleted_during_training(tmp_path: Path) -> None:
    """Writing a checkpoint does not make the folder anew."""
    process = start(tmp_path, *SMALL, "--checkpoint-freq", "1")
    assert process.stdout is not None
    while not process.stdout.readline().startswith("iteration 3"):
        assert process.poll() is None
    (folder,) = tmp_path.glob("*/*")
    folder.rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert "was deleted or moved during training" in told(process)
    assert not folder.exists()


SINK = """
import resource, sys
from pathlib import Path
from outplay import RunError
from outplay.runs.sinks import Csv, NoOptions, SinkContext, TensorBoard

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
kind = Csv if sys.argv[1] == "csv" else TensorBoard
sink = kind(SinkContext(Path.cwd(), "x", {}, [], 40), NoOptions())
try:
    for step in range(100):
        sink.write({"timesteps_total": step, "learner": {"kl": 0.1, f"figure{step // 10}": 1.0}})
except RunError as error:
    print(error)
sink.close()
"""


def test_a_run_that_cannot_be_created_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outplay.runs import folder as module

    def refuse(path: Path, text: str) -> None:
        path.write_text(text[:10])
        raise RunError("no room")

    monkeypatch.setattr(module, "replace_file", refuse)
    with pytest.raises(RunError, match="no room"):
        make(tmp_path)
    assert not list(tmp_path.glob("it/*"))


@pytest.mark.parametrize("sink", ["csv", "tensorboard"])
def test_other_figures_that_find_no_room(
    tmp_path: Path, sink: str, run_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Files beyond 2 KB are refused: there is one sentence, and closing does not try again."""
    done = run_script(SINK, sink)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip().endswith("cannot be written: File too large")
