"""The results folder: where runs lie, and how their folders are named. Does not import torch."""

from __future__ import annotations

import os
import re
import secrets
from datetime import datetime
from pathlib import Path

from outplay.errors import ConfigError, RunError, shortened

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


def folder_name(env: str) -> str:
    """The name of an environment, usable as the name of a folder.

    >>> folder_name("ALE/Pong-v5"), folder_name("custom_env:CustomEnv")
    ('ALE-Pong-v5', 'custom_env.CustomEnv')
    """
    return re.sub(r"[^\w.-]+", "-", env.replace(":", ".")).strip("-.") or "env"


def new_run_folder(results: Path, experiment: str, algorithm: str, env: str) -> Path:
    """Create a new folder RESULTS/<experiment>/<ALGO>_<env>_<id>_<date>."""
    date = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = results / experiment / f"{algorithm}_{folder_name(env)}_{secrets.token_hex(3)}_{date}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"the run folder {folder} cannot be created: {error.strerror or error}") from error
    return folder


def runs_by_name(results: Path) -> dict[str, Path]:
    """The folders of all runs, by the names that `outplay runs` prints: experiment/RUN."""
    return {str(file.parent.relative_to(results)): file.parent for file in sorted(results.glob("*/*/config.yaml"))}
