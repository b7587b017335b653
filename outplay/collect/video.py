"""Records one episode of a policy as a video file."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from outplay.collect.episodes import EpisodeLimits, play_episodes
from outplay.envs import EnvSpec, Vector, make_vector
from outplay.envs.group import interleave
from outplay.envs.making import has_native_vector
from outplay.envs.native import CartPoleVector
from outplay.envs.vector import PythonVector
from outplay.errors import ConfigError, EnvError, RunError
from outplay.policies import Policy
from outplay.streams import seed_for, stream

# Options of ffmpeg for each format, besides the container's default encoder.
_YUV = ["-pix_fmt", "yuv420p"]
_FORMATS = {
    **dict.fromkeys((".mp4", ".mkv", ".mov", ".avi"), _YUV),
    ".webm": [*_YUV, "-deadline", "realtime", "-cpu-used", "8", "-crf", "32", "-b:v", "0"],
    # A palette for each frame: one for the whole video would keep all frames in memory.
    ".gif": ["-filter_complex", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"],
}
_MAX_GIF_FPS = 50.0  # viewers play faster animations slowly
_MAX_FRAMES = 20_000  # frames
_MIN_PIXELS = 320  # pixels: smaller frames are enlarged
_NO_DISPLAY_HINT = "no display: MuJoCo may need MUJOCO_GL=egl (or osmesa), pygame SDL_VIDEODRIVER=dummy"


def check_video(path: Path) -> None:
    """Raise if no video can be written to `path`: format, encoder, folder. Call it before playing the episode."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--video {path}: the file's name must end in {', '.join(_FORMATS)}")
    if path.is_dir():
        raise ConfigError(f"--video {path}: this is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise RunError(f"the video {path} cannot be written: the folder {path.parent} does not exist")
    partial = _partial(path)
    try:
        partial.open("wb").close()
        partial.unlink()
    except OSError as error:
        raise RunError(f"the video {path} cannot be written: {error.strerror or error}") from error
    check_encoder(path.suffix)


def check_encoder(suffix: str) -> None:
    """Raise if videos of this format cannot be encoded: encodes one frame."""
    try:
        with tempfile.TemporaryDirectory() as folder, _VideoWriter(Path(folder) / f"test{suffix}", 10.0) as video:
            video.add(np.zeros((_MIN_PIXELS, _MIN_PIXELS, 3), np.uint8))
    except OSError as error:
        raise RunError(f"this ffmpeg cannot encode {suffix} videos: {error}") from error


def is_encoder_installed() -> bool:
    try:
        _ffmpeg()
    except RunError:
        return False
    return True


def check_renders(spec: EnvSpec, renders: bool | None) -> None:
    """Raise if the environment cannot be recorded. `renders` is that of its Probe."""
    if spec.is_envpool:
        raise EnvError(f"environment {spec.name!r} cannot be recorded: EnvPool does not render its environments")
    if renders is False:
        raise EnvError(
            f"environment {spec.name!r} cannot be recorded: it does not render images (its metadata['render_modes'] "
            "has no rgb_array)"
        )


def try_to_render(spec: EnvSpec) -> None:
    """Render one frame. Raises EnvError if this fails."""
    with headless_rendering(), closing(frame_source(spec)) as source:
        seeds = [seed_for(0, "video")]
        source.vector.reset(np.ones(1, bool), seeds)
        source.frame(seeds, None)


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
    check_renders(spec, None)
    check_video(path)
    limits = EpisodeLimits(total_steps=min(longest or _MAX_FRAMES, _MAX_FRAMES))
    partial = _partial(path)
    try:
        with (
            headless_rendering(),
            closing(frame_source(spec)) as source,
            _VideoWriter(partial, source.fps) as video,
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


def _partial(path: Path) -> Path:
    """The file that is written; it is renamed when it is complete."""
    return path.with_name(f".{path.stem}.part{path.suffix}")


def _ffmpeg() -> str:
    """The path of ffmpeg."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise RunError("videos need imageio-ffmpeg: pip install 'outplay[video]'") from error
    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise RunError(f"videos need ffmpeg: {error}") from error


class _VideoWriter:
    """Writes frames to a video file. The first frame sets the size.

    ffmpeg runs in a process of its own, whose messages go to a file: the last one is the reason of a failure.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._program = _ffmpeg()
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, frame: np.ndarray) -> None:
        frame = _enlarged(frame)
        if self._process is None:
            self._process = self._start(*frame.shape[:2])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except OSError as error:
            raise self._failure() from error

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        suffix = self._path.suffix.lower()
        fps = min(self._fps, _MAX_GIF_FPS) if suffix == ".gif" else self._fps
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:g}", "-i", "-"]
        target = ["-an", *_FORMATS[suffix], "-r", f"{fps:g}", str(self._path)]
        return subprocess.Popen(
            [self._program, "-y", "-v", "error", *source, *target],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._messages,
            start_new_session=True,  # Ctrl-C must not end it: the command does
        )

    def __exit__(self, kind: object, *_: object) -> None:
        process = self._process
        with self._messages:
            if process is None:
                return
            assert process.stdin is not None
            with suppress(OSError):  # it has ended: its exit code tells
                process.stdin.close()
            if kind is not None:
                process.kill()
            if process.wait() and kind is None:
                raise self._failure()

    def _failure(self) -> OSError:
        assert self._process is not None
        self._process.wait()
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        return OSError(lines[-1] if lines else f"ffmpeg ended with exit code {self._process.returncode}")


@contextmanager
def headless_rendering() -> Iterator[None]:
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


class FrameSource(Protocol):
    """An environment to play in, with pictures of it."""

    vector: Vector  # of one environment: the same that evaluations have
    fps: float

    def frame(self, seeds: list[int], actions: np.ndarray | None) -> np.ndarray:
        """The picture after the reset (with these seeds, without actions), or after a step."""

    def skip(self, seeds: list[int], actions: np.ndarray | None) -> None:
        """Called instead of `frame` where no picture is needed."""

    def close(self) -> None: ...


def frame_source(spec: EnvSpec) -> FrameSource:
    """The source for an environment that `check_renders` accepts."""
    if spec.is_atari:
        return AtariFrames(spec)
    return _CartPoleFrames(spec) if has_native_vector(spec) else _RenderedFrames(spec)


class _RenderedFrames:
    """Frames from the environment's render()."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        vector = PythonVector(spec, 1, render_mode="rgb_array")
        self.vector: Vector = vector
        self._env = vector.envs[0]
        self.fps = float(self._env.metadata.get("render_fps") or 30)

    def frame(self, _: list[int], __: np.ndarray | None) -> np.ndarray:
        with _render_errors(self._spec):
            frame: np.ndarray = _rendered(self._env)
        return frame

    def skip(self, _: list[int], __: np.ndarray | None) -> None:
        pass

    def close(self) -> None:
        with _render_errors(self._spec):
            self.vector.close()


class _CartPoleFrames:
    """Frames of Gymnasium's vector of CartPole, which draws itself."""

    fps = 50.0

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._cart = CartPoleVector(spec, 1)
        self.vector: Vector = self._cart

    def frame(self, _: list[int], __: np.ndarray | None) -> np.ndarray:
        with _render_errors(self._spec):
            return self._cart.render()

    def skip(self, _: list[int], __: np.ndarray | None) -> None:
        pass

    def close(self) -> None:
        self.vector.close()


class AtariFrames:
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

    def skip(self, seeds: list[int], actions: np.ndarray | None) -> None:
        self.frame(seeds, actions)  # the second game must not fall behind

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
