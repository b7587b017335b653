"""config.yaml of many runs: read without imports and checks, for listings.

Parsing YAML takes 15 ms for a usual config.yaml, and a list of 200 runs must not take 3 s. Most lines of these files
are the same, so they are parsed setting by setting, and the value of a setting that was seen before is known.
"""

from __future__ import annotations

import copy
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from outplay.errors import ConfigError
from outplay.parsing import MAX_YAML_BYTES, parse_yaml

# Anchors and aliases connect settings; documents, tags and directives are not written by `write_config`.
_CONNECTED = re.compile(r"(?:^|[\s:,\[{-])[&*]\w|^(?:---|\.\.\.|%)|\t|\r", re.MULTILINE)


def recorded_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The name of the experiment and its settings. Raises ConfigError if the file is missing or damaged."""
    text = _read(path)
    found = _by_setting(text)
    if found is None:
        found = parse_yaml(text, str(path))
    if not isinstance(found, dict) or len(found) != 1:
        raise ConfigError(f"{path} is damaged: it does not have exactly one experiment")
    ((name, body),) = found.items()
    if not isinstance(body, dict) or not isinstance(body.get("config"), dict):
        raise ConfigError(f"{path} is damaged: it has no settings")
    return str(name), body


def _read(path: Path) -> str:
    try:
        # Non-blocking: an untrusted run folder may contain a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is not a file")
            data = file.read(MAX_YAML_BYTES + 1) or b""
        if len(data) > MAX_YAML_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_YAML_BYTES:,} bytes, the limit for YAML")
        return data.decode()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _by_setting(text: str) -> dict[str, Any] | None:
    """The content of a file as `write_config` writes it; None if the file differs from that."""
    if _CONNECTED.search(text):
        return None
    try:
        ((head, experiment),) = _blocks(text, 0)
        name = _value(head + " null\n")
        body: dict[str, Any] = {}
        for first, rest in _blocks(experiment, 2):
            if first == "  config:" and rest:
                config = [_value(f"{line}\n{more}") for line, more in _blocks(rest, 4)]
                _add(body, {"config": _joined(config)})
            else:
                _add(body, _value(f"{first}\n{rest}"))
        return {next(iter(name)): body}
    except (ValueError, TypeError, StopIteration):  # ConfigError is a ValueError
        return None


def _blocks(text: str, indent: int) -> Iterator[tuple[str, str]]:
    """The settings at this indentation: their first line, and all lines that belong to it."""
    first, rest = "", list[str]()
    for line in text.split("\n"):
        inner = line[indent : indent + 1]
        is_start = line[:indent].isspace() or not indent
        if line and is_start and inner not in ("", " ", "-", "#"):
            if first:
                yield first, "\n".join(rest)
            first, rest = line, []
        elif first:
            rest.append(line)
        elif line:
            raise ValueError("a line belongs to no setting")
    if first:
        yield first, "\n".join(rest)


def _value(block: str) -> dict[str, Any]:
    """One setting as {name: value}. The value is a copy: callers may change it."""
    found: dict[str, Any] = copy.deepcopy(_parsed(block))
    return found


@lru_cache(maxsize=4096)
def _parsed(block: str) -> dict[str, Any]:
    found = parse_yaml(block, "config.yaml")
    if not isinstance(found, dict) or len(found) != 1:
        raise ValueError("not one setting")
    return found


def _joined(settings: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in settings:
        _add(found, setting)
    return found


def _add(settings: dict[str, Any], setting: dict[str, Any]) -> None:
    if settings.keys() & setting.keys():
        raise ValueError("a setting is written twice")
    settings |= setting
