"""The replay buffer in checkpoints: segments are written once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import DQN, CheckpointError
from outplay.replay import Replay
from tests import probes
from tests.algorithms.dqn import PROMISED, learner_of, train, trainer


def saved_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch, iterations: int = 8) -> tuple[DQN, list[Path]]:
    """A trainer, and a checkpoint after each iteration, with segments of four steps each."""
    monkeypatch.setattr("outplay.replay.ring._SEGMENT_BYTES", 4 * 4 * 8)
    ours = trainer(probes.Walk, **{**PROMISED, "num_env_groups": 1})
    saved = []
    for _ in range(iterations):
        ours.train()
        saved.append(Path(ours.save(folder)))
    return ours, saved


def inodes(checkpoint: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in (checkpoint / "replay").iterdir()}


def test_a_segment_is_written_once_and_linked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, saved = saved_each_time(tmp_path, monkeypatch)
    before, after = inodes(saved[-2]), inodes(saved[-1])
    assert len(after) == 8
    full, last = "0000-0000000024-0000000028.safetensors", "0000-0000000028-0000000032-open.safetensors"
    assert set(after) - set(before) == {full, last}
    assert all(before[name] == after[name] for name in set(before) & set(after))
    for checkpoint in saved[:-1]:
        shutil.rmtree(checkpoint)
    whole = ours.policy.flat.clone()
    ours.stop()
    with trainer(probes.Walk, **{**PROMISED, "num_env_groups": 1}) as again:
        again.restore(saved[-1])
        assert again.policy.flat.equal(whole)
        assert learner_of(again).replay.steps == 8 * 16
        again.train()
        resumed = inodes(Path(again.save(tmp_path)))  # what was read is linked to, too
        assert all(resumed[name] == after[name] for name in after if name != last)


def test_where_there_are_no_links_segments_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    ours, saved = saved_each_time(tmp_path, monkeypatch)
    assert len(inodes(saved[-1])) == 8
    ours.restore(saved[-1])
    ours.train()
    ours.stop()


def test_a_damaged_segment_is_told_and_an_older_checkpoint_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, saved = saved_each_time(tmp_path, monkeypatch)
    last = max((saved[-1] / "replay").iterdir())
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="is damaged: replay/"):
        ours.restore(saved[-1])
    ours.restore(tmp_path)
    assert ours.iteration == 7
    assert "using checkpoint_000007 instead" in caplog.text
    ours.stop()


def test_after_a_new_beginning_no_segment_of_the_old_replay_is_linked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, saved = saved_each_time(tmp_path / "old", monkeypatch)
    ours.stop()
    with trainer(probes.Walk, **{**PROMISED, "num_envs": 6, "num_env_groups": 1}) as other:
        other.restore(saved[-1])
        train(other, 6)
        path = Path(other.save(tmp_path / "new"))
        assert not set(inodes(path).values()) & set(inodes(saved[-1]).values())
        other.restore(path)
        assert learner_of(other).replay.steps == 6 * 18


def test_two_trainers_in_one_folder_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = saved_each_time(tmp_path, monkeypatch, 5)
    second, _ = saved_each_time(tmp_path, monkeypatch, 5)  # the same names, and other steps
    second.stop()
    with trainer(probes.Walk, **{**PROMISED, "num_env_groups": 1, "seed": 3}) as third:
        train(third, 5)
        third.save(tmp_path)
    first.train()
    path = first.save(tmp_path)
    replay = learner_of(first).replay
    assert isinstance(replay, Replay)
    kept = replay.rewards.copy(), replay.observations[0].copy()
    first.restore(path)
    again = learner_of(first).replay
    assert isinstance(again, Replay)
    assert np.array_equal(again.rewards, kept[0])
    assert np.array_equal(again.observations[0], kept[1])
    first.stop()
