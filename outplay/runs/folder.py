"""RunFolder: reads and writes the files of a run folder. Does not import torch.

config.yaml                      all settings
metrics.jsonl                    one line per iteration
status.json                      state, progress, workers; rewritten every second
control/                         requests to the run: stop, checkpoint, evaluate, video
checkpoints/checkpoint_000010/   see runs/checkpoint.py
videos/  tensorboard/  progress.csv  wandb/  wandb.json  mlruns/  mlflow.json      optional
.lock                            held by the process that trains the run
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from outplay.errors import CheckpointError, ConfigError, RunError, nearest
from outplay.files import overwrite_file, remove, replace_file, writing
from outplay.parsing import MAX_YAML_BYTES, parse_json
from outplay.runs import sampling
from outplay.runs.history import (
    Metrics,
    Part,
    Position,
    Record,
    as_json,
    read_metrics,
    read_part,
    read_until,
)
from outplay.runs.lock import FolderLock, is_locked
from outplay.runs.recorded import recorded_config
from outplay.runs.results import as_path, new_run_folder, runs_by_name
from outplay.runs.videos import Video, videos_in

if TYPE_CHECKING:
    from outplay.runs.experiments import Experiment

log = logging.getLogger("outplay")

REQUESTS = ("stop", "checkpoint", "evaluate", "video")
_STATUS = {"state": str, "pid": int, "host": str, "updated": str, "training_iteration": int, "timesteps_total": int}


class RunFolder:
    """A run on disk, for the process that trains the run and for other processes that monitor it.

    >>> folder = RunFolder("~/outplay_results/poles/PPO_CartPole-v1_3fa9c1_2026-11-15_12-00-00")
    >>> folder.status()["state"]
    'running'
    >>> seen = folder.metrics()
    >>> new = folder.metrics(since=seen.end)  # only the results since then
    >>> folder.request("stop")
    """

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self._lock = FolderLock(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, results: Path, experiment: str, algorithm: str, env: str) -> RunFolder:
        """Create and lock a new folder RESULTS/<experiment>/<ALGO>_<env>_<id>_<date>."""
        return cls._locked_new(new_run_folder(results, experiment, algorithm, env))

    @classmethod
    def create_at(cls, path: str | Path) -> RunFolder:
        """Create and lock a new folder at this path."""
        path = as_path(path)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"the run folder {path} cannot be created: {error.strerror or error}") from error
        return cls._locked_new(path)

    @classmethod
    def _locked_new(cls, path: Path) -> RunFolder:
        folder = cls(path)
        try:
            folder.lock()
        except BaseException:
            folder.remove()
            raise
        return folder

    def remove(self) -> None:
        """Delete the folder and its content."""
        self.unlock()
        with writing(self.path, "removed"):
            remove(self.path)

    # One writer at a time.

    def lock(self) -> None:
        """Acquire the lock of this run. Raises RunError if another process holds it."""
        if not self.path.is_dir():
            raise RunError(f"the run folder {self.path} does not exist; it was deleted or moved")
        self._lock.acquire()

    def unlock(self) -> None:
        self._lock.release()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock within the block. If this object holds it already, it is not released."""
        if self._lock.is_held:
            yield
            return
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    # config.yaml

    def experiment(self, trust: bool = False) -> Experiment:
        """The experiment in config.yaml. Its `import_from` is ignored without `trust`."""
        from outplay.runs.experiments import load_file

        self.check_is_run()
        return load_file(self.path / "config.yaml", trust)[0]

    def check_is_run(self) -> None:
        if not (self.path / "config.yaml").exists():
            raise CheckpointError(f"there is no run at {self.path}: it has no config.yaml")

    def write_config(self, name: str, body: dict[str, Any]) -> None:
        """Write config.yaml, and create the folder for requests."""
        text = yaml.safe_dump({name: body}, sort_keys=False)
        if len(text) > MAX_YAML_BYTES:
            raise ConfigError(f"config.yaml would be larger than {MAX_YAML_BYTES:,} bytes; env_config is too large")
        replace_file(self.path / "config.yaml", text)
        with writing(self.path):
            self._control.mkdir(exist_ok=True)

    def recorded(self) -> tuple[str, dict[str, Any]]:
        """The name of the experiment and its settings as config.yaml has them, unchecked. Raises ConfigError."""
        return recorded_config(self.path / "config.yaml")

    # status.json

    def status(self) -> dict[str, Any] | None:
        """The content of status.json; None if it is missing or damaged.

        The state is "killed" if the file says "running" but no process holds the lock.
        """
        try:
            descriptor = os.open(self.path / "status.json", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                status = parse_json(file.read() or b"")
        except (OSError, ValueError):
            return None
        if not isinstance(status, dict) or any(type(status.get(key)) is not kind for key, kind in _STATUS.items()):
            return None
        value = status.get("episode_return_mean")
        if value is not None and type(value) not in (int, float):
            return None
        is_same_host = status["host"] == os.uname().nodename
        if status["state"] == "running" and is_same_host and is_locked(self.path) is False:
            status["state"] = "killed"
        return status

    def write_status(self, status: dict[str, Any]) -> None:
        path, text = self.path / "status.json", as_json(status) + "\n"
        try:
            replace_file(path, text)
        except RunError:
            if status["state"] != "failed":
                raise
            overwrite_file(path, text)  # a full disk has no space for a new file

    # metrics.jsonl

    def metrics(self, since: Position | None = None) -> Metrics:
        """The results since a position (the `end` of an earlier call), or all results."""
        return read_metrics(self.path / "metrics.jsonl", since)

    def results_until(self, iteration: int) -> tuple[list[Record], list[int]]:
        """The results up to an iteration, and the line numbers of damaged lines of metrics.jsonl."""
        return read_until(self.path / "metrics.jsonl", iteration)

    def part_of_metrics(self, since: Position | None = None, most_bytes: int = 4_000_000) -> Part:
        """The next results since a position, at most `most_bytes` of the file: for files larger than memory."""
        return read_part(self.path / "metrics.jsonl", since, most_bytes)

    def lines_of_metrics(self, start: int, stop: int) -> Part:
        """The results between two offsets of the file, both of which are starts of lines."""
        return read_part(self.path / "metrics.jsonl", None, max(0, stop - start), start)

    def sampled_metrics(self, number: int) -> Part:
        """About `number` results, evenly spaced, without reading the whole file."""
        return sampling.sample_metrics(self.path / "metrics.jsonl", number)

    def last_metrics(self, number: int, most_bytes: int) -> list[Record]:
        """The last results, at most `number`, from the last `most_bytes` of the file."""
        return sampling.last_results(self.path / "metrics.jsonl", number, most_bytes)

    def last_metrics_with(self, group: str, most_bytes: int) -> Record | None:
        """The last result that has this group of metrics, from the last `most_bytes` of the file."""
        return sampling.last_result_with(self.path / "metrics.jsonl", group, most_bytes)

    def results_of(self, iterations: Iterable[int]) -> dict[int, Record]:
        """The results of these iterations, as far as there are, by iteration."""
        return sampling.results_of(self.path / "metrics.jsonl", iterations)

    # checkpoints/

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        from outplay.runs.checkpoint import checkpoints_in

        return checkpoints_in(self.checkpoints_path)

    @staticmethod
    def iteration_of(checkpoint: Path) -> int:
        from outplay.runs.checkpoint import iteration_of

        return iteration_of(checkpoint)

    def remove_checkpoint(self, path: Path) -> None:
        with writing(path, "removed"):
            remove(path)

    # videos/

    @property
    def videos_path(self) -> Path:
        return self.path / "videos"

    def videos(self) -> list[Video]:
        """The recorded videos, oldest first."""
        return videos_in(self.videos_path)

    # control/

    @property
    def _control(self) -> Path:
        return self.path / "control"

    def request(self, what: str) -> None:
        """Request that the run `stop`s, writes a `checkpoint`, `evaluate`s or records a `video`.

        The run does so after the current iteration.
        """
        if what not in REQUESTS:
            raise ConfigError(f"no request {what!r}{nearest(what, REQUESTS)}")
        self.check_is_run()
        with writing(self._control / what):
            self._control.mkdir(exist_ok=True)
            (self._control / what).touch()

    def take_requests(self) -> set[str]:
        """Read and remove the requests since the last call."""
        found = set()
        for path in sorted(self._control.glob("*")):
            with writing(path, "removed"):
                path.unlink(missing_ok=True)
            if path.name in REQUESTS:
                found.add(path.name)
            else:
                log.warning("control/%s is not a request; valid: %s", path.name, ", ".join(REQUESTS))
        return found


def runs_in(results: Path) -> list[RunFolder]:
    """The runs of all experiments."""
    return [RunFolder(path) for path in runs_by_name(results).values()]
