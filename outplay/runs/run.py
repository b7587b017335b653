"""A Run: one Algorithm with a run folder. The loop around it: stop conditions, checkpoints, metrics, requests."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from outplay.algorithms import Algorithm, find_algorithm
from outplay.collect.video import record_video
from outplay.envs import check_trust, import_path
from outplay.errors import CheckpointError, ConfigError, OutplayError, RunError, nearest
from outplay.files import overwrite_file, remove, replace_file, writing
from outplay.parsing import MOST_YAML_BYTES
from outplay.runs.checkpoint import checkpoints_in, find_checkpoint, iteration_of, name_of
from outplay.runs.experiments import Experiment, load_file
from outplay.runs.results import as_path, find_run, is_alive, new_run_folder, read_status
from outplay.runs.sinks import Csv, JsonLines, Sink, TensorBoard, as_json, flattened, read_metrics

log = logging.getLogger("outplay")

_CONFIRMED = "episode_return_mean"
_CONFIRM_EVERY = 5  # iterations
_TIME = "time_total_s"
_HEARTBEAT = 1.0  # seconds between two writings of status.json
_SAVING_SHARE = 0.05  # of a run's time that checkpoint_every_s may take
_LONG_ITERATION, _LONG_S = 0.1, 1.0  # of the limit of time_total_s; in seconds


class Run:
    """One training run in its folder.

    >>> run = Run.create(experiment, results_folder(None))
    >>> run.train(on_result=lambda result: print(result["episode_return_mean"]))
    """

    def __init__(self, experiment: Experiment, algorithm: Algorithm, folder: Path) -> None:
        self.experiment = experiment
        self.algorithm = algorithm
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.resumed_from: int | None = None
        self.stop_reason = ""
        self.video: Path | None = None
        self._stop_requested = ""
        self._saved_at = -1
        self._save_due = math.inf  # by the clock: time.monotonic()
        self._told_long = False
        self._best: tuple[float, int] | None = None
        self._beaten = 0.0

    @classmethod
    def create(
        cls, experiment: Experiment, results: Path, folders: Iterable[Path] = (), init_from: str | None = None
    ) -> Run:
        """A new run, perhaps from old weights. Everything is checked before its folder is made."""
        algorithm = make_algorithm(experiment, folders)
        folder = None
        try:
            if init_from is not None:
                algorithm.load_weights(find_saved(init_from, results))
            folder = new_run_folder(results, experiment.name, type(algorithm).__name__, algorithm.env_spec.name)
            run = cls(experiment, algorithm, folder)
            run._write_config()
            if init_from is not None:
                run.save()  # so that it can be resumed before its first checkpoint
        except BaseException:
            algorithm.stop()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return run

    @classmethod
    def resume(
        cls,
        folder: Path,
        change: Callable[[Experiment], Experiment] = lambda experiment: experiment,
        env: Any = None,
        trust: bool = False,
        folders: Iterable[Path] = (),
    ) -> Run:
        """A run as it was at its newest checkpoint that can be read; `change` may alter its settings."""
        _refuse_if_running(folder)
        experiment = experiment_of(folder, change, env, trust)
        algorithm = make_algorithm(experiment.model_copy(update={"env": env or experiment.env}), folders, resuming=True)
        run = cls(experiment, algorithm, folder)
        try:
            run._restore()
            run._write_config()
        except BaseException:
            algorithm.stop()
            raise
        return run

    def _restore(self) -> None:
        self.resumed_from = 0
        if checkpoints_in(self.checkpoints):
            self.algorithm.restore(self.checkpoints)
            self.resumed_from = self._saved_at = self.algorithm.iteration

    def _write_config(self) -> None:
        body = self.experiment.model_dump(mode="json", exclude={"name", "env"})
        body["import_from"] = [str(folder) for folder in self.algorithm.env_folders]
        config = self.algorithm.get_config()
        del config["env"]
        data = {self.experiment.name: {"env": import_path(self.algorithm.env_spec.name), **body, "config": config}}
        text = yaml.safe_dump(data, sort_keys=False)
        if len(text) > MOST_YAML_BYTES:
            raise ConfigError(f"config.yaml would be larger than {MOST_YAML_BYTES:,} bytes; env_config is too large")
        replace_file(self.folder / "config.yaml", text)
        with writing(self.folder):
            (self.folder / "control").mkdir(exist_ok=True)

    def request_stop(self, reason: str) -> None:
        """End after the iteration that runs, with a checkpoint. May be called from a signal handler."""
        self._stop_requested = reason

    @property
    def is_stopping(self) -> bool:
        return bool(self._stop_requested)

    def train(self, on_result: Callable[[dict[str, Any]], None] = lambda _: None) -> str:
        """Train until a stop condition is reached, or for ever without one; the reason why it ended."""
        kept, damaged = self._kept()
        if damaged:
            lines = "1 damaged line was" if len(damaged) == 1 else f"{len(damaged)} damaged lines were"
            numbers = ", ".join(map(str, damaged[:10])) + (", …" if len(damaged) > 10 else "")
            log.warning("metrics.jsonl: %s dropped (line %s)", lines, numbers)
        saved = set(map(iteration_of, checkpoints_in(self.checkpoints)))
        self._best = _best_of([result for result in kept if result["training_iteration"] in saved])
        last = self._last_of(kept)
        self._put_off_saving()
        sinks: list[Sink] = []
        try:
            self._open(sinks, kept)
            self._beat("running", last, force=True)
            while not (reason := self._reason_to_stop(last)):
                last = self.algorithm.train()
                requests = self._requests()
                if "evaluate" in requests or self._is_to_be_confirmed(last):
                    self._evaluate(last)
                for sink in sinks:
                    sink.write(last)
                self._checkpoint_if_due(last, "checkpoint" in requests)
                self._beat("running", last)
                on_result(last)
            self.stop_reason = reason
            if self.experiment.checkpoint_at_end or self._stop_requested:
                self.save()
            if self.experiment.video_at_end and not self._stop_requested:
                self._record_video()
            self._beat("stopped" if self._stop_requested else "finished", last, force=True)
        except Exception as error:
            self._after_failure(last, error)
            self.algorithm.abandon()
            raise
        except BaseException:
            self.algorithm.abandon()
            raise
        finally:
            for sink in sinks:
                sink.close()
            self.algorithm.stop()
        return reason

    def _after_failure(self, last: dict[str, Any], error: Exception) -> None:
        """What was learned up to the last whole iteration is kept, and the status told, if the disk takes it."""
        sentence = str(error) if isinstance(error, OutplayError) else f"{type(error).__name__}: {error}"
        # Where the disk is the trouble, `error` has said so.
        level = logging.DEBUG if isinstance(error, RunError) else logging.WARNING
        try:
            if self.algorithm.iteration > 0:
                self.save()
        except Exception as second:  # noqa: BLE001 - what failed first is what the user has to know
            log.log(level, "there is no checkpoint of the last iteration: %s", second)
        try:
            self._beat("failed", last, force=True, error=sentence.splitlines()[0])
        except OutplayError as second:
            log.log(level, "%s", second)

    def _kept(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The results up to this iteration, and which lines of metrics.jsonl are damaged."""
        return read_metrics(self.folder / "metrics.jsonl", self.algorithm.iteration)

    def _last_of(self, kept: list[dict[str, Any]]) -> dict[str, Any]:
        """The result of this iteration; if its line is lost, what the algorithm itself knows of it."""
        algorithm = self.algorithm
        if kept and kept[-1]["training_iteration"] == algorithm.iteration:
            return kept[-1]
        if not algorithm.iteration:
            return {}
        return {
            "training_iteration": algorithm.iteration,
            "timesteps_total": algorithm.timesteps,
            "time_total_s": algorithm.seconds,
            **algorithm.episodes.figures(),
        }

    def _record_video(self) -> None:
        """A run without its video is finished all the same."""
        path = self.folder / "videos" / f"{name_of(self.algorithm.iteration)}.mp4"
        try:
            record_video(
                self.algorithm.env_spec,
                self.algorithm.policy,
                path,
                self.algorithm.config.seed,
                longest=self.algorithm.longest_evaluation_episode,
            )
        except OutplayError as error:
            log.warning("there is no video: %s", error)
        else:
            self.video = path

    def _evaluate(self, last: dict[str, Any]) -> None:
        """An evaluation beside the iteration; it takes part of the run's time like one inside of it."""
        before, started = self.algorithm.seconds, time.perf_counter()
        last["evaluation"] = self.algorithm.evaluate()
        last["time_total_s"] = self.algorithm.seconds = before + time.perf_counter() - started

    def _open(self, sinks: list[Sink], kept: list[dict[str, Any]]) -> None:
        sinks.append(JsonLines(self.folder / "metrics.jsonl", kept))
        if "csv" in self.experiment.loggers:
            sinks.append(Csv(self.folder / "progress.csv", kept))
        if "tensorboard" in self.experiment.loggers:
            sinks.append(TensorBoard(self.folder / "tensorboard", self.algorithm.timesteps))

    def _reason_to_stop(self, last: dict[str, Any]) -> str:
        if self._stop_requested:
            return self._stop_requested
        figures = flattened(last)
        for name, threshold in self.experiment.stop.items():
            if name not in figures:
                if "learner" in last and name.startswith("learner/"):
                    raise ConfigError(f"stop: there is no metric {name!r}{nearest(name, figures)}")
                continue
            value = figures[name]
            if name == _CONFIRMED and self.experiment.confirm:
                confirmation = figures.get(f"evaluation/{name}")
                value = None if value is None or confirmation is None else min(value, confirmation)
            if name == _TIME:
                self._tell_if_long(figures.get("time_this_iter_s", 0.0), threshold)
            if value is not None and value >= threshold:
                return f"{name} reached {threshold:g}"
        return ""

    def _tell_if_long(self, seconds: float, limit: float) -> None:
        if not self._told_long and seconds > max(_LONG_S, _LONG_ITERATION * limit):
            self._told_long = True
            log.warning(
                "an iteration takes %.3g s, and a run ends after a whole one, so %s may exceed its limit of %g; "
                "a smaller train_batch_size makes iterations shorter", seconds, _TIME, limit,
            )  # fmt: skip

    def _is_to_be_confirmed(self, last: dict[str, Any]) -> bool:
        """Whether an evaluation is to show that the return is real. By iterations, so that a resumed run ends alike."""
        threshold = self.experiment.stop.get(_CONFIRMED)
        if not self.experiment.confirm or threshold is None or self.algorithm.iteration % _CONFIRM_EVERY:
            return False
        return bool(last[_CONFIRMED] >= threshold and "evaluation" not in last)

    def save(self) -> Path:
        """A checkpoint of this iteration, if there is none yet."""
        path = self.checkpoints / name_of(self.algorithm.iteration)
        if self._saved_at != self.algorithm.iteration:
            if not self.folder.is_dir():  # saving would make it anew, with nothing else in it
                raise RunError(f"the run folder {self.folder} was deleted or moved during training")
            started = time.monotonic()
            self.algorithm.save(self.checkpoints)
            self._saved_at = self.algorithm.iteration
            self._drop_old_checkpoints()
            self._put_off_saving(time.monotonic() - started)
        return path

    def _put_off_saving(self, took: float = 0.0) -> None:
        """By the clock, the next checkpoint is due after a while; later, if the last one took long."""
        if every := self.experiment.checkpoint_every_s:
            self._save_due = time.monotonic() + max(every, took / _SAVING_SHARE)

    def _checkpoint_if_due(self, result: dict[str, Any], requested: bool) -> None:
        frequency = self.experiment.checkpoint_freq
        by_clock = time.monotonic() >= self._save_due
        if requested or by_clock or (frequency and self.algorithm.iteration % frequency == 0):
            value = result["episode_return_mean"]
            if not math.isnan(value) and (self._best is None or value >= self._best[0]):
                self._best = (value, self.algorithm.iteration)
            self.save()

    def _drop_old_checkpoints(self) -> None:
        keep = self.experiment.keep_checkpoints
        if keep is None:
            return
        # Later ones are damaged, or the run would have gone on from them: they do not count.
        found = [path for path in checkpoints_in(self.checkpoints) if iteration_of(path) <= self.algorithm.iteration]
        for path in found[:-keep]:
            if self._best is None or iteration_of(path) != self._best[1]:
                with writing(path, "removed"):
                    remove(path)

    def _requests(self) -> set[str]:
        """What small files in control/ ask for: stop, checkpoint, evaluate. They are removed."""
        found = set()
        for request in sorted((self.folder / "control").glob("*")):
            with writing(request, "removed"):
                request.unlink(missing_ok=True)
            if request.name == "stop":
                self.request_stop("stopped by a request in control/")
            elif request.name in ("checkpoint", "evaluate"):
                found.add(request.name)
            else:
                log.warning("control/%s is no request; stop, checkpoint and evaluate are", request.name)
        return found

    @property
    def is_finished(self) -> bool:
        """Whether a stop condition was reached before it began."""
        last = self._last_of(self._kept()[0])
        return bool(last and self._reason_to_stop(last))

    def progress(self, result: dict[str, Any]) -> float:
        """How near the nearest stop condition is, from 0 to 1."""
        figures = flattened(result)
        shares = [
            (figures.get(name) or 0.0) / threshold for name, threshold in self.experiment.stop.items() if threshold > 0
        ]
        return max(0.0, min(1.0, max(shares, default=0.0)))

    def _beat(self, state: str, last: dict[str, Any], force: bool = False, error: str = "") -> None:
        now = time.monotonic()
        if not force and now - self._beaten < _HEARTBEAT:
            return
        self._beaten = now
        workers = self.algorithm._collector
        status = {
            "state": state,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "updated": datetime.now().astimezone().isoformat(timespec="seconds"),
            "training_iteration": self.algorithm.iteration,
            "timesteps_total": self.algorithm.timesteps,
            "episode_return_mean": last.get("episode_return_mean"),
            "progress": self.progress(last),
            "workers": {
                "number": 0 if workers is None else workers.num_workers,
                "replaced": 0 if workers is None else workers.replaced,
            },
            **({"error": error} if error else {}),
        }
        path, text = self.folder / "status.json", as_json(status) + "\n"
        try:
            replace_file(path, text)
        except RunError:
            if state != "failed":
                raise
            overwrite_file(path, text)  # a full disk has no room for a new file


