"""The player, in real processes: what it shows, what it obeys, and how it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from PIL import Image

from outplay.dashboard.messages import HEADER, parsed, sizes
from outplay.dashboard.player import LONGEST_SIDE
from outplay.dashboard.playing import COMMAND
from outplay.runs.folder import RunFolder
from outplay.runs.playing import EpisodeProgress, SavedPolicy
from outplay.runs.playing import play as evaluate
from outplay.runs.run import Run

CONFIG: dict[str, Any] = {
    "num_envs": 2,
    "num_workers": 0,
    "train_batch_size": 32,
    "sgd_minibatch_size": 16,
    "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [8]},
}
FAST = {"command": "speed", "value": 60}


def train(results: Path, env: Any, iterations: int = 1, **config: Any) -> RunFolder:
    body = {"name": "it", "env": env, "stop": {"training_iteration": iterations}, "checkpoint_freq": 1}
    run = Run.create({**body, "config": {**CONFIG, **config}}, results)
    run.train()
    return run.folder


@pytest.fixture(scope="module")
def pole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(tmp_path_factory.mktemp("pole"), "CartPole-v1", 3)


def copied(folder: RunFolder, path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(folder.path, path / "run"))


class Playing:
    """A player process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout

    def write(self, message: dict[str, Any]) -> None:
        self._input.write(json.dumps(message).encode() + b"\n")
        self._input.flush()

    def leave(self) -> None:
        self._input.close()

    def read(self) -> tuple[dict[str, Any], bytes]:
        header = self._output.read(HEADER.size)
        assert header, "the player has ended"
        text, picture = sizes(header)
        return parsed(self._output.read(text)), self._output.read(picture)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> list[tuple[dict[str, Any], bytes]]:
        """The messages up to the first one that fulfils the condition."""
        found = [self.read()]
        while not condition(found[-1][0]):
            found.append(self.read())
        return found

    def first(self, kind: str) -> dict[str, Any]:
        return self.until(lambda message: message["type"] == kind)[-1][0]


@contextmanager
def player(
    folder: RunFolder, checkpoint: str | None = None, seed: int | None = None, trust: bool = False
) -> Iterator[Playing]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(COMMAND, **pipes, start_new_session=True) as process:  # type: ignore[call-overload]
        started = Playing(process)
        started.write({"run": str(folder.path), "checkpoint": checkpoint, "seed": seed, "trust": trust})
        try:
            yield started
        finally:
            started.leave()
            process.wait(60)


def is_end(message: dict[str, Any]) -> bool:
    return message["type"] == "step" and (message["terminated"] or message["truncated"])


def test_it_plays_the_episodes_of_an_evaluation(pole: RunFolder) -> None:
    seed = 11
    with player(pole, "checkpoint_000002", seed) as playing:
        ready, picture = playing.read()
        playing.write(FAST)
        first, second = playing.until(is_end), playing.until(is_end)
    assert picture == b""
    assert ready == {
        "type": "ready",
        "env": "CartPole-v1",
        "algorithm": "PPO",
        "checkpoint": "checkpoint_000002",
        "follows": False,
        "seed": seed,
        "speed": 50,
        "actions": ["0", "1"],
        "has_pictures": True,
        "observation_names": ["0", "1", "2", "3"],
    }
    for number, episode in enumerate((first, second)):
        steps = [message for message, _ in episode]
        assert [message["step"] for message in steps] == list(range(len(steps)))
        assert {(message["episode"], message["seed"]) for message in steps} == {(number, seed)}
        assert steps[0]["action"] is steps[0]["probabilities"] is steps[0]["value"] is None
        for message in steps[1:]:
            assert message["chosen"] == [message["action"]]
            assert sum(message["probabilities"]) == pytest.approx(1, abs=1e-4)
            assert isinstance(message["value"], float)
            assert message["q"] is None
            assert len(message["observation"]) == 4
    shown = Image.open(io.BytesIO(first[0][1]))
    assert shown.format == "JPEG"
    assert shown.size == (LONGEST_SIDE, 320)  # of 600 × 400
    progress = EpisodeProgress()
    settings = {
        "evaluation_duration": len(first) + len(second) - 2,
        "evaluation_duration_unit": "timesteps",
        "seed": seed,
    }
    saved = SavedPolicy.at(pole.checkpoints_path / "checkpoint_000002")
    evaluate(saved, settings, progress=progress)
    assert progress.returns == [episode[-1][0]["return"] for episode in (first, second)]
    assert playing.process.returncode is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this is old")
def test_what_an_environment_prints_does_not_disturb(tmp_path: Path) -> None:
    """And without pictures, there are observations."""
    with player(train(tmp_path, "tests.probes:Noisy"), trust=True) as playing:
        ready, _ = playing.read()
        playing.write(FAST)
        episode = playing.until(is_end)
    assert ready["has_pictures"] is False
    assert ready["observation_names"] == ["0", "1"]
    assert all(message["type"] == "step" and not picture for message, picture in episode)
    assert episode[-1][0]["step"] == 40


def test_commands(pole: RunFolder) -> None:
    with player(pole) as playing:
        ready = playing.first("ready")
        assert (ready["checkpoint"], ready["follows"]) == ("checkpoint_000003", True)
        playing.write({"command": "pause"})
        playing.write({"command": "checkpoint", "name": "checkpoint_000001"})
        assert playing.first("ready")["checkpoint"] == "checkpoint_000001"
        first, picture = playing.read()
        assert (first["step"], bool(picture)) == (0, True)
        for step in (1, 2, 3):  # from here on, nothing comes without a command
            playing.write({"command": "step"})
            message, picture = playing.read()
            assert (message["step"], bool(picture)) == (step, True)
        playing.write({"command": "restart", "seed": 5})
        message, _ = playing.read()
        assert (message["step"], message["episode"], message["seed"]) == (0, 0, 5)
        playing.write({"command": "restart"})
        message, _ = playing.read()
        assert (message["step"], message["episode"], message["seed"]) == (0, 1, 5)
        playing.write({"command": "resume"})
        assert playing.until(is_end)[-1][0]["episode"] == 1
        assert playing.read()[0]["episode"] == 2


