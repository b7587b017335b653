"""What `outplay plot` draws: the results of runs, experiments and studies, by the names that a user types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outplay.conditions import flattened, metric_name
from outplay.errors import ConfigError, RunError, nearest
from outplay.runs.comparing import flat_settings, group_key
from outplay.runs.finding import find_runs
from outplay.runs.folder import RunFolder
from outplay.runs.results import as_path

Array = np.ndarray
Record = Mapping[str, Any]

X_METRICS = ("timesteps_total", "time_total_s", "episodes_total", "training_iteration")


@dataclass(frozen=True)
class Source:
    """A run, or a trial of a study."""

    name: str
    experiment: str  # or the study
    settings: Mapping[str, Any]  # flat
    group: str  # the same for runs that differ in the seed only
    parts: Callable[[], Iterator[tuple[Sequence[Record], bool]]] = field(repr=False)
    """Results, some at a time. The flag says that those before are void: the run was resumed from a checkpoint."""

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")

    def read(self, metrics: Sequence[str]) -> dict[str, Array]:
        """The values of metrics as arrays of the same length: one value per result, NaN where there is none."""
        columns: dict[str, list[float]] = {name: [] for name in metrics}
        for results, is_restart in self.parts():
            for name, column in columns.items():
                if is_restart:
                    column.clear()
                column.extend(_value(result, name) for result in results)
        return {name: np.array(column, np.float64) for name, column in columns.items()}

    def metrics(self) -> set[str]:
        """The names of all metrics."""
        return {name for results, _ in self.parts() for result in results for name in flattened(result)}


def _value(result: Any, name: str) -> float:
    """The number at a flat name, as learner/kl; NaN if there is none. Names of stages have slashes themselves."""
    while isinstance(result, dict) and name not in result:
        outer, _, name = name.partition("/")
        result = result.get(outer)
    value = result[name] if isinstance(result, dict) else None
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def find_sources(names: Iterable[str], results: Path) -> list[Source]:
    """The runs and trials that the names mean, without duplicates. Raises if a name means none."""
    found: dict[Path, Source] = {}
    for name in names:
        for path, source in _sources(name, results):
            found.setdefault(path.absolute(), source)
    return list(found.values())


def _sources(name: str, results: Path) -> list[tuple[Path, Source]]:
    study = study_folder(name, results)
    if study is not None and not any(study.glob("*/config.yaml")):
        return _trials(study)
    paths = find_runs(name if study is None else study, results)
    return [(path, run_source(RunFolder(path))) for path in sorted(paths, key=_started)]


def _started(path: Path) -> tuple[str, str]:
    """Orders runs by the date in their names. Names of trials have none, and are numbered."""
    date = re.search(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$", path.name)
    return ("" if date is None else date[0]), path.name


def study_folder(name: str, results: Path) -> Path | None:
    """The folder of a study that a name or path means; None if it means something else."""
    text = name.rstrip("/")
    candidates = [as_path(text)] if text else []
    if text and "/" not in text:
        candidates.insert(0, results / text)
    return next((path for path in candidates if (path / "study.json").is_file()), None)


def run_source(folder: RunFolder) -> Source:
    """The results of one run. Raises ConfigError if its config.yaml is damaged."""
    experiment, body = folder.recorded()
    path = folder.path.absolute()
    settings = flat_settings(body)
    return Source(f"{path.parent.name}/{path.name}", experiment, settings, group_key(experiment, settings), _of(folder))


def _of(folder: RunFolder) -> Callable[[], Iterator[tuple[Sequence[Record], bool]]]:
    def parts() -> Iterator[tuple[Sequence[Record], bool]]:
        part = folder.part_of_metrics()
        yield part.results, True
        while not part.is_last:
            part = folder.part_of_metrics(part.end)
            yield part.results, part.rewritten

    return parts


def _trials(study: Path) -> list[tuple[Path, Source]]:
    """Trials of a function, which have no run folder: their results are in the journal of the study."""
    from outplay.tune import ExperimentAnalysis

    analysis = ExperimentAnalysis(study)
    curves = analysis.curves()
    if not curves:
        raise RunError(f"the study {study} has no trials yet")
    return [
        (
            study / trial.id,
            Source(f"{study.name}/{trial.id}", study.name, trial.values, trial.id, _constant(curves[trial.id])),
        )
        for trial in analysis.trials
    ]


def _constant(results: Sequence[Record]) -> Callable[[], Iterator[tuple[Sequence[Record], bool]]]:
    return lambda: iter([(results, True)])


def check_metrics(sources: Sequence[Source], columns: Sequence[Mapping[str, Array]], metrics: Sequence[str]) -> None:
    """Raise ConfigError if a metric has no value in any run. `columns`: what `read` returned for each."""
    for name in metrics:
        if not any(np.isfinite(column[name]).any() for column in columns):
            raise ConfigError(_missing(name, sources))


def _missing(name: str, sources: Sequence[Source]) -> str:
    known = set().union(*(source.metrics() for source in sources))
    whose = sources[0].name if len(sources) == 1 else "these runs"
    if not known:
        return f"there are no results yet in {whose}"
    if name in known:
        return f"the metric {name!r} has no value yet in {whose}"
    remedy = "; set evaluation_interval to evaluate a run while it trains" if name.startswith("evaluation/") else ""
    return f"there is no metric {name!r} in {whose}" + (remedy or nearest(name, known))


def translated(name: str) -> str:
    """The name of a metric; RLlib's names are translated."""
    try:
        return metric_name(name)
    except ConfigError:
        return name  # a metric of a callback, or of a trial
