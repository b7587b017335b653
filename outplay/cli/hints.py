"""What to do with a run next: commands that can be pasted into a shell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from outplay.cli.engine import engine_options
from outplay.engine.api import current_settings

if TYPE_CHECKING:
    from outplay.runs.run import Run


def hints(run: Run) -> list[str]:
    """Commands for a run that has ended: watch it, and resume it or train it further."""
    from outplay.runs.playing import can_record

    if not run.folder.checkpoints():
        return []
    found = {}
    if run.video is None and can_record(run.algorithm):
        found["to watch it"] = f"outplay evaluate {_arguments(run)} --video game.mp4"
    if run.is_stopping:
        found["to resume"] = resume_command(run)
    else:
        stop = f"timesteps_total={2 * run.algorithm.timesteps}"
        found["to train further"] = f"{resume_command(run)} --stop {stop}"
    return [f"{purpose}: {command}" for purpose, command in found.items()]


def resume_command(run: Run) -> str:
    """With the engine's options, unless it is the default engine."""
    started = current_settings()
    is_default = started is None or started.engine == "process"
    options = "" if started is None or is_default else engine_options(started.engine, started.address)
    return f"outplay train --resume {_arguments(run)}{options}"


def _arguments(run: Run) -> str:
    """The command line arguments that name this run. `--trust` if something has to be imported from a module."""
    from outplay.runs.callbacks import is_import_path
    from outplay.runs.loading import imported_env, names_imports
    from outplay.runs.results import results_folder

    is_default = run.folder.path.parent.parent == results_folder(None)
    folder = run.folder.path
    is_trial = (folder.parent / "study.json").exists()  # each study has a trial_00000
    short = f"{folder.parent.name}/{folder.name}" if is_trial else folder.name
    name = short if is_default else str(run.folder)
    imports = bool(imported_env(run.algorithm)) or any(map(is_import_path, run.experiment.callbacks))
    imports = imports or names_imports(run.algorithm)
    return shlex.quote(name) + (" --trust" if imports else "")
