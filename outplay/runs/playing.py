"""Playing with what a run has saved: evaluations and videos."""

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
from outplay.runs.loading import find_saved
from outplay.runs.results import as_path

log = logging.getLogger("outplay")


@dataclass(frozen=True)
class SavedPolicy:
    """A checkpoint that is to be played with: found, and its names trusted."""

    folder: Path
    state: dict[str, Any]
    env: Any
    import_from: list[Path]

    @classmethod
    def find(
        cls, path: str | Path, results: Path, run: str | None = None, env: Any = None, trust: bool = False
    ) -> SavedPolicy:
        """What a user wrote: a checkpoint, a run, an experiment. `run` and `env` must match what it is of."""
        folder = find_saved(path, results)
        state = read_state(folder)
        if run is not None and find_algorithm(run).__name__ != state["algorithm"]:
            raise CheckpointError(f"checkpoint {folder} is of {state['algorithm']}, not of {run}")
        remedy = f"repeat it with --env {state['env']}, or add --trust"
        check_trust(state["env"], env, trust, f"checkpoint {folder}", remedy)
        places = [Path(place) for place in state["env_folders"]] if trust else []
        return cls(folder, state, state["env"] if env is None else env, places)

    def load(self, settings: dict[str, Any]) -> Algorithm:
        """An algorithm on the CPU with these weights, and other settings."""
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
class Played:
    """What came of an evaluation."""

    metrics: dict[str, Any]
    longest: int | None  # steps after which an episode was truncated
    no_video: OutplayError | None = None  # why


def play(
    saved: SavedPolicy,
    duration: int,
    unit: str,
    seed: int | None = None,
    explore: bool = False,
    video: Path | None = None,
) -> Played:
    """Play so many episodes or timesteps; and one more episode for a video, if there is a path for it."""
    settings: dict[str, Any] = {
        "evaluation_duration": duration,
        "evaluation_duration_unit": unit,
        "evaluation_explore": explore,
    }
    if seed is not None:
        settings["seed"] = seed
    no_video = None
    with saved.load(settings) as algorithm:
        metrics = algorithm.evaluate()
        longest = algorithm.longest_evaluation_episode
        if video is not None:
            try:
                metrics["video_return"] = record_video(
                    algorithm.env_spec, algorithm.policy, video, algorithm.config.seed, explore, longest, algorithm.task
                )
                metrics["video"] = str(video)
            except OutplayError as error:  # told after the metrics, which are good
                no_video = error
    return Played(metrics, longest, no_video)


def video_path(path: str | Path) -> Path:
    """Where a video is to go: its format is known, and what writes it is installed."""
    checked = as_path(path)
    check_video(checked)
    return checked


def record_run(folder: RunFolder, algorithm: Algorithm) -> Path | None:
    """A video of one episode in the run folder. A run without its video is finished all the same."""
    path, longest = folder.videos_path / f"{name_of(algorithm.iteration)}.mp4", algorithm.longest_evaluation_episode
    try:
        seed, task = algorithm.config.seed, algorithm.task
        record_video(algorithm.env_spec, algorithm.policy, path, seed, longest=longest, task=task)
    except OutplayError as error:
        log.warning("there is no video: %s", error)
        return None
    return path
