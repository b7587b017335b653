"""Evaluations and videos of saved policies."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outplay.algorithms import Algorithm, find_algorithm
from outplay.collect.video import check_video, record_video
from outplay.envs import check_trust
from outplay.errors import CheckpointError, OutplayError
from outplay.runs.checkpoint import name_of, read_state
from outplay.runs.folder import RunFolder
from outplay.runs.loading import find_weights
from outplay.runs.results import as_path

log = logging.getLogger("outplay")


@dataclass(frozen=True)
class SavedPolicy:
    """A checkpoint to evaluate, whose import paths are trusted."""

    folder: Path
    state: dict[str, Any]
    env: Any
    import_from: list[Path]

    @classmethod
    def find(
        cls, path: str | Path, results: Path, run: str | None = None, env: Any = None, trust: bool = False
    ) -> SavedPolicy:
        """Find the checkpoint for a user's path or name (see `find_weights`). If given, `run` and `env` must match."""
        folder = find_weights(path, results)
        state = read_state(folder)
        if run is not None and find_algorithm(run).__name__ != state["algorithm"]:
            raise CheckpointError(f"checkpoint {folder} belongs to {state['algorithm']}, not to {run}")
        remedy = f"repeat it with --env {state['env']}, or add --trust"
        check_trust(state["env"], env, trust, f"checkpoint {folder}", remedy)
        folders = [Path(name) for name in state["env_folders"]] if trust else []
        return cls(folder, state, state["env"] if env is None else env, folders)

    def load(self, settings: dict[str, Any]) -> Algorithm:
        """Make an algorithm on the CPU with these weights; `settings` override the saved ones."""
        config = {key: value for key, value in self.state["config"].items() if key != "env"}
        config |= {"evaluation_num_workers": 0, "num_gpus": 0, "act_on_gpu": False, **settings}
        kind = find_algorithm(self.state["algorithm"])
        algorithm = kind(env=self.env, config=config, folders=self.import_from, resuming=True)
        try:
            algorithm.load_weights(self.folder)
        except BaseException:
            algorithm.stop()
            raise
        return algorithm


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics of an evaluation, and the error of its video, if any."""

    metrics: dict[str, Any]
    longest: int | None  # limit on the steps of an episode
    video_error: OutplayError | None = None


def play(
    saved: SavedPolicy,
    duration: int,
    unit: str,
    seed: int | None = None,
    explore: bool = False,
    video: Path | None = None,
) -> EvaluationResult:
    """Evaluate a saved policy for `duration` episodes or timesteps. `video`: record one more episode to this file."""
    settings: dict[str, Any] = {
        "evaluation_duration": duration,
        "evaluation_duration_unit": unit,
        "evaluation_explore": explore,
    }
    if seed is not None:
        settings["seed"] = seed
    video_error = None
    with saved.load(settings) as algorithm:
        metrics = algorithm.evaluate()
        longest = algorithm.longest_evaluation_episode
        if video is not None:
            try:
                metrics["video_return"] = record_video(
                    algorithm.env_spec, algorithm.policy, video, algorithm.config.seed, explore, longest, algorithm.task
                )
                metrics["video"] = str(video)
            except OutplayError as error:  # reported after the metrics, which are valid
                video_error = error
    return EvaluationResult(metrics, longest, video_error)


def video_path(path: str | Path) -> Path:
    """The path of a video file. Raises if its format is unknown or the packages for videos are not installed."""
    checked = as_path(path)
    check_video(checked)
    return checked


def record_run(folder: RunFolder, algorithm: Algorithm) -> Path | None:
    """Record a video of one episode in the run folder. A failure is only logged: the run itself has finished."""
    path, longest = folder.videos_path / f"{name_of(algorithm.iteration)}.mp4", algorithm.longest_evaluation_episode
    try:
        seed, task = algorithm.config.seed, algorithm.task
        record_video(algorithm.env_spec, algorithm.policy, path, seed, longest=longest, task=task)
    except OutplayError as error:
        log.warning("the video could not be recorded: %s", error)
        return None
    return path
