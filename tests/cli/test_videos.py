"""Videos: their formats, and what makes them impossible, which is told before anything is played or trained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import pytest

from outplay import PPO
from outplay.collect.video import record_video
from tests import probes
from tests.cli.common import SMALL, Outcome, only_run

ONCE = [*SMALL, "--stop", "training_iteration=1"]


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "h264"), ("a.webm", "vp9"), ("a.GIF", "gif"), ("a.mkv", "h264"), ("a.avi", "mpeg4")]
)
def test_formats(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, codec: str) -> None:
    with PPO(env=probes.Drawn, config={"num_envs": 2, "num_workers": 0}) as trainer:
        record_video(trainer.env_spec, trainer.policy, tmp_path / name, 0)
    assert capfd.readouterr() == ("", "")  # nothing of ffmpeg
    assert [path.name for path in tmp_path.iterdir()] == [name]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(tmp_path / name), "-f", "null", "-"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert f"Video: {codec}" in shown
    assert "320x320" in shown
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / name))[0] > 5


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("game.txt", "--video game.txt: the file's name must end in .mp4, "),
        ("game", "--video game: the file's name must end in .mp4, "),
        ("folder.mp4", "--video folder.mp4: this is a folder; give the name of a file in it"),
        ("missing/game.mp4", "the video missing/game.mp4 cannot be written: the folder missing does not exist"),
        ("/proc/self/game.mp4", "the video /proc/self/game.mp4 cannot be written: No such file or directory"),
        ("/sys/kernel/game.mp4", "the video /sys/kernel/game.mp4 cannot be written: "),
    ],
)
def test_a_target_that_cannot_be_written_is_refused_before_playing(
    cli: Callable[..., Outcome], tmp_path: Path, target: str, sentence: str
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    assert cli("train", "--env", "CartPole-v1", "--name", "poles", *ONCE)[0] == 0
    code, out, err = cli("evaluate", "poles", "--video", target)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"outplay: {sentence}")


def test_an_ffmpeg_that_cannot_encode_is_noticed_before_playing(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = tmp_path / "ffmpeg"
    poor.write_text("#!/bin/sh\ncat > /dev/null\necho 'much ado' >&2\necho 'Unknown encoder vp9' >&2\nexit 1\n")
    poor.chmod(0o755)
    assert cli("train", "--env", "CartPole-v1", "--name", "poles", *ONCE)[0] == 0
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: str(poor))
    code, out, err = cli("evaluate", "poles", "--video", "game.webm")
    assert (code, out, err) == (2, "", "outplay: this ffmpeg cannot encode .webm videos: Unknown encoder vp9\n")


def test_an_environment_that_does_not_render_is_refused_before_playing(
    cli: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert cli("train", "--env", "tests.probes:Walk", *ONCE)[0] == 0
    code, out, err = cli("evaluate", only_run(tmp_path).name, "--trust", "--video", "game.mp4")
    assert (code, out) == (2, "")
    assert "environment 'tests.probes:Walk' cannot be recorded: it does not render images" in err


CONFIG = "num_envs: 4, train_batch_size: 40, num_workers: 0"
# What asks for videos while a run trains, and how the warning begins.
ASKING = {
    "video_at_end": (f"video_at_end: true, config: {{{CONFIG}}}", "there will be no video"),
    "record_env": (
        f"config: {{{CONFIG}, evaluation_interval: 1, evaluation_duration: 1, record_env: true}}",
        "there will be no videos",
    ),
}


@pytest.mark.parametrize("setting", ASKING)
@pytest.mark.parametrize(
    ("env", "hidden", "reason"),
    [
        ("CartPole-v1", "imageio_ffmpeg", "videos need imageio-ffmpeg: pip install 'outplay[video]'"),
        ("CartPole-v1", "pygame", "environment 'CartPole-v1' cannot be recorded: DependencyNotInstalled: "),
        ("tests.probes:Walk", "", "environment 'tests.probes:Walk' cannot be recorded: it does not render images"),
    ],
)
def test_a_video_that_is_impossible_is_told_before_training(
    cli: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    env: str,
    hidden: str,
    reason: str,
) -> None:
    """The run trains, and is not a failure."""
    if hidden:
        monkeypatch.setitem(sys.modules, hidden, None)
    body, sentence = ASKING[setting]
    (tmp_path / "film.yml").write_text(f"film: {{env: '{env}', stop: {{training_iteration: 2}}, {body}}}")
    code, out, err = cli("train", "-f", "film.yml")
    assert code == 0, err
    assert err.splitlines()[0].startswith(f"WARNING: {setting}: {sentence}: {reason}")
    assert err.count(reason) == 1  # it is said once, not again at the end
    assert "training_iteration reached 2" in out
    assert setting != "video_at_end" or "--video" not in out
    assert json.loads((only_run(tmp_path) / "status.json").read_text())["state"] == "finished"


def test_a_video_at_the_end_that_is_possible_is_not_warned_about(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    body, _ = ASKING["video_at_end"]
    (tmp_path / "film.yml").write_text(f"film: {{env: CartPole-v1, stop: {{training_iteration: 1}}, {body}}}")
    code, out, err = cli("train", "-f", "film.yml")
    assert (code, err) == (0, "")
    assert f"video of one episode: {only_run(tmp_path)}/videos/checkpoint_000001.mp4" in out
    assert "to watch it" not in out  # there is one
