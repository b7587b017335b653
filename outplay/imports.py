"""Importing what a user names by an import path (`module:Class`): environments, callbacks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from outplay.errors import OutplayError


def import_for(what: str, module: str, folders: Iterable[Path], error_type: type[OutplayError]) -> ModuleType:
    """Import the module that `what` needs; it is looked up in `folders` and in the working directory, too."""
    for folder in (*folders, Path.cwd()):
        if (text := str(folder.resolve())) not in sys.path:
            sys.path.append(text)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise error_type(f"{what} needs the module {error.name!r}, which is not installed") from error
        raise error_type(
            f"no module {module!r} for {what}; it is looked up beside the experiment file, in the working directory "
            "and among the installed packages (with --trust, or trust=True, also in the folders that the run or "
            "checkpoint names)"
        ) from error
    except Exception as error:
        raise error_type(f"importing {module!r} for {what} raised {type(error).__name__}: {error}") from error