def make_algorithm(experiment: Experiment, folders: Iterable[Path] = (), resuming: bool = False) -> Algorithm:
    """The algorithm of an experiment, its stop conditions checked against its settings."""
    folders = [*folders, *map(Path, experiment.import_from)]
    algorithm = find_algorithm(experiment.run)(
        env=experiment.env, config=experiment.config, folders=folders, resuming=resuming
    )
    if any(name.startswith("evaluation/") for name in experiment.stop) and not algorithm.config.evaluation_interval:
        algorithm.stop()
        raise ConfigError("stop: a condition on evaluation/… needs evaluation_interval, or it is never reached")
    return algorithm


def experiment_of(folder: Path, change: Callable[[Experiment], Experiment], env: Any, trust: bool) -> Experiment:
    """The experiment of a run, as its config.yaml says and `change` alters it; its environment trusted or repeated."""
    path = folder / "config.yaml"
    if not path.exists():
        raise CheckpointError(f"there is no run at {folder}: it has no config.yaml")
    recorded = load_file(path, trust)[0]
    check_trust(recorded.env, env, trust, f"run {folder}", f"repeat it with --env {recorded.env}, or add --trust")
    changed = change(recorded)
    if others := sorted(key for key in changed.config if changed.config[key] != recorded.config.get(key)):
        log.warning("settings differ from the run's (%s): from here on it is another run", ", ".join(others))
    if find_algorithm(changed.run) is not find_algorithm(recorded.run):
        raise CheckpointError(f"run {folder} is of {recorded.run}, not of {changed.run}")
    if changed.name != recorded.name:
        raise ConfigError(f"run {folder} belongs to the experiment {recorded.name!r}; --name is for new runs")
    return changed


def _refuse_if_running(folder: Path) -> None:
    """Two processes in one run would spoil it."""
    status = read_status(folder)
    if status is None or status["state"] != "running" or status["host"] != os.uname().nodename:
        return
    pid = status["pid"]
    if pid > 0 and pid != os.getpid() and is_alive(pid):
        raise RunError(f"run {folder} is being trained by process {pid}; end that first, or delete status.json")


def find_saved(path: str | Path, results: Path) -> Path:
    """A checkpoint, for its weights, from what a user wrote: itself, or a run as `find_run` finds it (its newest)."""
    try:
        return find_checkpoint(path)
    except CheckpointError:
        given = as_path(path)
        if given.exists() and not list(given.glob("*/config.yaml")):
            raise
    return find_checkpoint(find_run(path, results))


def _best_of(results: list[dict[str, Any]]) -> tuple[float, int] | None:
    scored = [(r["episode_return_mean"], r["training_iteration"]) for r in results]
    return max((pair for pair in scored if pair[0] is not None), default=None)
