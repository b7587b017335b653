"""The results folder: creating run folders, and finding them by path or name. Does not import torch."""

from __future__ import annotations

import glob
import os
import re
import secrets
from datetime import datetime
from pathlib import Path

from outplay.errors import CheckpointError, ConfigError, RunError, shortened

_LONGEST_NAME = "x" * 255


def as_path(text: str | Path) -> Path:
    """A user's path, with `~` expanded. Raises ConfigError if it cannot be looked up: too long, not permitted."""
    try:
        path = Path(text).expanduser()
        (path / _LONGEST_NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError, RuntimeError) as error:  # a NUL: ValueError; an unknown ~user: RuntimeError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"the path {shortened(str(text))!r} cannot be used: {reason}") from error
    return path


def results_folder(chosen: str | Path | None) -> Path:
    """The folder of all runs: `chosen`, else $OUTPLAY_RESULTS, else ~/outplay_results."""
    return as_path(chosen or os.environ.get("OUTPLAY_RESULTS") or "~/outplay_results")


def new_run_folder(results: Path, experiment: str, algorithm: str, env: str) -> Path:
    """Create a new folder RESULTS/<experiment>/<ALGO>_<env>_<id>_<date>."""
    plain = re.sub(r"[^\w.-]+", "-", env.replace(":", ".")).strip("-")
    date = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = results / experiment / f"{algorithm}_{plain}_{secrets.token_hex(3)}_{date}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"the run folder {folder} cannot be created: {error.strerror or error}") from error
    return folder


def find_run(path: str | Path, results: Path) -> Path:
    """Find a run folder by its path, the name of its experiment (the newest run), or a prefix of its own name."""
    given = as_path(path)
    if (given / "config.yaml").exists():
        return given
    for parent in given.absolute().parents[:3]:
        if given.exists() and (parent / "config.yaml").exists():
            raise CheckpointError(
                f"{given} is inside a run folder; give the run folder {parent}, which resumes from its newest "
                "checkpoint (to start a new run from this checkpoint, use --init-from)"
            )
    for folder in (given, results / given):
        if runs := list(folder.glob("*/config.yaml")):
            return max(runs, key=lambda run: run.stat().st_mtime_ns).parent
    matches = sorted(results.glob(f"*/{glob.escape(given.name)}*/config.yaml")) if given.name == str(path) else []
    if len(matches) == 1:
        return matches[0].parent
    if matches:
        raise CheckpointError(f"{len(matches)} runs in {results} start with {path!r}; give a longer prefix")
    raise CheckpointError(f"there is no run at {given}; `outplay runs` lists all runs")
