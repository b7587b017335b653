"""Evaluations and videos of saved policies."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from outplay.algorithms import Algorithm, find_algorithm, imported, watching
from outplay.algorithms.experience import EvaluationRecorder
from outplay.algorithms.saving import check_evaluation_trust, described
from outplay.collect import EpisodeProgress as EpisodeProgress  # the command line imports it from here
from outplay.collect.evaluation import evaluation_metrics
from outplay.collect.video import check_renders, check_video, is_encoder_installed
from outplay.envs import check_trust
from outplay.errors import CheckpointError, OutplayError
from outplay.export import Exported, export_policy
from outplay.runs.checkpoint import name_of, read_state
from outplay.runs.folder import RunFolder
from outplay.runs.loading import find_weights
from outplay.runs.results import as_path

log = logging.getLogger("outplay")

_DRAWN_BY_PYGAME = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text", "gymnasium.envs.box2d")


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
        return cls.at(find_weights(path, results), run, env, trust)

    @classmethod
    def at(
        cls, folder: Path, run: str | None = None, env: Any = None, trust: bool = False, remedy: str = ""
    ) -> SavedPolicy:
        """The checkpoint in a folder. `remedy`: what to do if its import paths are not trusted."""
        state = read_state(folder)
        if run is not None and find_algorithm(run).__name__ != state["algorithm"]:
            raise CheckpointError(f"checkpoint {folder} belongs to {state['algorithm']}, not to {run}")
        for_env, remedy = remedy or f"repeat it with --env {state['env']}, or add --trust", remedy or "add --trust"
        check_trust(state["env"], env, trust, f"checkpoint {folder}", for_env)
        config = {**imported.without_untrusted(state["config"], trust), imported.TASK_FUNCTION: None}
        imported.check_trust(state["config"], config, f"checkpoint {folder}", remedy)
        check_evaluation_trust(state["config"], env, trust, f"checkpoint {folder}", remedy)
        folders = [Path(name) for name in state["env_folders"]] if trust else []
        return cls(folder, state, state["env"] if env is None else env, folders)

    @staticmethod
    def state_of(folder: Path) -> dict[str, Any]:
        """state.json of another checkpoint of the run."""
        return read_state(folder)

    def load(self, settings: dict[str, Any]) -> Algorithm:
        """Make an algorithm on the CPU with these weights; `settings` override the saved ones."""
        config = {key: value for key, value in self.state["config"].items() if key != "env"}
        config |= {"evaluation_num_workers": 0, "evaluation_parallel_to_training": False}
        config |= {"render_env": False, "record_env": False, "num_gpus": 0, "act_on_gpu": False, "env_task_fn": None}
        config |= {"output": None, "num_learners": 1, "num_gpus_per_learner": None}
        config |= settings
        kind = find_algorithm(self.state["algorithm"])
        algorithm = kind(env=self.env, config=config, folders=self.import_from, resuming=True)
        try:
            algorithm.load_weights(self.folder)
            algorithm.start_on(self.state)
        except BaseException:
            algorithm.stop()
            raise
        return algorithm

    def export(self, path: Path, format: str) -> Exported:  # noqa: A002 - as the option
        """Write the policy to a file: see `Algorithm.export`."""
        with self.load({}) as algorithm:
            progress = {key: self.state[key] for key in ("training_iteration", "timesteps_total")}
            return export_policy(algorithm.policy, path, format, described(algorithm) | progress)


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics of an evaluation, and the error of its video, if any."""

    metrics: dict[str, Any]
    longest: int | None  # limit on the steps of an episode
    video_error: OutplayError | None = None
    is_partial: bool = False  # stopped by Ctrl-C: the metrics are those of the episodes that ended before


def play(
    saved: SavedPolicy,
    settings: dict[str, Any],
    video: Path | None = None,
    progress: EpisodeProgress | None = None,
    output: Path | None = None,
) -> EvaluationResult:
    """Evaluate a saved policy; `settings` override the saved ones. `video`: record one more episode to this file.

    `output`: record the steps of the episodes as Parquet files in this folder. Ctrl-C ends the evaluation with a
    partial result. `progress` is updated meanwhile.
    """
    progress = EpisodeProgress() if progress is None else progress
    with saved.load(settings) as algorithm:
        if video is not None:
            check_renders(algorithm.evaluation_env.spec, algorithm.evaluation_env.probe.renders)
        longest = algorithm.longest_evaluation_episode
        metrics = None
        recorder = None if output is None else EvaluationRecorder(algorithm, output)
        progress.on_step = None if recorder is None else recorder.step
        try:
            try:
                metrics = algorithm.evaluate(progress=progress)
            finally:
                if recorder is not None:
                    recorder.close()
            if video is not None:
                metrics["video_return"] = watching.record(algorithm, video, algorithm.config.evaluation_explore)
                metrics["video"] = str(video)
        except OutplayError as error:
            if metrics is None:
                raise
            return EvaluationResult(metrics, longest, error)  # reported after the metrics, which are valid
        except KeyboardInterrupt:
            if metrics is None:
                metrics = evaluation_metrics(progress, algorithm.config.info_metrics)
            return EvaluationResult(metrics, longest, is_partial=True)
    return EvaluationResult(metrics, longest)


def estimate(
    saved: SavedPolicy,
    data: str,
    methods: Sequence[str] | None,
    explore: bool,
    gamma: float | None,
    fqe_updates: int,
) -> dict[str, dict[str, float]]:
    """Off-policy evaluation of a saved policy: see `Algorithm.estimate`."""
    with saved.load({}) as algorithm:
        return algorithm.estimate(data, methods, explore, gamma, fqe_updates)


def video_path(path: str | Path) -> Path:
    """The path of a video file. Raises if it cannot be written: unknown format, no encoder, no such folder."""
    checked = as_path(path)
    check_video(checked)
    return checked


# Videos of a run.


def record_run(folder: RunFolder, algorithm: Algorithm) -> Path | None:
    """Record a video of a run that has finished. See `record_now`."""
    return _record(algorithm, folder.videos_path / f"{name_of(algorithm.iteration)}.mp4", explore=False)


def record_now(folder: RunFolder, algorithm: Algorithm) -> Path | None:
    """Record a video of one episode of a run that trains: the request `video`. Training does not change.

    A failure is only logged.
    """
    path = folder.videos_path / watching.video_name(algorithm.iteration)
    return _record(algorithm, path, algorithm.config.evaluation_explore)


def _record(algorithm: Algorithm, path: Path, explore: bool) -> Path | None:
    try:
        path.parent.mkdir(exist_ok=True)
        watching.record(algorithm, path, explore)
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; the run itself is not at fault
        log.warning("the video could not be recorded: %s", watching.reason(error))
        return None
    return path


def is_recordable(algorithm: Algorithm) -> bool:
    """Whether `record_run` can succeed. Otherwise, a warning says why: no encoder, or nothing is rendered."""
    try:
        watching.check_recordable(algorithm)
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; the run trains without a video
        log.warning("video_at_end: there will be no video: %s", watching.reason(error))
        return False
    return True


def can_record(algorithm: Algorithm) -> bool:
    """Whether a video can be recorded, as far as this is known without rendering."""
    name = algorithm.evaluation_env.spec.name
    entry_point = str(gymnasium.registry[name].entry_point) if name in gymnasium.registry else ""
    has_pygame = importlib.util.find_spec("pygame") is not None or not entry_point.startswith(_DRAWN_BY_PYGAME)
    return algorithm.evaluation_env.probe.renders is True and has_pygame and is_encoder_installed()
