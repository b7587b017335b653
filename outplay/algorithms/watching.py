"""`render_env` and `record_env`: episodes of the evaluation environment, in a window and as videos.

They are played by the main process after an evaluation, in environments and with a policy of their own. So neither
training nor the evaluation changes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from outplay.collect import torch_threads
from outplay.collect.video import check_encoder, check_renders, record_video, try_to_render
from outplay.collect.window import show_episode
from outplay.errors import OutplayError
from outplay.policies import Policy

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")


def before_training(algorithm: Algorithm) -> None:
    """Log a warning if `record_env` is set and no video can be recorded. Training continues without videos."""
    if algorithm.config.record_env is False or not algorithm.is_recording:
        return
    try:
        check_recordable(algorithm)
        _folder(algorithm).mkdir(parents=True, exist_ok=True)
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; the run trains without videos
        algorithm.is_recording = False
        log.warning("record_env: there will be no videos: %s", reason(error))


def check_recordable(algorithm: Algorithm) -> None:
    """Raise if no video of the evaluation environment can be recorded: no encoder, or it does not render."""
    env = algorithm.evaluation_env
    check_encoder(".mp4")
    check_renders(env.spec, env.probe.renders)
    if not env.spec.is_atari:
        try_to_render(env.spec)


def after_evaluation(algorithm: Algorithm, episodes: int) -> None:
    """Show and record an episode, if asked to. `episodes` is the number of evaluation episodes since the last call.

    A failure is logged, and nothing is shown or recorded any more: the run trains on.
    """
    config, since = algorithm.config, algorithm.episodes_since_video
    if since is not None:
        since += episodes
    if config.render_env and algorithm.is_rendering:
        try:
            _show(algorithm)
        except Exception as error:  # noqa: BLE001 - as above
            algorithm.is_rendering = False
            log.warning("render_env: no more episodes will be shown: %s", reason(error))
    if config.record_env is not False and (since is None or since >= config.record_env_interval):
        since = 0
        if algorithm.is_recording:
            try:
                path = _folder(algorithm) / video_name(algorithm.iteration)
                path.parent.mkdir(parents=True, exist_ok=True)
                record(algorithm, path, config.evaluation_explore)
            except Exception as error:  # noqa: BLE001 - as above
                algorithm.is_recording = False
                log.warning("record_env: there will be no more videos: %s", reason(error))
    algorithm.episodes_since_video = since


def video_name(iteration: int) -> str:
    """The file name of a video of the policy after an iteration."""
    return f"iteration_{iteration:06}.mp4"


def record(algorithm: Algorithm, path: Path, explore: bool) -> float:
    """Record one episode of the evaluation environment with the current policy. Returns the episode's return."""
    env, seed = algorithm.evaluation_env, algorithm.config.seed
    check_renders(env.spec, env.probe.renders)
    longest, task = algorithm.longest_evaluation_episode, algorithm.evaluation_task
    with algorithm.timers("record"), torch_threads(1):
        return record_video(env.spec, _policy(algorithm), path, seed, explore, longest, task)


def _show(algorithm: Algorithm) -> None:
    spec, config = algorithm.evaluation_env.spec, algorithm.config
    longest, task = algorithm.longest_evaluation_episode, algorithm.evaluation_task
    with algorithm.timers("render"), torch_threads(1):
        show_episode(spec, _policy(algorithm), config.seed, config.evaluation_explore, longest, task)


def _policy(algorithm: Algorithm) -> Policy:
    """A copy of the current policy, on the CPU."""
    policy = algorithm.policy_spec.make_for_loading()
    policy.load(algorithm.policy.snapshot(0))
    return policy


def _folder(algorithm: Algorithm) -> Path:
    """The folder for videos: the one that record_env names, that of the run, or one under ~/outplay_results."""
    folder = algorithm.config.record_env
    if isinstance(folder, str):
        return Path(folder).expanduser()
    return algorithm._checkpoints.folder / "videos" if algorithm.videos is None else algorithm.videos


def reason(error: Exception) -> str:
    return str(error) if isinstance(error, OutplayError) else f"{type(error).__name__}: {error}"
