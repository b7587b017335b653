"""What a report says of a run, read from its folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from outplay.errors import OutplayError
from outplay.plotting.sources import Array, run_source
from outplay.runs.comparing import AUTO, flat_settings
from outplay.runs.folder import RunFolder
from outplay.runs.videos import Video

_RECENT = 10  # results whose speed is averaged


@dataclass(frozen=True)
class SavedAt:
    """A checkpoint."""

    name: str
    iteration: int
    steps: float  # NaN: unknown, as the returns
    mean_return: float
    evaluation: float
    size: int  # bytes
    written: datetime
    is_best: bool


@dataclass(frozen=True)
class Facts:
    """A run. Metrics are arrays (N,) with one value per iteration, NaN where there is none."""

    folder: RunFolder
    experiment: str
    settings: dict[str, Any]  # flat
    defaults: dict[str, Any]  # flat; empty if the algorithm is not installed
    about: dict[str, Any]  # settings of the experiment: stop conditions, description
    status: dict[str, Any]
    columns: dict[str, Array]
    checkpoints: list[SavedAt]
    saved: dict[str, Any]  # state.json of the newest checkpoint
    video: Video | None

    @property
    def name(self) -> str:
        path = self.folder.path.absolute()
        return f"{path.parent.name}/{path.name}"

    @property
    def algorithm(self) -> str:
        return str(self.settings.get("run"))

    @property
    def env(self) -> str:
        return str(self.settings.get("env"))

    def last(self, metric: str) -> float:
        """The last known value of a metric; NaN without any."""
        column = self.columns.get(metric, np.empty(0))
        known = column[np.isfinite(column)]
        return float(known[-1]) if len(known) else math.nan

    @property
    def speed(self) -> float:
        """Environment steps per second in the last iterations."""
        column = self.columns.get("env_steps_per_s", np.empty(0))
        known = column[np.isfinite(column)][-_RECENT:]
        return float(known.mean()) if len(known) else math.nan

    @property
    def started(self) -> str:
        """When the run was created, by the name of its folder; empty if it has another name."""
        found = re.search(r"(\d{4}-\d\d-\d\d)_(\d\d)-(\d\d)-(\d\d)$", self.folder.path.absolute().name)
        return "" if found is None else f"{found[1]} {found[2]}:{found[3]}:{found[4]}"

    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults. What `auto` was resolved to does not."""
        return {
            name: value
            for name, value in self.settings.items()
            if name not in ("run", "env") and self.defaults.get(name) not in (value, AUTO)
        }

    def stages(self) -> list[tuple[str, float, float]]:
        """(name, seconds, share of the time of all iterations). A name with a slash is a part of another stage."""
        prefix = "stages_s/"
        seconds = {
            name.removeprefix(prefix): float(np.nansum(column))
            for name, column in self.columns.items()
            if name.startswith(prefix)
        }
        total = float(np.nansum(self.columns.get("time_this_iter_s", np.empty(0))))
        total = max(total, sum(value for name, value in seconds.items() if "/" not in name))
        whole = [(name, value, value / total) for name, value in sorted(seconds.items()) if total > 0]
        rest = total - sum(value for name, value, _ in whole if "/" not in name)
        return [*whole, *([("other", rest, rest / total)] if whole and rest / total >= 0.005 else [])]


def facts_of(folder: RunFolder) -> Facts:
    """Read a run folder. Raises OutplayError if it is no run, or damaged."""
    folder.check_is_run()
    experiment, body = folder.recorded()
    source = run_source(folder)
    columns = source.read(sorted(source.metrics()))
    paths = folder.checkpoints()
    videos = folder.videos()
    return Facts(
        folder=folder,
        experiment=experiment,
        settings=flat_settings(body),
        defaults=_defaults(str(body.get("run"))),
        about={key: value for key, value in body.items() if key not in ("config", "env", "run")},
        status=folder.status() or {},
        columns=columns,
        checkpoints=_checkpoints(folder, paths, columns),
        saved=_saved(paths),
        video=videos[-1] if videos else None,
    )


def _defaults(algorithm: str) -> dict[str, Any]:
    from outplay.runs.reference import defaults_of

    try:
        return flat_settings({"config": defaults_of(algorithm)})
    except OutplayError:  # of a package that is not installed here
        return {}


def _saved(paths: list[Path]) -> dict[str, Any]:
    from outplay.runs.playing import SavedPolicy

    for path in reversed(paths):
        try:
            return SavedPolicy.state_of(path)
        except OutplayError:  # damaged
            continue
    return {}


def _checkpoints(folder: RunFolder, paths: list[Path], columns: Mapping[str, Array]) -> list[SavedAt]:
    iterations = columns.get("training_iteration", np.empty(0))
    rows = {int(iteration): row for row, iteration in enumerate(iterations) if math.isfinite(iteration)}

    def value(metric: str, iteration: int) -> float:
        return float(columns[metric][rows[iteration]]) if metric in columns and iteration in rows else math.nan

    def score(iteration: int) -> tuple[float, float]:
        """As the run itself compares them: a return on a harder level is better than any on an easier one."""
        level, mean = value("curriculum_level", iteration), value("episode_return_mean", iteration)
        return (0.0 if math.isnan(level) else level), (-math.inf if math.isnan(mean) else mean)

    numbers = [folder.iteration_of(path) for path in paths]
    best = max(numbers, key=score, default=0)
    return [
        SavedAt(
            path.name,
            number,
            value("timesteps_total", number),
            value("episode_return_mean", number),
            value("evaluation/episode_return_mean", number),
            _size(path),
            datetime.fromtimestamp(path.stat().st_mtime),
            is_best=number == best and math.isfinite(score(number)[1]),
        )
        for path, number in zip(paths, numbers, strict=True)
    ]


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
