"""What commands show: metrics, videos, heartbeats; and the output of environments, which is kept apart from that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import PPO, EnvError, RunError, messages
from outplay.cli import output
from outplay.collect.video import record_video
from outplay.envs import EnvSpec
from outplay.formatting import number
from outplay.runs.run import Run
from tests import probes
from tests.cli.common import SMALL, Outcome, only_run, start
from tests.runs.common import make

NOISE = [
    "made, says Python",
    "compiled, says C",
    "no window, says C",
    "reset, says Python",
    "UserWarning: this is old",
]
SCRIPT = Path(messages.__file__).with_name("deduplicate.py")


# What environments print


@pytest.mark.parametrize("workers", ["2", pytest.param("0", marks=pytest.mark.slow)])
def test_what_environments_print_is_said_once_and_not_on_stdout(tmp_path: Path, workers: str) -> None:
    noisy = ["--env", "tests.probes:Noisy", *SMALL[:-1], workers, "--stop", "training_iteration=2", "--json"]
    running = start(tmp_path, *noisy)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 0, err
    assert [json.loads(line)["training_iteration"] for line in out.splitlines()] == [1, 2]
    for noise in NOISE:
        assert err.count(noise) == 1, err


@pytest.mark.slow
def test_environments_print_to_stderr_without_json_too(tmp_path: Path) -> None:
    running = start(tmp_path, "--env", "tests.probes:Noisy", *SMALL, "--stop", "training_iteration=1")
    out, err = running.communicate(timeout=100)
    assert len(out.splitlines()) == 3
    assert err.count("compiled, says C") == 1
    command = [sys.executable, "-m", "outplay", "evaluate", str(only_run(tmp_path)), "--trust", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert json.loads(done.stdout)["episodes"] == 10
    assert done.stderr.count("compiled, says C") == 1


def test_a_dry_run_of_a_noisy_environment_is_yaml(tmp_path: Path) -> None:
    import yaml

    running = start(tmp_path, "--env", "tests.probes:Noisy", "--dry-run")
    out, _ = running.communicate(timeout=100)
    assert yaml.safe_load(out)["tests.probes.Noisy"]["env"] == "tests.probes:Noisy"


def said(*pieces: bytes, how: str = "once") -> str:
    """The output of deduplicate.py for this input, which it reads piece by piece."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "mark", how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as passer:
        assert passer.stdin is not None
        assert passer.stdout is not None
        assert passer.stderr is not None
        for piece in pieces:
            os.write(passer.stdin.fileno(), piece)
        os.write(passer.stdin.fileno(), b"\nmark\n")
        assert passer.stdout.read(1) == b"\n"  # now all of it is passed on
        passer.stdin.close()
        return passer.stderr.read().decode()


def test_a_message_is_a_line_with_what_is_indented_or_a_traceback() -> None:
    warning = b"a.py:1: UserWarning: old\n  warnings.warn(x)\n"
    other = b"b.py:9: UserWarning: new\n  warnings.warn(x)\n"
    assert said(warning, other, warning, b"one\n", b"one\n", b"two\n") == (warning + other).decode() + "one\ntwo\n"
    assert said(b"one\n", b"one\n", how="all") == "one\none\n"
    failures = [b'Traceback (most recent call last):\n  File "a.py"\nValueError: %d\n' % i for i in (1, 2)]
    assert said(failures[0], failures[1], failures[0]) == b"".join(failures).decode()
    assert said(b"half a ", b"line\n", b"the end of it, without a newline") == (
        "half a line\nthe end of it, without a newline\n"
    )


# Figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [(21.04, "21.0"), (-20.96, "-21.0"), (3.14, "3.1"), (0.03, "0.030"), (-0.5, "-0.50"), (0.0, "0.0"),
     (0.00012, "0.00012"), (3e-7, "3.0e-07"), (float("nan"), "–"), (1234.56, "1234.6")],
)  # fmt: skip
def test_small_figures_are_not_lost(value: float, shown: str) -> None:
    assert number(value) == shown


def test_sparse_returns_are_shown(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "sparse.py").write_text(
        "from tests.probes import Walk\n"
        "class Sparse(Walk):\n"
        "    def step(self, action):\n"
        "        observation, _, terminated, truncated, info = super().step(action)\n"
        "        return observation, 0.034 * (terminated or truncated), terminated, truncated, info\n"
    )
    stop = ["--stop", "training_iteration=6"]
    code, out, err = cli("train", "--env", "sparse:Sparse", *SMALL, *stop, "--config", "env_config.length=10")
    assert code == 0, err
    assert "return 0.034 (0.034 to 0.034)" in out
    assert "return 0.034 (0.034 to 0.034)" in cli("evaluate", "sparse.Sparse", "--trust")[1]
    assert " 0.034 " in cli("runs")[1]


