"""Videos: one episode, played by a policy, as an MP4 file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outplay import spaces
from outplay.envs import EnvSpec, make_vector
from outplay.errors import ConfigError, EnvError, RunError
from outplay.policies import Policy
from outplay.streams import seed_for, stream

_FORMATS = (".mp4", ".mkv", ".mov", ".webm", ".avi", ".gif")
_LONGEST = 20_000  # frames
_SMALLEST = 320  # pixels: smaller pictures are enlarged


def record_video(spec: EnvSpec, policy: Policy, path: Path, seed: int, explore: bool = False) -> float:
    """Play one episode and write it to `path`; the episode's return."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--video {path}: the file's name must end in {', '.join(_FORMATS)}")
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise RunError("videos need imageio-ffmpeg: pip install 'outplay[video]'") from error
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame needs no screen for this
    total = 0.0
    writer: Any = None
    frames = _play_atari(spec, policy, seed, explore) if spec.is_atari else _play(spec, policy, seed, explore)
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for number, (frame, reward, fps) in enumerate(frames):
            total += reward
            picture = _enlarged(frame)
            if writer is None:
                height, width = picture.shape[:2]
                writer = imageio_ffmpeg.write_frames(str(partial), (width, height), fps=fps, macro_block_size=2)
                writer.send(None)
            writer.send(np.ascontiguousarray(picture))
            if number >= _LONGEST:
                break
        if writer is not None:
            writer.close()
        partial.replace(path)
    except OSError as error:
        raise RunError(f"the video {path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return total


def _play(spec: EnvSpec, policy: Policy, seed: int, explore: bool) -> Iterator[tuple[np.ndarray, float, float]]:
    env = spec.make(render_mode="rgb_array")
    fps = float(env.metadata.get("render_fps") or 30)
    rng = stream(seed, "video")
    try:
        observation, _ = env.reset(seed=seed_for(seed, "video"))
        yield _rendered(env, spec), 0.0, fps
        ended = False
        while not ended:
            row = spaces.empty(policy.leaves, 1)
            spaces.write(observation, policy.leaves, row, 0)
            actions, _, _ = policy.act(row, {}, explore, rng)
            observation, reward, terminated, truncated, _ = env.step(policy.to_env(actions)[0])
            ended = bool(terminated or truncated)
            yield _rendered(env, spec), float(reward), fps
    finally:
        env.close()


def _rendered(env: Any, spec: EnvSpec) -> np.ndarray:
    try:
        frame = env.render()
    except Exception as error:
        raise EnvError(f"environment {spec.name!r} cannot be rendered: {type(error).__name__}: {error}") from error
    if isinstance(frame, list):
        frame = frame[-1] if frame else None
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise EnvError(f"environment {spec.name!r} cannot be rendered: render() must return an RGB array")
    return frame.astype(np.uint8)


def _play_atari(spec: EnvSpec, policy: Policy, seed: int, explore: bool) -> Iterator[tuple[np.ndarray, float, float]]:
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
        while not ended:
            actions, _, _ = policy.act(observations, {}, explore, rng)
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
