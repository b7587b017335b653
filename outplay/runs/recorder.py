"""Recorders: write the config, metrics, status and checkpoints of a run while it trains."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from outplay.algorithms import Algorithm
from outplay.errors import RunError
from outplay.machine import MachineUsage, Usage, gpu_usage
from outplay.runs.checkpoint import iteration_of
from outplay.runs.experiments import Experiment
from outplay.runs.folder import RunFolder
from outplay.runs.history import Record
from outplay.runs.keeping import CheckpointPolicy
from outplay.runs.loading import recorded_settings
from outplay.runs.sinks import Sink, SinkContext, close_sinks, open_sinks

log = logging.getLogger("outplay")

_STATUS_INTERVAL_S = 1.0  # between two updates of status.json
_SCAN_EVERY = 15  # updates of status.json: a search for child processes reads the whole process table


class Recorder:
    """Records nothing: for a run without a folder."""

    is_open = False
    is_rewound = False  # the algorithm was restored, and has not been trained since
    saved_at = -1  # the iteration of the last checkpoint
    state = "running"  # or how the run ended: finished, stopped, paused, failed, interrupted

    def open(self, algorithm: Algorithm) -> list[Record]:  # noqa: ARG002
        """Start recording. Returns the results up to the algorithm's iteration, which are kept."""
        self.is_open = True
        return []

    def close(self) -> None:
        self.is_open = False

    def rewind(self) -> None:
        """The algorithm was restored. When it trains again, metrics and checkpoints of later iterations are removed."""

    def take_requests(self) -> set[str]:
        """The requests to the run since the last call."""
        return set()

    def write_config(self, experiment: Experiment, algorithm: Algorithm) -> None: ...

    def write(self, result: Mapping[str, Any]) -> None: ...

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write what `status_of` returns."""

    @property
    def is_status_due(self) -> bool:
        return False

    def is_checkpoint_due(self, result: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return False

    def save(self, algorithm: Algorithm, score: Mapping[str, Any] | None = None) -> Path | None:  # noqa: ARG002
        """Write a checkpoint, unless this iteration has one. Returns its path if it was written.

        `score` is the result of the iteration: its return decides whether the checkpoint is the best one.
        """
        return None


class FolderRecorder(Recorder):
    """Records in a run folder. Holds the lock of the folder while it is open."""

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        self._folder = folder
        self._experiment = experiment
        self._keeping = CheckpointPolicy(experiment, folder)
        self._sinks: list[Sink] = []
        self._status_at = 0.0
        self._usage: tuple[Usage, MachineUsage] | None = None

    def open(self, algorithm: Algorithm) -> list[Record]:
        """Lock the folder and open the sinks."""
        self._folder.lock()
        self.is_open = True
        self._remove_later(algorithm)
        kept, damaged = self._folder.results_until(algorithm.iteration)
        if damaged:
            lines = "1 damaged line was" if len(damaged) == 1 else f"{len(damaged)} damaged lines were"
            numbers = ", ".join(map(str, damaged[:10])) + (", …" if len(damaged) > 10 else "")
            log.warning("metrics.jsonl: %s dropped (line %s)", lines, numbers)
        settings = {"algorithm": type(algorithm).__name__, **algorithm.get_config()}
        context = SinkContext(self._folder.path, self._experiment.name, settings, kept, algorithm.timesteps)
        self._sinks = open_sinks(self._experiment.loggers, context)
        self._keeping.start(kept)
        return kept

    def close(self) -> None:
        """Close the sinks and unlock the folder."""
        sinks, self._sinks, self.is_open = self._sinks, [], False
        try:
            close_sinks(sinks, self.state)
        finally:
            self._folder.unlock()

    def rewind(self) -> None:
        self.close()
        self.saved_at, self.is_rewound = -1, True

    def _remove_later(self, algorithm: Algorithm) -> None:
        """After a rewind, remove the checkpoints of later iterations: the run would resume from the newest."""
        if self.is_rewound:
            for path in self._folder.checkpoints():
                if iteration_of(path) > algorithm.iteration:
                    self._folder.remove_checkpoint(path)
            self.is_rewound = False

    def take_requests(self) -> set[str]:
        return self._folder.take_requests()

    def write_config(self, experiment: Experiment, algorithm: Algorithm) -> None:
        with self._folder.locked():
            self._folder.write_config(experiment.name, recorded_settings(experiment, algorithm))

    def write(self, result: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.write(result)

    def write_status(self, status: Mapping[str, Any]) -> None:
        self.state = status["state"]
        self._folder.write_status({**status, "machine": self._machine()})
        self._status_at = time.monotonic()

    def _machine(self) -> dict[str, Any]:
        """CPU and memory of the machine, and of the run's processes on it."""
        if self._usage is None:
            self._usage = Usage(_SCAN_EVERY), MachineUsage()
        run, machine = self._usage
        run.sample()
        own = {"run_cpu_percent": round(run.cpu_percent, 1), "run_memory_bytes": run.memory}
        return {**machine.sample(), **own, "gpus": gpu_usage()}

    @property
    def is_status_due(self) -> bool:
        return time.monotonic() - self._status_at >= _STATUS_INTERVAL_S

    def is_checkpoint_due(self, result: Mapping[str, Any]) -> bool:
        return self._keeping.is_due(result["training_iteration"])

    def save(self, algorithm: Algorithm, score: Mapping[str, Any] | None = None) -> Path | None:
        if score is not None:
            self._keeping.score(score)
        if self.saved_at == algorithm.iteration:
            return None
        if not self._folder.path.is_dir():  # saving would create it again, without the other files
            raise RunError(f"the run folder {self._folder} was deleted or moved during training")
        with self._folder.locked():
            self._remove_later(algorithm)
            started = time.monotonic()
            path = Path(algorithm.save(self._folder.checkpoints_path))
            self.saved_at = algorithm.iteration
            self._keeping.after_saving(algorithm.iteration, time.monotonic() - started)
        return path


def status_of(
    state: str,
    algorithm: Algorithm,
    last: Record,
    progress: float,
    error: str = "",
    evaluation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The contents of status.json. `evaluation`: one beside training that no iteration has reported."""
    restarts = algorithm.worker_restarts
    return {
        "state": state,
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "updated": datetime.now().astimezone().isoformat(timespec="seconds"),
        "training_iteration": algorithm.iteration,
        "timesteps_total": algorithm.timesteps,
        "episode_return_mean": last.get("episode_return_mean"),
        "progress": progress,
        "workers": {
            "number": len(restarts),
            "replaced": sum(restarts),
            "each": algorithm.training_workers.health(),
        },
        **({"error": error} if error else {}),
        **({"evaluation": dict(evaluation)} if evaluation else {}),
    }


def last_result(kept: list[Record], algorithm: Algorithm) -> Record:
    """The result of the algorithm's iteration. If its line is missing, a result from the algorithm's counters."""
    if kept and kept[-1]["training_iteration"] == algorithm.iteration:
        return kept[-1]
    if not algorithm.iteration:
        return {}
    return {
        "training_iteration": algorithm.iteration,
        "timesteps_total": algorithm.timesteps,
        "time_total_s": algorithm.seconds,
        **algorithm.episodes.metrics(),
    }
