"""Imports of modules that users name in import paths (`module:Class`): environments, callbacks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from outplay.errors import OutplayError


def import_for(what: str, module: str, folders: Iterable[Path], error_type: type[OutplayError]) -> ModuleType:
    """Import a module, also from `folders` and the working directory. `what` needs it, for error messages."""
    for folder in (*folders, Path.cwd()):
        if (text := str(folder.resolve())) not in sys.path:
            sys.path.append(text)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise error_type(f"{what} needs the module {error.name!r}, which is not installed") from error
        raise error_type(
            f"no module {module!r} for {what}; searched: the folder of the experiment file, the working directory and "
            "the installed packages (with --trust, or trust=True, also the folders that the run or checkpoint names)"
        ) from error
    except Exception as error:
        raise error_type(f"importing {module!r} for {what} raised {type(error).__name__}: {error}") from error
