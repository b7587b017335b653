"""Run: an Algorithm and its run folder. `step()` is one iteration with evaluation, metrics and checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, cast

from outplay.algorithms import Algorithm, pending
from outplay.errors import CallbackError, OutplayError, RunError
from outplay.metrics import Result
from outplay.runs import loading
from outplay.runs.callbacks import Callback, Callbacks
from outplay.runs.checkpoint import name_of
from outplay.runs.experiments import Experiment
from outplay.runs.experiments import experiment as checked_experiment
from outplay.runs.folder import RunFolder
from outplay.runs.history import Record
from outplay.runs.playing import is_recordable, record_now, record_run
from outplay.runs.recorder import FolderRecorder, Recorder, last_result, status_of
from outplay.runs.results import results_folder
from outplay.runs.stopping import StopConditions

log = logging.getLogger("outplay")


class Run:
    """A training run and its folder.

    >>> run = Run.create({"env": "CartPole-v1", "stop": {"timesteps_total": 50_000}})
    >>> run.train()
    'timesteps_total reached 50000'

    Or iteration by iteration, in your own loop:

    >>> with Run.create({"env": "CartPole-v1"}) as run:
    ...     while not run.step()["episode_return_mean"] > 100:
    ...         pass
    """

    def __init__(
        self,
        experiment: Experiment,
        algorithm: Algorithm,
        folder: RunFolder | None,
        callbacks: Sequence[Callback] = (),
        keeps_workers: bool = False,
    ) -> None:
        """`folder`: None records nothing. `keeps_workers`: `end()` does not stop the algorithm's workers."""
        self.experiment = experiment
        self.algorithm = algorithm
        self.last_result: Record = {}
        self.resumed_from: int | None = None
        self.stop_reason = ""
        self.video: Path | None = None
        self._callbacks = Callbacks(callbacks)
        self._stopping = StopConditions(experiment, algorithm.config.last_level)
        self._folder = folder
        self._recorder = Recorder() if folder is None else FolderRecorder(folder, experiment)
        self._keeps_workers = keeps_workers
        self._stop_requested = ""
        self._is_interrupted = False  # the stop was requested by a signal
        self._records_video: bool | None = None  # at the end; None: not checked yet
        self.last_evaluation: dict[str, Any] | None = None  # beside training, if the run ended before it was reported
        self._connect()

    def _connect(self) -> None:
        """Tell the algorithm the folder for its videos, and the name of that for recorded experience."""
        if self._folder is not None:
            self.algorithm.videos = self._folder.videos_path
            if self.algorithm.recording is not None:
                self.algorithm.recording.continues("-".join(self._folder.path.absolute().parts[-2:]))

    @property
    def folder(self) -> RunFolder:
        """The run folder. Raises RunError if the run has none, as in `learn()` of a trainer without a run."""
        if self._folder is None:
            raise RunError(f"this run has no folder; make the trainer with one: {self._trainer}(…, run='name')")
        return self._folder

    @property
    def _trainer(self) -> str:
        return type(self.algorithm).__name__

    # Creating and resuming.

    @classmethod
    def create(
        cls,
        experiment: Experiment | Mapping[str, Any],
        results: str | Path | None = None,
        folders: Iterable[Path] = (),
        init_from: str | None = None,
        callbacks: Sequence[Callback | str] = (),
        folder: str | Path | None = None,
    ) -> Run:
        """Create a new run. All settings are checked before its folder is created.

        `experiment` has the keys of an experiment file: env, run, stop, config. `results` is the folder of all runs.
        `folders` are additional folders to import modules from. `init_from` is a run or checkpoint to take the initial
        weights from. `callbacks` are objects or import paths. `folder` is the run's own folder, which must not exist;
        default: a new one in `results`.
        """
        if not isinstance(experiment, Experiment) or not experiment.name:
            experiment = checked_experiment(dict(experiment), "Run.create()")
        results = results_folder(results)
        experiment, algorithm, instances = loading.assemble(experiment, folders, callbacks)
        made = None
        try:
            if init_from is not None:
                algorithm.load_weights(loading.find_weights(init_from, results))
            if folder is None:
                made = RunFolder.create(results, experiment.name, type(algorithm).__name__, algorithm.env_spec.name)
            else:
                made = RunFolder.create_at(folder)
            run = cls(experiment, algorithm, made, instances)
            run._write_config()
            if init_from is not None:
                run.save()  # a run that is killed before its first checkpoint resumes from these weights
        except BaseException:
            algorithm.stop()
            if made is not None:
                with suppress(OutplayError):  # the first error is the one that matters to the user
                    made.remove()
            raise
        return run

    @classmethod
    def resume(
        cls,
        folder: str | Path | RunFolder,
        change: Callable[[Experiment], Experiment] = lambda experiment: experiment,
        env: Any = None,
        trust: bool = False,
        folders: Iterable[Path] = (),
        callbacks: Sequence[Callback | str] = (),
    ) -> Run:
        """Resume a run from its newest readable checkpoint.

        `change` is a function that returns a modified experiment. Import paths in config.yaml are not imported unless
        they are repeated in `env` and `callbacks`, or `trust` is true.
        """
        folder = RunFolder(folder.path if isinstance(folder, RunFolder) else folder)  # a new lock object
        folder.check_is_run()
        folder.lock()
        algorithm = None
        try:
            repeated = [callback for callback in callbacks if isinstance(callback, str)]
            recorded = loading.recorded_experiment(folder, change, env, repeated, trust)
            experiment, algorithm, instances = loading.assemble(recorded, folders, callbacks, resuming=True)
            run = cls(experiment, algorithm, folder, instances)
            run._restore()
            run._write_config()
        except BaseException:
            if algorithm is not None:
                algorithm.stop()
            folder.unlock()
            raise
        return run

    def _restore(self) -> None:
        self.resumed_from = 0
        if self.folder.checkpoints():
            self.algorithm.restore(self.folder.checkpoints_path)
            self.resumed_from = self._recorder.saved_at = self.algorithm.iteration
        kept = self.folder.results_until(self.algorithm.iteration)[0]
        self._stopping.start(kept)
        self.last_result = last_result(kept, self.algorithm)

    def _write_config(self) -> None:
        self._recorder.write_config(self.experiment, self.algorithm)

    @classmethod
    def record(cls, algorithm: Algorithm, env: Any, settings: str | Mapping[str, Any]) -> Run:
        """A new run of an algorithm that exists already: `PPO(env, run="name")`.

        `settings` is the name of the experiment, or its settings: {"name": "poles", "loggers": ["csv"]}. `env` is the
        environment as it was given to the algorithm.
        """
        experiment, callbacks = loading.experiment_of(algorithm, env, settings)
        folder = RunFolder.create(results_folder(None), experiment.name, experiment.run, algorithm.env_spec.name)
        run = cls(experiment, algorithm, folder, callbacks, keeps_workers=True)
        try:
            run._write_config()
        except BaseException:
            with suppress(OutplayError):  # the first error is the one that matters to the user
                folder.remove()
            raise
        return run

    @classmethod
    def without_folder(cls, algorithm: Algorithm, env: Any) -> Run:
        """A run that writes nothing, for an algorithm that exists already: `learn()` of a trainer without a run."""
        experiment, _ = loading.experiment_of(algorithm, env, {})
        return cls(experiment, algorithm, None, keeps_workers=True)

    # Training.

    def train(
        self, on_result: Callable[[Result], None] = lambda _: None, callbacks: Sequence[Callback | str] = ()
    ) -> str:
        """Train until a stop condition is reached. Returns the reason why training stopped.

        `on_result` is called with each result, after metrics and checkpoint of the iteration are written. `callbacks`
        are called in addition to those of the run.
        """
        more = loading.callbacks_of(self.experiment, callbacks)
        with self._callbacks.also(more), self._handling_failures():
            self._open()
            while not (reason := self.reason_to_stop):
                on_result(self.step())
            self.end(reason)
        return reason

    def step(self) -> Result:
        """Run one iteration with requests, evaluation, callbacks, metrics and checkpoint. Returns its result.

        After a failure, the previous iterations are saved, the workers are stopped and the folder is unlocked.
        """
        with self._handling_failures():
            self._open()
            self.last_evaluation = None
            result = self.algorithm.training_step()
            requests = self._recorder.take_requests()
            if "stop" in requests:
                self.request_stop("stopped by a request in control/")
            if "evaluate" in requests or self._stopping.needs_confirmation(result):
                self._evaluate(result)
            self._callbacks.after_iteration(self, result)  # callbacks may add metrics
            self.last_result = cast("Record", result)
            self._recorder.write(result)
            if "checkpoint" in requests or self._recorder.is_checkpoint_due(result):
                self._save(result)
            if "video" in requests:
                record_now(self.folder, self.algorithm)
            if self._recorder.is_status_due:
                self._write_status("running")
        return result

    @property
    def reason_to_stop(self) -> str:
        """The stop condition that was reached, or the reason of a request to stop; empty if the run continues."""
        return self._stop_requested or self._stopping.reason(self.last_result)

    @property
    def is_finished(self) -> bool:
        """Whether a stop condition was reached, or a stop was requested."""
        return bool(self.reason_to_stop)

    def progress(self, result: Mapping[str, Any]) -> float:
        """Progress towards the nearest stop condition, from 0 to 1."""
        return self._stopping.progress(result)

    def set_stop(self, stop: Mapping[str, float], where: str = "Run.set_stop()") -> None:
        """Replace the stop conditions, here and in config.yaml, and drop a request to stop."""
        self.experiment = loading.with_stop(self.experiment, self.algorithm, stop, where)
        self._stopping = StopConditions(self.experiment, self.algorithm.config.last_level)
        self._stop_requested = ""
        self.last_result = self.last_result or last_result([], self.algorithm)
        self._write_config()

    def fractions(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Progress towards each stop condition, from 0 to 1."""
        return self._stopping.fractions(result)

    def request_stop(self, reason: str, interrupted: bool = False) -> None:
        """Stop after the current iteration, with a checkpoint. Safe to call from a signal handler or a callback.

        `interrupted`: by Ctrl-C or a signal, which loggers report as such.
        """
        self._stop_requested, self._is_interrupted = reason, interrupted

    @property
    def is_stopping(self) -> bool:
        return bool(self._stop_requested)

    def _evaluate(self, result: Result) -> None:
        """Evaluate after an iteration. The time counts as training time, as for evaluations within an iteration."""
        before, started = self.algorithm.seconds, time.perf_counter()
        result["evaluation"] = self.algorithm.evaluate()
        result["time_total_s"] = self.algorithm.seconds = before + time.perf_counter() - started

    # Pausing, changing, cloning.

    def pause(self) -> Path:
        """Save, stop the workers and unlock the folder. Returns the checkpoint. `step()` continues exactly."""
        with self._handling_failures():
            if not self._recorder.is_rewound:  # otherwise what the run has on disk stays as it is
                self._save()
            if self._recorder.is_open:
                self._write_status("paused")
            self.close()
        return self._checkpoint_path

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Change settings of the algorithm, for example {"lr": 1e-4, "model.fcnet_activation": "relu"}.

        The algorithm is rebuilt from a checkpoint of this iteration. If a setting is invalid, nothing changes.
        """
        if self.algorithm.run is self:
            raise RunError(
                f"the run of a trainer cannot be reconfigured; make another trainer, with a run of its own: "
                f"{self._trainer}.from_checkpoint(trainer.save(), config={{…}}, run='name')"
            )
        experiment = loading.with_settings(self.experiment, self.algorithm, settings)
        with self.folder.locked():
            checkpoint = self.save()
            algorithm = loading.make_algorithm(experiment, resuming=True)
            try:
                algorithm.restore(checkpoint)
            except BaseException:
                algorithm.stop()
                raise
            before, self.algorithm, self.experiment = self.algorithm, algorithm, experiment
            self._connect()
            before.stop()
            self._write_config()

    def clone_from(self, source: Run | RunFolder | str | Path) -> None:
        """Copy the weights, optimizer, normalisers and replay buffer of another run or checkpoint; then save.

        This run keeps its folder, settings, counters and metrics. `source` is a Run (its present state), or a path or
        RunFolder (its newest checkpoint). If the checkpoint does not fit, nothing changes.
        """
        if isinstance(source, Run):
            source = source.save()
        with self.folder.locked():
            self.algorithm.clone_from(source.path if isinstance(source, RunFolder) else source)
            self._recorder.saved_at = -1
            self.save()

    def restore(self, checkpoint: str | Path) -> None:
        """Continue from this checkpoint, of this run or of another one. The next step removes what is later."""
        self.algorithm.restore(checkpoint)
        if self.algorithm.run is not self:  # the run of a trainer was rewound with it
            self.rewind()
        self._stopping.start(self.folder.results_until(self.algorithm.iteration)[0])

    def rewind(self) -> None:
        """The algorithm was restored to an earlier iteration. The next step removes what was recorded after it."""
        self._recorder.rewind()
        self.last_result = last_result([], self.algorithm)

    # Saving.

    def save(self) -> Path:
        """Write a checkpoint of this iteration, unless it exists. Returns its path."""
        path = self._checkpoint_path
        self._save()
        return path

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint of this iteration, if it was saved."""
        is_saved = self._recorder.saved_at == self.algorithm.iteration and self._folder is not None
        return self._checkpoint_path if is_saved else None

    @property
    def _checkpoint_path(self) -> Path:
        return self.folder.checkpoints_path / name_of(self.algorithm.iteration)

    def _save(self, score: Result | None = None) -> None:
        path = self._recorder.save(self.algorithm, score)
        if path is not None:
            self._callbacks.after_checkpoint(self, path)

    def _write_status(self, state: str, error: str = "") -> None:
        last = self.last_result
        status = status_of(state, self.algorithm, last, self.progress(last), error, self.last_evaluation)
        self._recorder.write_status(status)

    # Opening and closing.

    def _open(self) -> None:
        """Lock the folder and open the sinks, if the run is new, resumed or was paused."""
        if not self._recorder.is_open:
            self.last_result = last_result(self._recorder.open(self.algorithm), self.algorithm)
            if self.experiment.video_at_end and self._records_video is None:
                self._records_video = is_recordable(self.algorithm)
            self._write_status("running")
        self._callbacks.start(self)

    def end(self, reason: str = "ended") -> None:
        """Finish training: write the last checkpoint and the video, stop the workers. `train()` calls this.

        The workers of a trainer keep running: they are stopped with the trainer.
        """
        with self._handling_failures():
            self._open()
            self.stop_reason = reason
            if self.experiment.checkpoint_at_end or self._stop_requested:
                self._save()
            if not self._stop_requested:
                self._report_last_evaluation()
                if self._records_video:
                    self.video = record_run(self.folder, self.algorithm)
            self._callbacks.end(self, reason)
            self._write_status("stopped" if self._stop_requested else "finished")
            if self._stop_requested and self._is_interrupted:
                self._recorder.state = "interrupted"
            if self._keeps_workers:
                self._recorder.close()
            else:
                self.close()

    def _report_last_evaluation(self) -> None:
        """An evaluation beside training is reported at a later iteration, which a run that ends does not reach."""
        self.last_evaluation = pending.finish_if_possible(self.algorithm)
        if self.last_evaluation is not None:
            self._callbacks.after_evaluation(self, self.last_evaluation)

    def close(self) -> None:
        """Stop the workers and unlock the folder, without saving. See `pause()`, which saves."""
        try:
            self.algorithm.stop_workers()
        finally:
            self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.pause()
        else:
            if self._recorder.is_open:
                self._recorder.state = "failed" if issubclass(kind, Exception) else "interrupted"
            self.algorithm.abandon()
            self.close()

    @contextmanager
    def _handling_failures(self) -> Iterator[None]:
        """After a failure, save and close the run. It can be resumed, or stepped again."""
        try:
            yield
        except BaseException as error:
            if self._recorder.is_open:  # otherwise an inner call has closed it, or it was never opened
                if isinstance(error, Exception):
                    self._after_failure(error)
                else:
                    self._recorder.state = "interrupted"
                self.algorithm.abandon()
                self.close()
            raise

    def _after_failure(self, error: Exception) -> None:
        """Save the last complete iteration and write the status, if the disk allows it."""
        sentence = str(error) if isinstance(error, OutplayError) else f"{type(error).__name__}: {error}"
        sentence = sentence.splitlines()[0]
        # If the disk is the cause, `error` reports it already.
        level = logging.DEBUG if isinstance(error, RunError) else logging.WARNING
        try:
            if self.algorithm.iteration > 0:
                self._save()
        except CallbackError as second:
            log.log(level, "%s", second)
        except Exception as second:  # noqa: BLE001 - the first error is the one that matters to the user
            log.log(level, "the last iteration could not be saved: %s", second)
        with _logged(level):
            self._callbacks.end(self, sentence)
        with _logged(level):
            self._write_status("failed", sentence)


@contextmanager
def _logged(level: int) -> Iterator[None]:
    """Log an OutplayError instead of raising it: a second failure must not hide the first."""
    try:
        yield
    except OutplayError as error:
        log.log(level, "%s", error)
