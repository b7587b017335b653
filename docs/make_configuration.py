"""Writes docs/configuration.md from the settings' own classes. `make docs` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from outplay.algorithms import find_algorithm
from outplay.config import AlgorithmConfig, ExplorationConfig, ModelConfig, OptimizerConfig
from outplay.registry import algorithms
from outplay.runs.experiments import METRICS, Experiment
from outplay.settings import Settings, type_in_words

HEAD = """# Configuration

<!-- Written by docs/make_configuration.py from the classes themselves: run `make docs` after a change of them. -->

A setting is given in `config` of an experiment file, in `config={…}` of the Python API, or as `--config KEY=VALUE` on
the command line, where dots lead into nested settings (`--config model.fcnet_hiddens=[32,32]`). What is unknown is
refused, with the nearest valid name. `outplay train … --dry-run` prints all settings of a run.
"""


def main() -> None:
    (Path(__file__).parent / "configuration.md").write_text(text())


def text() -> str:
    parts = [HEAD]
    parts.append("## Experiments\n\nWhat stands in an experiment file beside `config`.\n\n" + table(Experiment))
    metrics = ", ".join(f"`{name}`" for name in METRICS)
    parts.append(
        f"A run stops when any condition in `stop` is reached. The metrics are {metrics}, and `learner/…` and "
        "`evaluation/…` as they stand in `metrics.jsonl`.\n"
    )
    parts.append("## All algorithms\n\n" + table(AlgorithmConfig))
    for name, cls in (
        ("model", ModelConfig),
        ("optimizer", OptimizerConfig),
        ("exploration_config", ExplorationConfig),
    ):
        parts.append(f"### `{name}`\n\n{table(cls)}")
    for name in algorithms.shipped:
        config = find_algorithm(name).Config
        own = table(config, AlgorithmConfig)
        parts.append(f"## {name}\n\nIts own settings, and where its defaults differ.\n\n{own}")
        for key, cls in nested(config).items():
            parts.append(f"### `{key}` of {name}\n\n{cls.__doc__}\n\n{table(cls, shared(key))}")
    return "\n".join(parts)


def nested(config: type[AlgorithmConfig]) -> dict[str, type[Settings]]:
    """The groups of settings that an algorithm has of its own."""
    kinds = {name: type(field.default) for name, field in config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, Settings) and kind is not shared(name)}


def shared(name: str) -> type[Settings] | None:
    """The group that all other algorithms have under this name."""
    field = AlgorithmConfig.model_fields.get(name)
    return type(field.default) if field is not None else None


def table(cls: type[Settings], base: type[Settings] | None = None) -> str:
    """The fields of a class; with a base, those that it adds or changes."""
    known = {} if base is None else base.model_fields
    rows = ["| setting | default | takes | |", "| --- | --- | --- | --- |"]
    for name, field in cls.model_fields.items():
        if name in known and default(known[name]) == default(field):
            continue
        rows.append(f"| `{field.alias or name}` | {default(field)} | {type_in_words(field)} | {field.description} |")
    return "\n".join(rows) + "\n"


def default(field: FieldInfo) -> str:
    value: Any = field.default
    if isinstance(value, Settings):
        return "below"
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


if __name__ == "__main__":
    main()