# Signs of life


def test_off_a_terminal_a_long_iteration_shows_that_it_is_alive(
    cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_HEARTBEAT_S", 0.05)
    slow = ["--env", "tests.probes:Walk", "--config", "env_config={sleep: 0.005}", *SMALL]
    code, out, err = cli("train", *slow, "--stop", "training_iteration=2")
    assert code == 0, err
    assert "after iteration 0, collect: 0 s so far" in err
    assert "so far" not in out
    code, _, err = cli("evaluate", "tests.probes.Walk", "--trust")
    assert code == 0
    assert "evaluating: 0 s so far" in err


def test_nothing_is_said_while_something_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with output.heartbeat(lambda: "working", sys.stderr) as reset_timer:
        reset_timer()
    assert capsys.readouterr().err == ""


# Videos


def film(tmp_path: Path, **env_config: Any) -> np.ndarray:
    import imageio_ffmpeg

    with PPO(env=probes.Drawn, config={"num_envs": 2, "num_workers": 0, "env_config": env_config}) as trainer:
        record_video(trainer.env_spec, trainer.policy, tmp_path / "game.mp4", 0)
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-i",
        str(tmp_path / "game.mp4"),
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8)


def test_a_video_is_not_black_and_mujoco_can_draw_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes.util

    for name in ("SDL_VIDEODRIVER", "MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    probes.Drawn.notes.clear()
    assert film(tmp_path).mean() > 150
    expected = "egl" if ctypes.util.find_library("EGL") else "osmesa" if ctypes.util.find_library("OSMesa") else None
    assert set(probes.Drawn.notes) == {expected}
    assert "MUJOCO_GL" not in os.environ  # others who are started later find out for themselves
    monkeypatch.setenv("DISPLAY", ":0")
    probes.Drawn.notes.clear()
    film(tmp_path)
    assert set(probes.Drawn.notes) == {None}


@pytest.mark.parametrize(
    ("flaw", "sentence"),
    [
        ("raises", "RuntimeError: no pencil"),
        ("draws nothing", "TypeError: render() must return an RGB array, not NoneType"),
    ],
)
def test_a_video_that_fails_leaves_the_figures(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str, sentence: str
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    flawed = ["--env", "tests.probes:Drawn", "--config", f"env_config={{flaw: {flaw}}}", *SMALL]
    assert cli("train", *flawed, "--stop", "training_iteration=1")[0] == 0
    arguments = ["evaluate", str(only_run(tmp_path)), "--trust", "--episodes", "2", "--video", "game.mp4"]
    code, out, err = cli(*arguments)
    assert code == 2
    assert out.splitlines()[1].startswith("2 episodes, ")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"outplay: environment 'tests.probes:Drawn' cannot be recorded: {sentence} (")
    assert "no display: MuJoCo may need MUJOCO_GL=egl" in err
    code, out, _ = cli(*arguments, "--json")
    assert (code, json.loads(out)["episodes"]) == (2, 2)
    assert not list(tmp_path.glob("*.mp4"))


def test_a_video_of_envpool_and_one_without_a_known_format_are_refused(
    cli: Callable[..., Outcome], tmp_path: Path
) -> None:
    with pytest.raises(EnvError, match="'envpool/Pong-v5' cannot be recorded: EnvPool does not render"):
        record_video(EnvSpec("envpool/Pong-v5"), None, tmp_path / "game.mp4", 0)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with PPO(env=probes.Drawn, config={"num_envs": 2, "num_workers": 0}) as trainer, pytest.raises(RunError):
        record_video(trainer.env_spec, trainer.policy, tmp_path / "file" / "game.mp4", 0)
    assert cli("train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=1")[0] == 0
    code, out, err = cli("evaluate", "CartPole-v1", "--video", "game.txt")
    assert (code, out) == (2, "")  # told before anything is played
    assert "the file's name must end in .mp4" in err


def test_a_run_whose_video_fails_is_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before training passes, and the environment can no longer draw when the run ends."""
    run: Run = make(tmp_path, env=probes.Drawn, video_at_end=True)
    assert run.train(lambda _: monkeypatch.setattr(probes.Drawn, "render", lambda _: None)) == (
        "training_iteration reached 4"
    )
    assert run.video is None
    assert "the video could not be recorded: environment 'tests.probes:Drawn' cannot be recorded" in caplog.text
    assert json.loads((run.folder.path / "status.json").read_text())["state"] == "finished"


def test_without_ffmpeg_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", missing)
    with pytest.raises(RunError, match=r"videos need ffmpeg: No ffmpeg exe could be found"):
        record_video(EnvSpec("CartPole-v1"), None, tmp_path / "game.mp4", 0)  # type: ignore[arg-type]