def test_a_checkpoint_that_was_deleted(pole: RunFolder, tmp_path: Path) -> None:
    folder = copied(pole, tmp_path)
    with player(folder, "checkpoint_000002") as playing:
        playing.first("step")
        shutil.rmtree(folder.checkpoints_path / "checkpoint_000002")
        shutil.rmtree(folder.checkpoints_path / "checkpoint_000001")
        playing.write({"command": "checkpoint", "name": "checkpoint_000001"})
        error = playing.first("error")
        assert error["fatal"] is False
        assert error["error"].endswith("has no checkpoint_000001 any more")
        playing.write({"command": "restart", "seed": 1})
        assert playing.until(lambda message: message.get("seed") == 1)  # the present one is in memory
    with player(folder, "checkpoint_000002") as playing:
        error, _ = playing.read()
        assert (error["type"], error["fatal"]) == ("error", True)
        assert playing.process.wait(60) == 1


@pytest.mark.slow
def test_new_checkpoints_are_announced_and_followed(pole: RunFolder, tmp_path: Path) -> None:
    folder = copied(pole, tmp_path)
    newest = folder.checkpoints_path / "checkpoint_000003"
    newest.rename(tmp_path / "later")
    with player(folder, "checkpoint_000002") as fixed, player(folder, "newest") as following:
        assert following.first("ready")["checkpoint"] == "checkpoint_000002"
        fixed.first("step")
        (tmp_path / "later").rename(newest)
        assert fixed.first("newer")["checkpoint"] == "checkpoint_000003"
        following.write(FAST)
        assert following.first("ready")["checkpoint"] == "checkpoint_000003"
        step = following.first("step")
        assert step["step"] == 0
        fixed.write({"command": "checkpoint", "name": "newest"})
        assert fixed.first("ready")["checkpoint"] == "checkpoint_000003"


def test_import_paths_need_trust(tmp_path: Path) -> None:
    folder = train(tmp_path, "tests.probes:Frames")
    with player(folder) as playing:
        error, _ = playing.read()
        assert (error["type"], error["fatal"]) == ("error", True)
        assert "tests.probes:Frames" in error["error"]
        assert error["error"].endswith("start the dashboard with --trust")
    with player(folder, trust=True) as playing:
        ready, _ = playing.read()
        assert ready["has_pictures"] is True  # the observation is one
        step, picture = playing.read()
        assert step["observation"] == []
        assert Image.open(io.BytesIO(picture)).size == (8, 8)


def test_modules_in_the_working_directory_are_not_imported(
    pole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`outplay dashboard` may be started in a folder of someone else's runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("torch", "pygame", "gymnasium"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    with player(pole) as playing:
        assert playing.first("step")["step"] == 0
    assert not (tmp_path / "executed").exists()


def test_an_environment_that_raises(tmp_path: Path) -> None:
    folder = train(tmp_path, "tests.probes:Stuck", env_config={"folder": str(tmp_path)})
    with player(folder, trust=True) as playing:
        playing.first("step")
        for name in ("go", "fail", "armed"):
            (tmp_path / name).touch()
        error = playing.first("error")
        assert error["fatal"] is True
        assert "the gripper is stuck" in error["error"]
        assert "\n" not in error["error"]
        assert playing.process.wait(60) == 1


def test_it_ends_when_nobody_reads_although_the_environment_hangs(tmp_path: Path) -> None:
    folder = train(tmp_path, "tests.probes:Stuck", env_config={"folder": str(tmp_path)})
    with player(folder, trust=True) as playing:
        playing.first("step")
        (tmp_path / "armed").touch()
        end = time.monotonic() + 60
        while not (tmp_path / "taken").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert playing.process.poll() is None
        playing.leave()
        playing.process.wait(60)


def test_a_missing_package_is_named_and_the_game_goes_on(
    pole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pygame.py").write_text("raise ImportError('no pygame here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with player(pole) as playing:
        ready, _ = playing.read()
        error, _ = playing.read()
        step, picture = playing.read()
    assert ready["has_pictures"] is False
    assert (error["type"], error["fatal"]) == ("error", False)
    assert "pygame is not installed" in error["error"]
    assert (step["type"], len(step["observation"]), picture) == ("step", 4, b"")


@pytest.mark.slow
def test_q_values_and_the_names_of_the_game(tmp_path: Path) -> None:
    body = {"name": "it", "env": "ALE/Pong-v5", "run": "DQN", "stop": {"training_iteration": 1}}
    config = {"num_envs": 2, "num_workers": 0, "train_batch_size": 8, "learning_starts": 8, "buffer_size": 100}
    run = Run.create({**body, "config": config}, tmp_path)
    run.train()
    with player(run.folder) as playing:
        ready, _ = playing.read()
        playing.write(FAST)
        steps = [playing.read() for _ in range(4)]
    assert ready["actions"] == ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
    for message, _ in steps[1:]:
        assert message["probabilities"] is None
        assert message["value"] == pytest.approx(max(message["q"]), abs=1e-4)
        assert message["q"].index(max(message["q"])) == message["action"]
    assert Image.open(io.BytesIO(steps[0][1])).size == (160, 210)
