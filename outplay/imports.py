"""Imports of modules that users name in import paths (`module:Class`): environments, callbacks, curricula."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from outplay.errors import ConfigError, OutplayError, nearest, shortened


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


def import_object(setting: str, path: str, folders: Iterable[Path], kind: Literal["class", "function"]) -> Any:
    """The class or function that an import path (`module:name` or `module.name`) names.

    `setting` begins error messages.
    """
    module_name, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not name:
        form = "module:Class" if kind == "class" else "module:function"
        raise ConfigError(f"{setting}: expected an import path ({form}), not {shortened(path)!r}")
    found: Any = import_for(f"{setting} {path!r}", module_name, folders, ConfigError)
    for part in name.split("."):
        if not hasattr(found, part):
            is_wanted = inspect.isclass if kind == "class" else inspect.isfunction
            known = [key for key, value in vars(found).items() if is_wanted(value)] or [f"a {kind}"]
            raise ConfigError(f"{setting}: module {module_name!r} has no {part!r}{nearest(part, known)}")
        found = getattr(found, part)
    return found
