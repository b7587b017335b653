"""The request `video`, and the listing of videos."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest

from outplay.runs.folder import RunFolder
from outplay.runs.run import Run
from tests import probes
from tests.runs.common import lines, make, weights

IMPALA = {"num_workers": 1, "train_batch_size": 40, "model": {"fcnet_hiddens": [8]}}


def train(results: Path, request: str = "", **body: Any) -> Run:
    """Four iterations. The request is made after the first and after the third."""
    run = make(results, **body)

    def ask(result: Any) -> None:
        if request and result["training_iteration"] % 2:
            RunFolder(run.folder.path).request(request)

    run.train(ask)
    return run


def test_a_run_records_a_video_on_request_and_its_result_does_not_change(tmp_path: Path) -> None:
    body = {"config": {"seed": 3, "evaluation_explore": True}}  # then actions of the video are drawn, too
    plain, asked = train(tmp_path / "plain", **body), train(tmp_path / "asked", "video", **body)
    assert weights(plain) == weights(asked)
    assert [line["episode_returns"] for line in lines(plain)] == [line["episode_returns"] for line in lines(asked)]
    found = asked.folder.videos()
    assert [video.name for video in found] == ["iteration_000002.mp4", "iteration_000004.mp4"]
    for video in found:
        assert video.bytes == video.path.stat().st_size > 0
        assert imageio_ffmpeg.count_frames_and_secs(str(video.path))[0] > 5
        assert video.written.tzinfo is not None
    assert plain.folder.videos() == []
    assert asked.folder.take_requests() == set()


def test_without_pictures_one_sentence_is_logged_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(tmp_path, "video", env=probes.Walk)
    sentences = [record.getMessage() for record in caplog.records if "video" in record.getMessage()]
    assert len(sentences) == 2  # one for each request
    assert (
        "the video could not be recorded: environment 'outplay.testing.probes:Walk' cannot be recorded" in sentences[0]
    )
    assert run.stop_reason == "training_iteration reached 4"
    assert run.folder.videos() == []


def test_an_environment_that_cannot_draw_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = train(tmp_path, "video", env=probes.Drawn, config={"env_config": {"flaw": "raises"}})
    assert "cannot be recorded: RuntimeError: no pencil" in caplog.text
    assert run.stop_reason == "training_iteration reached 4"


@pytest.mark.slow
def test_an_asynchronous_run_records_a_video_too(process_engine: None, tmp_path: Path) -> None:
    data = {"name": "it", "env": "CartPole-v1", "run": "IMPALA", "stop": {"training_iteration": 2}, "config": IMPALA}
    run = Run.create(data, tmp_path)
    run.folder.request("video")
    run.train()
    assert [video.name for video in run.folder.videos()] == ["iteration_000001.mp4"]


def test_the_listing_has_video_files_only(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.videos() == []
    folder.videos_path.mkdir()
    for age, name in enumerate(("b.mp4", "a.webm", "c.GIF")):
        (folder.videos_path / name).write_bytes(b"x" * (age + 1))
        os.utime(folder.videos_path / name, (1_000_000 + age, 1_000_000 + age))
    (folder.videos_path / ".d.part.mp4").touch()
    (folder.videos_path / "notes.txt").touch()
    (folder.videos_path / "folder.mp4").mkdir()
    (tmp_path / "secret.mp4").touch()
    (folder.videos_path / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    found = folder.videos()
    assert [(video.name, video.bytes) for video in found] == [("b.mp4", 1), ("a.webm", 2), ("c.GIF", 3)]
    assert found[0].written == datetime.fromtimestamp(1_000_000).astimezone()
