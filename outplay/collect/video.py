"""Records one episode of a policy as a video file."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outplay.collect.episodes import EpisodeLimits, play_episodes
from outplay.envs import EnvSpec, make_vector
from outplay.envs.group import interleave
from outplay.envs.vector import PythonVector
from outplay.errors import ConfigError, EnvError, RunError
from outplay.policies import Policy
from outplay.streams import seed_for, stream

_FORMATS = (".mp4", ".mkv", ".mov", ".webm", ".avi", ".gif")
_MAX_FRAMES = 20_000  # frames
_MIN_PIXELS = 320  # pixels: smaller frames are enlarged
_NO_DISPLAY_HINT = "no display: MuJoCo may need MUJOCO_GL=egl (or osmesa), pygame SDL_VIDEODRIVER=dummy"


def check_video(path: Path) -> None:
    """Raise if the video format or the encoder is missing. Call it before playing the episode."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--video {path}: the file's name must end in {', '.join(_FORMATS)}")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise RunError("videos need imageio-ffmpeg: pip install 'outplay[video]'")
    import imageio_ffmpeg

    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise RunError(f"videos need ffmpeg: {error}") from error


def record_video(
    spec: EnvSpec,
    policy: Policy,
    path: Path,
    seed: int,
    explore: bool = False,
    longest: int | None = None,
    task: Any = None,
) -> float:
    """Play one episode of at most `longest` steps and write it to `path`. Returns the episode's return."""
    check_video(path)
    if spec.is_envpool:
        raise EnvError(f"environment {spec.name!r} cannot be recorded: EnvPool does not render its environments")
    limits = EpisodeLimits(total_steps=longest or _MAX_FRAMES)
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _headless_rendering(),
            closing(_frame_source(spec)) as source,
            closing(_VideoWriter(partial, source.fps)) as video,
        ):

            def watch(actions: np.ndarray | None, _: np.ndarray) -> None:
                video.add(source.frame(seeds, actions))

            seeds, rng = [seed_for(seed, "video")], stream(seed, "video")
            (results,) = interleave([play_episodes(source.vector, policy, seeds, rng, explore, limits, task, watch)])
        partial.replace(path)
    except OSError as error:
        raise RunError(f"the video {path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return float(results.returns[0])


class _VideoWriter:
    """Writes frames to a video file. The first frame sets the size."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._writer: Any = None

    def add(self, frame: np.ndarray) -> None:
        import imageio_ffmpeg

        frame = _enlarged(frame)
        if self._writer is None:
            height, width = frame.shape[:2]
            options = {"fps": self._fps, "macro_block_size": 2}
            self._writer = imageio_ffmpeg.write_frames(str(self._path), (width, height), **options)
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def _headless_rendering() -> Iterator[None]:
    """Configure rendering without a display, for the block.

    MUJOCO_GL must be set before MuJoCo renders for the first time: a failed attempt kills the process. pygame needs no
    setting. SDL_VIDEODRIVER=dummy is not set, because highway-env renders black frames with it.
    """
    chosen: dict[str, str] = {}
    if sys.platform == "linux" and not has_display():
        # SDL tries Wayland, whose library prints an error to stderr if this is not set.
        chosen["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
        libraries = {"EGL": "egl", "OSMesa": "osmesa"}
        if found := [name for library, name in libraries.items() if ctypes.util.find_library(library)]:
            chosen["MUJOCO_GL"] = found[0]
    added = {name: value for name, value in chosen.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def has_display() -> bool:
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _frame_source(spec: EnvSpec) -> _RenderedFrames | _AtariFrames:
    return _AtariFrames(spec) if spec.is_atari else _RenderedFrames(spec)


class _RenderedFrames:
    """Frames from the environment's render()."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self.vector = PythonVector(spec, 1, render_mode="rgb_array")
        self.fps = float(self.vector.envs[0].metadata.get("render_fps") or 30)

    def frame(self, _: list[int], __: np.ndarray | None) -> np.ndarray:
        with _render_errors(self._spec):
            frame: np.ndarray = _rendered(self.vector.envs[0])
        return frame

    def close(self) -> None:
        with _render_errors(self._spec):
            self.vector.close()


class _AtariFrames:
    """Frames of Atari games. The policy gets small grayscale frames, so a second game with the same seed and actions
    provides colour frames."""

    fps = 15.0

    def __init__(self, spec: EnvSpec) -> None:
        colour = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}
        self.vector = make_vector(spec, 1)
        self._twin = make_vector(replace(spec, frame_stack=1, env_config={**spec.env_config, **colour}), 1)

    def frame(self, seeds: list[int], actions: np.ndarray | None) -> np.ndarray:
        if actions is None:
            frames = self._twin.reset(np.ones(1, bool), seeds)
        else:
            frames, *_ = self._twin.step(actions)
        frame: np.ndarray = frames[0][0, -1]
        return frame

    def close(self) -> None:
        self.vector.close()
        self._twin.close()


@contextmanager
def _render_errors(spec: EnvSpec) -> Iterator[None]:
    """Convert exceptions of rendering to an EnvError, with a hint if there is no display."""
    try:
        yield
    except Exception as error:
        hint = "" if has_display() else f" ({_NO_DISPLAY_HINT})"
        raise EnvError(
            f"environment {spec.name!r} cannot be recorded: {type(error).__name__}: {error}{hint}"
        ) from error


def _rendered(env: Any) -> np.ndarray:
    frame = env.render()
    if isinstance(frame, list):
        frame = frame[-1] if frame else None
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise TypeError(f"render() must return an RGB array, not {type(frame).__name__}")
    return frame.astype(np.uint8)


def _enlarged(frame: np.ndarray) -> np.ndarray:
    factor = max(1, _MIN_PIXELS // min(frame.shape[:2]))
    frame = frame.repeat(factor, 0).repeat(factor, 1)
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
