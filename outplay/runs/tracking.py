"""Sinks that send results to a tracking service: Weights & Biases and MLflow.

A service may be down for some time. So a result that could not be sent is kept, and sent later. Each sink stores the id
of its run at the service in the run folder: a resumed run continues it, and sends no iteration twice.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from outplay.errors import OutplayError, RunError, shortened
from outplay.files import replace_file
from outplay.runs.history import Record, flattened
from outplay.runs.sinks import SinkContext
from outplay.settings import Settings

log = logging.getLogger("outplay")

_RETRY_S = 60.0  # between two attempts to reach a service that failed
_FINISH_S = 60.0  # W&B: the longest wait for uploads at the end of a run
_WANDB_EXIT_CODES = {"failed": 1, "interrupted": 255}  # otherwise 0; 255 is W&B's own after a KeyboardInterrupt
_MLFLOW_STATUSES = {"failed": "FAILED", "interrupted": "KILLED"}  # otherwise FINISHED


class Tracker(ABC):
    """Base of these sinks. Sends each iteration once, in order; while the service fails, results wait in memory."""

    name: ClassVar[str]
    remedy: ClassVar[str]  # if the service fails at the start

    def __init__(self, context: SinkContext, options: Any) -> None:
        self._state_path = context.folder / f"{self.name}.json"
        self._retry_at = 0.0
        self._ended = ""  # how the run ended: see `end`
        self._has_warned = False
        with self._failing_to_start():
            self._sent = self._connect(context, options)  # the last iteration that the service has
        self._waiting: deque[Record] = deque(r for r in context.kept if r["training_iteration"] > self._sent)

    @abstractmethod
    def _connect(self, context: SinkContext, options: Any) -> int:
        """Create the run at the service, or continue it. Returns the last iteration that it has."""

    @abstractmethod
    def _send(self, result: Mapping[str, Any]) -> None:
        """Send the result of one iteration."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    def write(self, result: Mapping[str, Any]) -> None:
        if result["training_iteration"] <= self._sent:  # a resumed run repeats iterations after its checkpoint
            return
        self._waiting.append(dict(result))
        if time.monotonic() >= self._retry_at:
            self._send_waiting()

    def _send_waiting(self) -> None:
        try:
            while self._waiting:
                self._send(self._waiting[0])
                self._sent = self._waiting.popleft()["training_iteration"]
        except OutplayError:  # of the run folder
            raise
        except Exception as error:  # noqa: BLE001 - MLflow raises bare Exceptions, too
            self._retry_at = time.monotonic() + _RETRY_S
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "loggers: %s failed: %s; training continues, and the results are sent when it works again",
                    self.name, _first_line(error),
                )  # fmt: skip

    def end(self, state: str) -> None:
        """How the run ended: finished, stopped, paused, failed or interrupted."""
        self._ended = state

    def close(self) -> None:
        self._send_waiting()
        try:
            self._disconnect()
        except Exception as error:  # noqa: BLE001 - as above
            if not self._waiting:
                log.warning("loggers: %s failed when the run was closed: %s", self.name, _first_line(error))
        if number := len(self._waiting):
            log.warning(
                "loggers: %d iteration%s could not be sent to %s; metrics.jsonl has them, and a resumed run sends them",
                number, "s" * (number != 1), self.name,
            )  # fmt: skip

    @contextmanager
    def _failing_to_start(self) -> Iterator[None]:
        try:
            yield
        except OutplayError:
            raise
        except Exception as error:
            raise RunError(f"loggers: {self.name} failed to start: {_first_line(error)}; {self.remedy}") from error

    def _state(self) -> dict[str, Any]:
        """What this sink stored in the run folder; empty for a new run."""
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged() from error
        if not isinstance(state, dict) or not re.fullmatch(r"[\w-]{1,128}", str(state.get("id", ""))):
            raise self._damaged()
        return state

    def _damaged(self) -> RunError:
        return RunError(f"{self._state_path} is damaged; delete it to start a new run at {self.name}")

    def _store(self, **state: Any) -> None:
        replace_file(self._state_path, json.dumps(state) + "\n")


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, 300)


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics of a result, by names like learner/kl."""
    flat = flattened(result).items()
    return {name: value for name, value in flat if isinstance(value, (int, float)) and math.isfinite(value)}


class WandbOptions(Settings):
    """Options of the logger `wandb`."""

    project: str = Field("outplay", description="Project at Weights & Biases.")
    entity: str | None = Field(None, description="User or team; default: that of the API key.")
    name: str | None = Field(None, description="Name of the run; default: that of the run folder.")
    group: str | None = Field(None, description="Group of runs; default: the name of the experiment.")
    tags: list[str] = Field([], description="Tags of the run.")
    notes: str | None = Field(None, description="Notes on the run.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="offline: write to the run folder, for `wandb sync`; default: $WANDB_MODE, else online."
    )


class Wandb(Tracker):
    """Weights & Biases. Its files are in wandb/, its id is in wandb.json."""

    name = "wandb"
    remedy = "check the network and the API key, or use {wandb: {mode: offline}}"
    package = "wandb"
    Options = WandbOptions

    def _connect(self, context: SinkContext, options: WandbOptions) -> int:
        os.environ.setdefault("WANDB_SILENT", "true")  # its messages would be written into the panel
        import wandb

        state = self._state()
        mode = options.mode or os.environ.get("WANDB_MODE") or "online"
        settings = wandb.Settings(
            console="off", reinit="create_new", finish_timeout=_FINISH_S, silent=True, disable_git=True, save_code=False
        )
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise RunError("loggers: wandb has no API key; run `wandb login`, or use {wandb: {mode: offline}}")
        self._run = wandb.init(
            project=options.project,
            entity=options.entity,
            name=options.name or context.folder.name,
            group=options.group or context.experiment,
            tags=options.tags,
            notes=options.notes,
            mode=mode,  # type: ignore[arg-type] # $WANDB_MODE: wandb checks it
            dir=context.folder,
            id=state.get("id") or secrets.token_hex(8),
            resume="allow",
            settings=settings,
        )
        self._run.config.update(context.settings, allow_val_change=True)  # a resumed run may have other settings
        self._run.define_metric("*", step_metric="timesteps_total")
        self._store(id=self._run.id, url=self._run.url)
        self._files = context.folder / "wandb" if mode == "offline" else None
        if not state:
            return 0
        if mode == "online":
            return int(self._run.step) - 1  # the step is the iteration; W&B sets it to the next one
        return self._last_in_files() if self._files else 0

    def _send(self, result: Mapping[str, Any]) -> None:
        self._run.log(numbers(result), step=result["training_iteration"], commit=True)

    def _disconnect(self) -> None:
        self._run.finish(exit_code=_WANDB_EXIT_CODES.get(self._ended, 0))
        # Offline, finish() returns before the file is written. A run that is resumed at once reads it.
        until = time.monotonic() + _FINISH_S
        while self._files is not None and self._last_in_files() < self._sent and time.monotonic() < until:
            time.sleep(0.01)

    def _last_in_files(self) -> int:
        assert self._files is not None
        return max(iterations_in(self._files, self._run.id), default=0)


_WANDB_HEADER, _BLOCK, _RECORD = 7, 32768, struct.Struct("<IHB")  # the format of LevelDB's logs


def iterations_in(folder: Path, run_id: str) -> list[int]:
    """The iterations in W&B's files of a run. If its process was killed, the last ones may be missing."""
    from wandb.proto.wandb_internal_pb2 import Record as WandbRecord

    found = []
    for path in sorted(folder.glob(f"*/run-{run_id}.wandb")):
        for data in _leveldb_records(path.read_bytes()):
            items = WandbRecord.FromString(data).history.item
            named = {item.key or "/".join(item.nested_key): item.value_json for item in items}
            found += [int(named["training_iteration"])] if "training_iteration" in named else []
    return found


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """The complete records of a log. A record is cut into parts: none is in two blocks."""
    at, record = _WANDB_HEADER, b""
    while at + _RECORD.size <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _RECORD.size:
            at += left
            continue
        _, length, part = _RECORD.unpack_from(data, at)
        record += data[at + _RECORD.size : at + _RECORD.size + length]
        at += _RECORD.size + length
        if part in (1, 4) and at <= len(data):  # the only part, or the last one
            yield record
            record = b""


