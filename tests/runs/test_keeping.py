"""Which checkpoints a run writes and keeps."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from outplay import PPO, RunError
from outplay.runs import checkpoint
from tests.runs.common import CONFIG, lines, make, weights


def test_keep_checkpoints_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_freq=1, keep_checkpoints=2, stop={"training_iteration": 12})
    run.train()
    kept = [int(path.name.removeprefix("checkpoint_")) for path in run.folder.checkpoints()]
    scores = {line["training_iteration"]: line["episode_return_mean"] or -1.0 for line in lines(run)}
    best = max(scores.values())
    assert kept[-2:] == [11, 12]
    assert len(kept) <= 3
    assert max(scores[number] for number in kept) == best


def test_checkpoints_by_the_clock_change_nothing_else(tmp_path: Path) -> None:
    never = make(tmp_path, checkpoint_every_s=0, stop={"training_iteration": 12})
    never.train()
    often = make(tmp_path, checkpoint_every_s=1e-6, keep_checkpoints=2, stop={"training_iteration": 12})
    seen: set[str] = set()
    often.train(lambda _: seen.update(path.name for path in often.folder.checkpoints()))
    assert len(never.folder.checkpoints()) == 1
    assert seen
    assert len(often.folder.checkpoints()) <= 3
    assert weights(never) == weights(often)
    timed = ("_s", "stages_s", "learner")
    for ours, theirs in zip(lines(never), lines(often), strict=True):
        assert {k: v for k, v in ours.items() if not k.endswith(timed)} == {
            k: v for k, v in theirs.items() if not k.endswith(timed)
        }
        assert ours["learner"] == theirs["learner"]


def test_by_default_it_is_saved_every_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is moved on by hand: 100 s per iteration."""
    run = make(tmp_path, stop={"training_iteration": 8})
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 100.0 * run.algorithm.iteration)
    run.train()
    assert [int(path.name[-6:]) for path in run.folder.checkpoints()] == [3, 6, 8]


def test_checkpoint_at_end_can_be_switched_off(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_at_end=False)
    run.train()
    assert run.folder.checkpoints() == []


def test_saving_twice_keeps_the_first_until_the_second_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PPO(env="CartPole-v1", config=CONFIG) as trainer:
        path = Path(trainer.save(tmp_path))
        before = (path / "state.json").read_bytes()
        real = Path.rename

        def fail(self: Path, target: Path) -> Path:
            if self.name.endswith(".part") and ".old." not in self.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, target)

        monkeypatch.setattr(checkpoint, "exchange", lambda *_: False)  # as where the file system cannot
        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(RunError, match="No space left"):
            trainer.save(tmp_path)
        monkeypatch.undo()
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        assert (path / "state.json").read_bytes() == before
        (tmp_path / ".checkpoint_000003.99.part").mkdir()  # left by a process that was killed
        trainer.save(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
