"""Details of one run: checkpoints, videos, time of stages, workers, metrics."""

from __future__ import annotations

import math
import os
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

from outplay.dashboard.entries import Entry, flat_metrics, is_text, number_or_none
from outplay.errors import OutplayError
from outplay.runs.comparing import flat as flat_settings
from outplay.runs.history import Record
from outplay.runs.videos import Video

_RECENT = 20  # results whose stages are added up
_RECENT_BYTES = 200_000
_EVALUATION_BYTES = 2_000_000  # among which the newest evaluation is searched
_MOST_LISTED = 500


def run_details(entry: Entry, metrics: list[str]) -> dict[str, Any]:
    """The answer of /api/run. `metrics`: the names of all metrics of the run."""
    status, last = entry.status or {}, entry.last
    flat = flat_metrics(last)
    return {
        "run": entry.run,
        "status": status,
        "config": entry.body,
        "checkpoints": _checkpoints(entry),
        "videos": [_video(video) for video in videos_of(entry)],
        "evaluation": _evaluation(entry),
        "stages": stages_of(recent_results(entry)),
        "workers": workers_of(status),
        "metrics": sorted({*metrics, *flat}),
        "last": flat,
        "curriculum": _curriculum(entry.body["config"], last),
        "host": status.get("host"),
        "is_here": status.get("host") == os.uname().nodename,
        "can_render": None,
    }


def recent_results(entry: Entry) -> list[Record]:
    """The last results of a run."""
    try:
        return entry.folder.last_metrics(_RECENT, _RECENT_BYTES)
    except OutplayError:
        return []


def _evaluation(entry: Entry) -> dict[str, Any] | None:
    """The newest evaluation: beside training, status.json has one that no iteration has reported."""
    try:
        result = entry.folder.last_metrics_with("evaluation", _EVALUATION_BYTES) or {}
    except OutplayError:
        result = {}
    found = (entry.status or {}).get("evaluation") or result.get("evaluation")
    if not isinstance(found, dict):
        return None
    names = {"return": "mean", "low": "min", "high": "max"}
    return {
        "iteration": found.get("iteration", result.get("training_iteration")),
        "episodes": number_or_none(found.get("episodes")),
        **{key: number_or_none(found.get(f"episode_return_{name}")) for key, name in names.items()},
    }


def videos_of(entry: Entry) -> list[Video]:
    """The videos of a run, newest first."""
    found = [video for video in entry.folder.videos() if is_text(video.name)]
    return found[::-1][:_MOST_LISTED]


def _video(video: Video) -> dict[str, Any]:
    return {"name": video.name, "bytes": video.bytes, "written": video.written.isoformat(timespec="seconds")}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _checkpoints(entry: Entry) -> list[dict[str, Any]]:
    """The checkpoints, oldest first, with the return of their iteration."""
    try:
        paths = entry.folder.checkpoints()[-_MOST_LISTED:]
        results = entry.folder.results_of([entry.folder.iteration_of(path) for path in paths])
    except (OutplayError, OSError):
        return []
    scores = {iteration: _score(result) for iteration, result in results.items() if _score(result) is not None}
    best = max(scores, key=lambda iteration: scores[iteration] or (0, -math.inf), default=None)
    found = []
    for path in paths:
        iteration = entry.folder.iteration_of(path)
        result = results.get(iteration, {})
        size, written = _size(path)
        found.append(
            {
                "name": path.name,
                "iteration": iteration,
                "timesteps": result.get("timesteps_total"),
                "return": number_or_none(result.get("episode_return_mean")),
                "is_best": iteration == best,
                "bytes": size,
                "written": written,
            }
        )
    return found


def _score(result: Record) -> tuple[float, float] | None:
    """What checkpoints are compared by: a return on a harder level is better than any on an easier one."""
    value = number_or_none(result.get("episode_return_mean"))
    return None if value is None else (number_or_none(result.get("curriculum_level")) or 0, value)


def _size(folder: Path) -> tuple[int, str | None]:
    """The bytes of a checkpoint's files, its segments included, and when it was written."""
    size = 0
    try:
        written = _time(folder.stat().st_mtime)
        for path in (*folder.glob("*"), *folder.glob("replay/*")):
            found = path.lstat()
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    except OSError:
        return size, None
    return size, written


def stages_of(results: list[Record]) -> list[dict[str, Any]]:
    """The seconds of each stage in these results, and its share of their time. Stages within others have a slash."""
    seconds: dict[str, float] = {}
    total = 0.0
    for result in results:
        total += number_or_none(result.get("time_this_iter_s")) or 0.0
        stages = result.get("stages_s")
        for name, value in stages.items() if isinstance(stages, dict) else ():
            seconds[name] = seconds.get(name, 0.0) + (number_or_none(value) or 0.0)
    share = 1.0 / total if total > 0 else 0.0
    return [
        {"name": name, "seconds": value, "share": min(1.0, value * share)} for name, value in sorted(seconds.items())
    ]


def workers_of(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The health of each worker, as the run reports it."""
    workers = status.get("workers")
    each = workers.get("each") if isinstance(workers, dict) else workers
    return [worker for worker in each if isinstance(worker, dict)] if isinstance(each, list) else []


def _curriculum(config: dict[str, Any], last: Record) -> dict[str, Any] | None:
    curriculum = config.get("curriculum")
    level = last.get("curriculum_level")
    if not isinstance(curriculum, dict) and level is None:
        return None
    levels = curriculum.get("levels") if isinstance(curriculum, dict) else None
    return {"level": number_or_none(level) or 0, "levels": len(levels) if isinstance(levels, list) else None}


def difference(one: Entry, other: Entry) -> dict[str, Any]:
    """The settings that differ between two runs, and how many do not: the answer of /api/diff."""
    first, second = ({**_settings(entry)} for entry in (one, other))
    names = list(dict.fromkeys([*first, *second]))
    differing = [name for name in names if first.get(name) != second.get(name) or (name in first) != (name in second)]
    return {
        "settings": [{"name": name, "values": [first.get(name), second.get(name)]} for name in differing],
        "same": len(names) - len(differing),
    }


def _settings(entry: Entry) -> dict[str, Any]:
    body = entry.body
    experiment = {key: value for key, value in body.items() if key not in ("config", "import_from")}
    return flat_settings({**experiment, **body["config"]})
