"""Videos: one episode, played by a policy, as an MP4 file."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outplay import spaces
from outplay.envs import EnvSpec, make_vector
from outplay.envs.wrappers import mask_method
from outplay.errors import ConfigError, EnvError, RunError
from outplay.policies import Policy
from outplay.streams import seed_for, stream

Frames = Generator[tuple[np.ndarray, float, float], None, None]  # a picture, its reward, frames per second

_FORMATS = (".mp4", ".mkv", ".mov", ".webm", ".avi", ".gif")
_LONGEST = 20_000  # frames
_SMALLEST = 320  # pixels: smaller pictures are enlarged
_WITHOUT_A_DISPLAY = "no display: MuJoCo may need MUJOCO_GL=egl (or osmesa), pygame SDL_VIDEODRIVER=dummy"


def check_video(path: Path) -> None:
    """Whether a video can be written at all, before anything is played for it."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--video {path}: the file's name must end in {', '.join(_FORMATS)}")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise RunError("videos need imageio-ffmpeg: pip install 'outplay[video]'")


def record_video(
    spec: EnvSpec, policy: Policy, path: Path, seed: int, explore: bool = False, longest: int | None = None
) -> float:
    """Play one episode, or `longest` steps of it, and write it to `path`; the episode's return."""
    check_video(path)
    import imageio_ffmpeg

    if spec.is_envpool:
        raise EnvError(
            f"environment {spec.name!r} cannot be filmed: EnvPool does not draw pictures of its environments"
        )
    total = 0.0
    writer: Any = None
    frames = _play_atari(spec, policy, seed, explore) if spec.is_atari else _play(spec, policy, seed, explore)
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _without_a_display(), closing(frames):
            for number, (frame, reward, fps) in enumerate(frames):
                total += reward
                picture = _enlarged(frame)
                if writer is None:
                    height, width = picture.shape[:2]
                    writer = imageio_ffmpeg.write_frames(str(partial), (width, height), fps=fps, macro_block_size=2)
                    writer.send(None)
                writer.send(np.ascontiguousarray(picture))
                if number >= (longest or _LONGEST):
                    break
        if writer is not None:
            writer.close()
        partial.replace(path)
    except OSError as error:
        raise RunError(f"the video {path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return total


@contextmanager
def _without_a_display() -> Iterator[None]:
    """MuJoCo is told how to draw without one. That must be before its first attempt: one that fails ends the process.

    pygame finds out by itself. SDL_VIDEODRIVER=dummy is not set: highway-env takes it as a wish for black pictures.
    """
    chosen: dict[str, str] = {}
    if sys.platform == "linux" and not has_display():
        # SDL looks for a Wayland server, whose library complains on stderr where this is not set.
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


def _play(spec: EnvSpec, policy: Policy, seed: int, explore: bool) -> Frames:
    env = spec.make(render_mode="rgb_array")
    masks = mask_method(env)
    fps = float(env.metadata.get("render_fps") or 30)
    rng = stream(seed, "video")
    try:
        with _told(spec):
            observation, _ = env.reset(seed=seed_for(seed, "video"))
            picture = _rendered(env)
        yield picture, 0.0, fps
        ended = False
        state = policy.initial_state(1)
        while not ended:
            row = spaces.empty(policy.leaves, 1)
            spaces.write(observation, policy.leaves, row, 0)
            mask = None if masks is None else _mask(spec, policy, masks)
            actions, state, _ = policy.act(row, state, mask, explore, rng)
            action = spaces.nested_action(policy.action_space, policy.to_env(actions)[0])
            with _told(spec):
                observation, reward, terminated, truncated, _ = env.step(action)
                picture = _rendered(env)
            ended = bool(terminated or truncated)
            yield picture, float(reward), fps
    finally:
        with _told(spec):
            env.close()


def _mask(spec: EnvSpec, policy: Policy, masks: Callable[[], Any]) -> np.ndarray:
    with _told(spec):
        mask = masks()
    source = f"environment {spec.name!r}: action_masks() returned"
    return spaces.checked_mask(mask, spaces.mask_sizes(policy.action_space), source)[None]


@contextmanager
def _told(spec: EnvSpec) -> Iterator[None]:
    """What goes wrong while an environment draws is one sentence, with what may help."""
    try:
        yield
    except Exception as error:
        hint = "" if has_display() else f" ({_WITHOUT_A_DISPLAY})"
        raise EnvError(f"environment {spec.name!r} cannot be filmed: {type(error).__name__}: {error}{hint}") from error


def _rendered(env: Any) -> np.ndarray:
    frame = env.render()
    if isinstance(frame, list):
        frame = frame[-1] if frame else None
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise TypeError(f"render() must return an RGB array, not {type(frame).__name__}")
    return frame.astype(np.uint8)


def _play_atari(spec: EnvSpec, policy: Policy, seed: int, explore: bool) -> Frames:
    """The policy sees small grey frames; a twin on the same seed and actions shows the game in colour."""
    game = make_vector(spec, 1)
    colour = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}
    twin = make_vector(replace(spec, frame_stack=1, env_config={**spec.env_config, **colour}), 1)
    rng = stream(seed, "video")
    everyone, start = np.ones(1, bool), [seed_for(seed, "video")]
    try:
        observations = game.reset(everyone, start)
        pictures = twin.reset(everyone, start)
        yield pictures[0][0, -1], 0.0, 15.0
        ended = False
        state = policy.initial_state(1)
        while not ended:
            actions, state, _ = policy.act(observations, state, game.action_masks, explore, rng)
            observations, rewards, terminated, truncated = game.step(policy.to_env(actions))
            pictures, *_ = twin.step(policy.to_env(actions))
            ended = bool(terminated[0] or truncated[0])
            yield pictures[0][0, -1], float(rewards[0]), 15.0
    finally:
        game.close()
        twin.close()


def _enlarged(frame: np.ndarray) -> np.ndarray:
    factor = max(1, _SMALLEST // min(frame.shape[:2]))
    frame = frame.repeat(factor, 0).repeat(factor, 1)
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
