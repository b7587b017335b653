"""Finds a run by what a user types: a path, a name that `outplay runs` prints, or the start of one. Without torch.

A run is known by its experiment and by its own name, ALGO_env_HASH_date:

    cartpole/PPO_CartPole-v1_3fa9c1_2026-11-15_12-00-00
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from outplay.errors import CheckpointError, shortened
from outplay.runs.checkpoint import checkpoints_in
from outplay.runs.results import as_path, runs_by_name

_RUN = re.compile(r"(?P<kind>.+)_(?P<hash>[0-9a-f]{6})_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")
_MOST_NAMED = 5  # runs in one message


def find_run(name: str | Path, results: Path) -> Path:
    """Find a run folder.

    `name` is a path, `experiment/RUN`, an experiment, a run, a hash, or the start of one of these. If it means several
    runs of one experiment, the newest with a checkpoint is found; without any checkpoint, the newest.
    """
    found = find_runs(name, results)
    return found[0] if len(found) == 1 else _newest(found)


def find_runs(name: str | Path, results: Path) -> list[Path]:
    """All run folders that a name means, as `find_run` takes it, in the order of their names.

    Several runs are meant by an experiment, by a study, and by the start of names in one experiment.
    """
    text = str(name).rstrip("/")  # the completion of paths adds a slash
    runs = [_Run(known, folder) for known, folder in runs_by_name(results).items()]
    if exact := [run.folder for run in runs if run.full_name == text]:
        return exact
    path = as_path(name)
    if (path / "config.yaml").exists():
        return [path]
    _check_not_inside(path)
    if in_folder := sorted(file.parent for file in path.glob("*/config.yaml")):
        return in_folder
    if path.suffix == ".zip" and path.is_file():
        raise CheckpointError(f"{path} is a bundle: unpack it with `outplay unbundle {path}`, then resume the run")
    found, is_group = _matches(text, runs)
    experiments = sorted({run.experiment for run in found})
    if len(found) == 1 or (is_group and len(experiments) == 1):
        return [run.folder for run in found]
    if found:
        by_experiment = is_group and all(experiment.startswith(text) for experiment in experiments)
        raise CheckpointError(_ambiguous(text, experiments if by_experiment else [run.full_name for run in found]))
    raise CheckpointError(f"there is no run at {shortened(str(path))}{_nearest(text, runs)}")


@dataclass(frozen=True)
class _Run:
    full_name: str
    folder: Path

    @property
    def experiment(self) -> str:
        return self.folder.parent.name

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def kind(self) -> str:
        """ALGO_env: the part of the name that several runs share."""
        match = _RUN.fullmatch(self.name)
        return self.name if match is None else match["kind"]

    @property
    def hash(self) -> str:
        match = _RUN.fullmatch(self.name)
        return "" if match is None else match["hash"]


def _matches(text: str, runs: list[_Run]) -> tuple[list[_Run], bool]:
    """The runs that a name means, and whether it names a group of runs, as an experiment does, or one run.

    Complete names come first. A hash comes last: that a name starts with the same letters is no chance.
    """
    if found := [run for run in runs if run.experiment == text]:
        return found, True
    if found := [run for run in runs if text in (run.name, run.hash)]:
        return found, False
    groups = [run for run in runs if f"{run.experiment}/{run.kind}".startswith(text) or run.kind.startswith(text)]
    if text and groups:
        return groups, True
    starts = [run for run in runs if any(s.startswith(text) for s in (run.full_name, run.name, run.hash))]
    return starts if text else [], False


def _newest(folders: list[Path]) -> Path:
    saved = [folder for folder in folders if checkpoints_in(folder / "checkpoints")]
    return max(saved or folders, key=_last_change)


def _last_change(folder: Path) -> int:
    """When a run last made progress. The folder's own time also changes when a video is recorded."""
    files = (folder / name for name in ("config.yaml", "metrics.jsonl", "checkpoints"))
    return max(file.stat().st_mtime_ns for file in files if file.exists())


def _check_not_inside(path: Path) -> None:
    for parent in path.absolute().parents[:3]:
        if path.exists() and (parent / "config.yaml").exists() and (parent / "checkpoints").exists():
            raise CheckpointError(
                f"{path} is inside a run folder; give the run folder {parent}, which resumes from its newest "
                "checkpoint (to start a new run from this checkpoint, use --init-from)"
            )


def _ambiguous(text: str, names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{text!r} may mean {', '.join(names[:_MOST_NAMED])}{more}; give more of the name"


def _nearest(text: str, runs: list[_Run]) -> str:
    names = {name: run for run in runs for name in (run.experiment, run.name, run.full_name, run.hash) if name}
    close = get_close_matches(text, names, n=1)
    return f". Did you mean {close[0]!r}?" if close else "; `outplay runs` lists all runs"
