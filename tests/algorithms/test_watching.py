"""render_env and record_env: episodes of an evaluation environment, never of a training one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import imageio_ffmpeg
import numpy as np
import pytest

from outplay import PPO, Callback, ConfigError, EnvError
from outplay.runs.run import Run
from tests import probes
from tests.algorithms.test_evaluation import SMALL, inline_engine
from tests.cli.common import Outcome
from tests.cli.conftest import cli

__all__ = ["cli", "inline_engine"]  # fixtures

EVALUATED = {**SMALL, "evaluation_interval": 2, "evaluation_duration": 5}


class Shown(probes.Walk):
    """Notes in which render mode each environment was made, and how many episodes and steps it played."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 30}
    played: ClassVar[list[list[Any]]] = []  # [render mode, episodes]

    def __init__(self, length: int = 12, render_mode: str | None = None) -> None:
        super().__init__(length)
        self.render_mode = render_mode
        self.note: list[Any] = [render_mode, 0]
        self.played.append(self.note)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.note[1] += 1
        return super().reset(seed=seed)

    def render(self) -> Any:
        return np.full((64, 64, 3), 200, np.uint8)


@pytest.fixture(autouse=True)
def _headless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    Shown.played.clear()


def train(env: Any, iterations: int = 4, **config: Any) -> bytes:
    with PPO(env=env, config={**EVALUATED, **config}) as trainer:
        for _ in range(iterations):
            trainer.train()
        return trainer.policy.flat.numpy().tobytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Videos


def test_videos_are_in_the_run_folder_and_training_is_the_same(tmp_path: Path) -> None:
    config = {**EVALUATED, "env": "CartPole-v1", "record_env": True}
    run = Run.create({"env": "CartPole-v1", "config": config, "stop": {"training_iteration": 8}})
    run.train()
    folder = run.folder.path / "videos"
    # 5 episodes each: after 10 of them the next video is due.
    assert names(folder) == ["iteration_000002.mp4", "iteration_000006.mp4"]
    assert imageio_ffmpeg.count_frames_and_secs(str(folder / "iteration_000002.mp4"))[0] > 5
    assert train("CartPole-v1", 8) == run.algorithm.policy.flat.numpy().tobytes()


@pytest.mark.parametrize("beside", [False, True])
def test_a_resumed_run_records_when_it_would_have(tmp_path: Path, beside: bool) -> None:
    config = {**EVALUATED, "record_env": str(tmp_path / "one"), "record_env_interval": 8}
    if beside:
        config |= {"evaluation_parallel_to_training": True, "evaluation_num_workers": 1}
    with PPO(env=Shown, config=config) as whole:
        for _ in range(8):
            whole.train()
    with PPO(env=Shown, config={**config, "record_env": str(tmp_path / "two")}) as first:
        for _ in range(5):
            first.train()
        path = first.save(tmp_path)
    with PPO.from_checkpoint(path, env=Shown) as second:
        for _ in range(3):
            second.train()
    assert names(tmp_path / "one") == names(tmp_path / "two") == ["iteration_000002.mp4", "iteration_000006.mp4"]


def test_only_an_evaluation_environment_is_recorded(tmp_path: Path) -> None:
    train(Shown, record_env=str(tmp_path / "videos"), evaluation_config={"env_config": {"length": 3}})
    assert names(tmp_path / "videos") == ["iteration_000002.mp4"]
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "videos" / "iteration_000002.mp4"))[0] == 4
    drawn = [episodes for mode, episodes in Shown.played if mode == "rgb_array"]
    assert drawn == [1, 1]  # one frame before training, one episode


class LosesEncoder(Callback):
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        self.monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)


def test_an_encoder_that_fails_during_training_is_no_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**EVALUATED, "record_env": True, "record_env_interval": 1}
    experiment = {"env": "tests.algorithms.test_watching:Shown", "config": config, "stop": {"training_iteration": 8}}
    run = Run.create(experiment, callbacks=[LosesEncoder(monkeypatch)])
    assert run.train() == "training_iteration reached 8"
    assert caplog.text.count("record_env: there will be no more videos: videos need imageio-ffmpeg") == 1


# Windows


def test_a_window_shows_one_episode_of_an_evaluation_environment_after_each_evaluation() -> None:
    weights = train(Shown, render_env=True)
    shown = [episodes for mode, episodes in Shown.played if mode == "human"]
    assert shown == [0, 1, 1]  # it is made once before training, to see whether it can be
    Shown.played.clear()
    assert train(Shown) == weights
    assert {mode for mode, _ in Shown.played} == {None}


def test_a_window_of_gymnasium() -> None:
    assert train("CartPole-v1", render_env=True, max_episode_steps=5) == train("CartPole-v1", max_episode_steps=5)


def test_a_window_of_an_atari_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is drawn, in colours, three times as large."""
    import pygame

    drawn = []
    flip = pygame.display.flip

    def note() -> None:
        drawn.append(pygame.surfarray.array3d(pygame.display.get_surface()))
        flip()

    monkeypatch.setattr(pygame.display, "flip", note)
    config = {**SMALL, "train_batch_size": 4, "evaluation_interval": 1, "evaluation_duration": 1, "render_env": True}
    with PPO(env="ALE/Pong-v5", config={**config, "evaluation_max_episode_steps": 5}) as trainer:
        trainer.train()
    assert [frame.shape for frame in drawn] == [(480, 630, 3)] * 6
    assert len(np.unique(drawn[-1].reshape(-1, 3), axis=0)) > 2
    assert not pygame.display.get_init()


def test_a_window_that_fails_is_no_failure_of_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Shown, **_: Any) -> Any:
        if self.render_mode == "human":
            raise RuntimeError("the window was closed")
        return reset(self)

    reset = Shown.reset
    monkeypatch.setattr(Shown, "reset", fails)
    train(Shown, render_env=True)
    assert caplog.text.count("render_env: no more episodes will be shown: environment ") == 1


def test_without_a_display_there_is_one_sentence(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    arguments = ["--env", "CartPole-v1", "--config", "evaluation_interval=1", "--config", "render_env=true"]
    code, out, err = cli("train", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("outplay: render_env: there is no display for a window")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "results").exists()


class NoMode(Shown):
    def __init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (probes.Walk, "has no render mode 'human'"),
        (NoMode, "takes no argument render_mode"),
    ],
)
def test_an_environment_without_a_window_is_refused_before_training(env: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=f"render_env: .*{sentence}.*use record_env: true"):
        PPO(env=env, config={**EVALUATED, "render_env": True})


def test_record_env_is_true_or_a_folder() -> None:
    with pytest.raises(ConfigError, match="record_env must be true or false or a string"):
        PPO(env="CartPole-v1", config={"evaluation_interval": 1, "record_env": 5})
