"""Settings that name classes and functions by import path: `env_task_fn`, and classes of the model.

To import a module is to run it. So a path in a file, as a checkpoint, is used only if it is repeated or trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outplay.config import AlgorithmConfig
from outplay.envs import import_folders
from outplay.errors import CheckpointError, ConfigError, type_name
from outplay.groups import ModelConfig
from outplay.imports import import_object

TASK_FUNCTION = "env_task_fn"
CLASSES = ("model.custom_model", "model.custom_action_dist")
SETTINGS = (TASK_FUNCTION, *CLASSES)


def _get(config: Mapping[str, Any], setting: str) -> Any:
    part, _, rest = setting.partition(".")
    value = config.get(part)
    return _get(value, rest) if rest and isinstance(value, Mapping) else None if rest else value


def without_untrusted(config: Mapping[str, Any], trust: bool) -> dict[str, Any]:
    """The settings of a file, without import paths that are not trusted."""
    kept = dict(config)
    if trust:
        return kept
    for setting in SETTINGS:
        if _get(kept, setting) is None:
            continue
        part, _, rest = setting.partition(".")
        if rest:
            kept[part] = {name: value for name, value in kept[part].items() if name != rest}
        else:
            del kept[part]
    return kept


def check_trust(recorded: Mapping[str, Any], settings: Mapping[str, Any], where: str, remedy: str) -> None:
    """Raise CheckpointError if `settings` lack an import path that a file records: it was neither repeated nor trusted.

    `remedy` has two fields, for the setting and its value.
    """
    for setting in SETTINGS:
        path = _get(recorded, setting)
        if path is not None and _get(settings, setting) is None:
            if setting == TASK_FUNCTION and TASK_FUNCTION in settings:
                continue  # null: without it
            how = remedy.format(setting, path)
            raise CheckpointError(f"{where} names {setting} {path!r}, which would be imported; if you trust it, {how}")


def folders_of(config: AlgorithmConfig) -> list[Path]:
    """The folders of the modules that these settings name."""
    paths = [config.env_task_fn, *classes_of(config.model).values()]
    return [folder for path in paths if isinstance(path, str) for folder in import_folders(path)]


def classes_of(model: ModelConfig) -> dict[str, Any]:
    """The settings of a model that are classes or import paths of classes."""
    names = [setting.partition(".")[2] for setting in CLASSES]
    return {name: value for name in names if (value := getattr(model, name)) is not None}


def with_classes(model: ModelConfig, folders: Iterable[Path]) -> ModelConfig:
    """The settings with classes in the place of import paths."""
    found = {}
    for name, value in classes_of(model).items():
        kind = import_object(f"model.{name}", value, folders, "class") if isinstance(value, str) else value
        if not isinstance(kind, type):
            raise ConfigError(f"model.{name}: {value!r} is {type_name(kind)}, not a class")
        found[name] = kind
    return model.model_copy(update=found)
