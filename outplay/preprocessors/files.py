"""Preprocessors as files: JSON, or safetensors with the JSON in its metadata. Nothing that is read is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from outplay.arguments import file_path
from outplay.errors import CheckpointError, ConfigError, nearest, type_name
from outplay.files import replace_file
from outplay.preprocessors.base import KINDS, Preprocessor
from outplay.preprocessors.statistics import Array, Statistics

_KEY = "preprocessor"  # in the metadata of safetensors
_LIMIT = 2**26  # elements of an array in a file, at most


def plain_statistics(statistics: Statistics) -> dict[str, Any]:
    """Arrays as {"dtype", "shape", "values"}."""
    return {
        name: {"dtype": array.dtype.str, "shape": list(array.shape), "values": array.ravel().tolist()}
        for name, array in statistics.items()
    }


def statistics_from(found: dict[str, Any]) -> Statistics:
    return {name: _array(each) for name, each in found.items()}


def _array(found: Any) -> Array:
    dtype = np.dtype(found["dtype"])
    if dtype.kind not in "biufUS":
        raise ValueError(f"arrays of type {dtype} are not supported")
    values = found["values"]
    if len(values) > _LIMIT:
        raise ValueError("an array is too large")
    return np.array(values, dtype).reshape(found["shape"])


def from_dict(found: Any, where: str = "the preprocessor") -> Preprocessor:
    """The preprocessor that `to_dict` has described. Raises CheckpointError if it is damaged."""
    if not isinstance(found, dict):
        raise CheckpointError(f"{where} is no saved preprocessor: it has {type_name(found)}, not an object")
    if missing := [key for key in ("type", "arguments", "fitted") if key not in found]:
        raise CheckpointError(f"{where} is no saved preprocessor: it has no key {missing[0]!r}")
    try:
        kind = KINDS.get(found["type"])
        if kind is None:
            raise CheckpointError(f"{where}: there is no preprocessor {found['type']!r}{nearest(found['type'], KINDS)}")
        arguments = dict(found["arguments"])
        parts = arguments.pop("preprocessors", None)
        if isinstance(parts, list):
            made: Preprocessor = kind(*(from_dict(part, where) for part in parts))  # type: ignore[arg-type]
        elif isinstance(parts, dict):
            made = kind({name: from_dict(part, where) for name, part in parts.items()})  # type: ignore[arg-type]
        else:
            made = kind(**arguments)
        made.load_fitted(found["fitted"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise CheckpointError(f"{where}: {error}") from error
        raise CheckpointError(f"{where} is damaged: {type(error).__name__}: {error}") from error
    return made


def save(preprocessor: Preprocessor, path: Path) -> None:
    """Write a file, atomically."""
    described = preprocessor.to_dict()
    if path.suffix != ".safetensors":
        replace_file(path, json.dumps(described, indent=1) + "\n")
        return
    from safetensors.numpy import save as to_bytes

    arrays: dict[str, Array] = {}
    text = json.dumps(_without_arrays(described, arrays))
    replace_file(path, to_bytes(arrays, {_KEY: text}))


def _without_arrays(value: Any, arrays: dict[str, Array]) -> Any:
    """The description with the names of tensors in the place of numbers. Strings are no tensors, and stay."""
    if isinstance(value, list):
        return [_without_arrays(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "shape", "values"} and np.dtype(value["dtype"]).kind in "biuf":
        name = f"array_{len(arrays)}"
        arrays[name] = _array(value)
        return {**value, "values": name}
    return {name: _without_arrays(item, arrays) for name, item in value.items()}


def load(path: str | Path) -> Preprocessor:
    """Read a preprocessor that `save` has written: a file, or a checkpoint folder with a preprocessor.json in it."""
    file = file_path(path, "path").expanduser()
    if file.is_dir():
        file = file / "preprocessor.json"
    try:
        found = _read_safetensors(file) if file.suffix == ".safetensors" else json.loads(file.read_text())
    except OSError as error:
        raise CheckpointError(f"the preprocessor {file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is no saved preprocessor: {error}") from error
    return from_dict(found, str(file))


def _read_safetensors(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        raise FileNotFoundError(2, "No such file or directory")
    try:
        with safe_open(file, "numpy") as opened:
            found = json.loads((opened.metadata() or {})[_KEY])
            return _with_arrays(found, {name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _with_arrays(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "shape", "values"} and isinstance(value["values"], str):
        return {**value, "values": arrays[value["values"]].ravel().tolist()}
    return {name: _with_arrays(item, arrays) for name, item in value.items()}
