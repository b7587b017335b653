"""Documentation of an algorithm's settings, for `help(PPO)`."""

from __future__ import annotations

import inspect

from outplay.config import AlgorithmConfig
from outplay.settings import Settings, default_in_words, type_in_words


def with_settings(doc: str, config: type[AlgorithmConfig]) -> str:
    """A class docstring, followed by all settings of the class."""
    head = "Settings, as keyword arguments or in `config`:"
    return "\n".join([inspect.cleandoc(doc), "", head, "", *_lines(config, "")])


def _lines(settings: type[Settings], indent: str) -> list[str]:
    """For each setting: its name, the values that it takes, its default and its description."""
    lines = []
    for name, field in settings.model_fields.items():
        default = default_in_words(field)
        takes = type_in_words(field) + (f"; default {default}" if default else "")
        lines += [f"{indent}{name}: {takes}", f"{indent}    {field.description}"]
        if isinstance(field.default, Settings):
            lines += _lines(type(field.default), indent + "    ")
    return lines
