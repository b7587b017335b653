"""Where runs lie, and how they are found by what a user writes. Light to import."""

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
    """A path from what a user wrote. Raises ConfigError if the system cannot look it up: too long, not permitted."""
    try:
        path = Path(text).expanduser()
        (path / _LONGEST_NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError, RuntimeError) as error:  # a NUL is a ValueError, ~nobody a RuntimeError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"the path {shortened(str(text))!r} cannot be used: {reason}") from error
    return path


def results_folder(chosen: str | Path | None) -> Path:
    """Where runs go: what was chosen, else $OUTPLAY_RESULTS, else ~/outplay_results."""
    return as_path(chosen or os.environ.get("OUTPLAY_RESULTS") or "~/outplay_results")


def new_run_folder(results: Path, experiment: str, algorithm: str, env: str) -> Path:
    """A new folder RESULTS/<experiment>/<ALGO>_<env>_<id>_<date>."""
    plain = re.sub(r"[^\w.-]+", "-", env.replace(":", ".")).strip("-")
    date = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = results / experiment / f"{algorithm}_{plain}_{secrets.token_hex(3)}_{date}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"the run folder {folder} cannot be made: {error.strerror or error}") from error
    return folder


def find_run(path: str | Path, results: Path) -> Path:
    """A run folder from what a user wrote.

    A path, the name of an experiment (its newest run), or the beginning of a run's own name.
    """
    given = as_path(path)
    if (given / "config.yaml").exists():
        return given
    for parent in given.absolute().parents[:3]:
        if given.exists() and (parent / "config.yaml").exists():
            raise CheckpointError(
                f"{given} is inside of a run; name the run, {parent} (it goes on from its newest checkpoint; to start "
                "a new one from this checkpoint, use --init-from)"
            )
    for folder in (given, results / given):
        if runs := list(folder.glob("*/config.yaml")):
            return max(runs, key=lambda run: run.stat().st_mtime_ns).parent
    matches = sorted(results.glob(f"*/{glob.escape(given.name)}*/config.yaml")) if given.name == str(path) else []
    if len(matches) == 1:
        return matches[0].parent
    if matches:
        raise CheckpointError(f"{len(matches)} runs in {results} begin with {path!r}; give more of the name")
    raise CheckpointError(f"there is no run at {given}; `outplay runs` lists them")