class MlflowOptions(Settings):
    """Options of the logger `mlflow`."""

    tracking_uri: str | None = Field(
        None, description="Tracking server or folder; default: $MLFLOW_TRACKING_URI, else mlruns/ in the run folder."
    )
    experiment_name: str | None = Field(None, description="Experiment at MLflow; default: the name of the experiment.")
    run_name: str | None = Field(None, description="Name of the run; default: that of the run folder.")
    tags: dict[str, str] = Field({}, description="Tags of the run.")


class Mlflow(Tracker):
    """MLflow. The id of the run is in mlflow.json; without another tracking URI, the metrics are in mlruns/."""

    name = "mlflow"
    remedy = "check tracking_uri, and the id in mlflow.json if the run was resumed"
    package = "mlflow"
    Options = MlflowOptions

    def _connect(self, context: SinkContext, options: MlflowOptions) -> int:
        uri = options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or (context.folder / "mlruns").as_uri()
        # MLflow would retry for many minutes, in which nothing is trained. Tracker tries again later.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # otherwise MLflow 3 asks for a database
        from mlflow import MlflowClient

        state = self._state()
        self._client = MlflowClient(tracking_uri=uri)
        if not state:
            self._create(context, options)
            return 0
        self._id = str(state["id"])
        sent = self._client.get_run(self._id).data.metrics.get("training_iteration", 0.0)
        self._client.update_run(self._id, status="RUNNING")
        return int(sent)

    def _create(self, context: SinkContext, options: MlflowOptions) -> None:
        from mlflow.entities import Param

        name = options.experiment_name or context.experiment
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        run_name = options.run_name or context.folder.name
        self._id = self._client.create_run(experiment, run_name=run_name, tags=options.tags).info.run_id
        self._store(id=self._id)
        params = [Param(_mlflow_name(key), str(value)[:5000]) for key, value in _flat_settings(context.settings)]
        for first in range(0, len(params), 100):  # MLflow takes at most 100 at a time
            self._client.log_batch(self._id, params=params[first : first + 100])

    def _send(self, result: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), result["timesteps_total"]
        values = numbers(result)
        iteration = values.pop("training_iteration")
        values["training_iteration"] = iteration  # the last one: it tells that this result is complete
        metrics = [Metric(_mlflow_name(name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _disconnect(self) -> None:
        self._client.set_terminated(self._id, _MLFLOW_STATUSES.get(self._ended, "FINISHED"))


def _mlflow_name(name: str) -> str:
    """A name that MLflow allows: its file store cannot have both stages_s/collect and stages_s/collect/act.

    >>> _mlflow_name("stages_s/collect/act")
    'stages_s/collect.act'
    """
    group, slash, rest = name.partition("/")
    return re.sub(r"[^\w.\- :/]", "_", group + slash + rest.replace("/", "."), flags=re.ASCII)[:250]


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as (model.fcnet_hiddens, value) pairs."""
    flat: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat += _flat_settings(value, f"{prefix}{key}.")
        else:
            flat.append((prefix + str(key), value))
    return flat
