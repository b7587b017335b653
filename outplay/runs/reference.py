"""All settings with their defaults and descriptions, in groups: for `outplay settings` and docs/configuration.md."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic.fields import FieldInfo

from outplay.algorithms import find_algorithm
from outplay.config import AlgorithmConfig
from outplay.experiment import Experiment
from outplay.groups import CurriculumConfig, EvaluationConfig, ExplorationConfig, ModelConfig, OptimizerConfig
from outplay.registry import algorithms
from outplay.settings import Settings, default_in_words, has_setting, type_in_words
from outplay.synonyms import Synonym, counterpart

SHARED_GROUPS: dict[str, type[Settings]] = {
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "exploration_config": ExplorationConfig,
    "curriculum": CurriculumConfig,
    "evaluation_config": EvaluationConfig,
}

_BELOW = "below"  # the default of nested settings, which are a group of their own


@dataclass(frozen=True)
class Row:
    """One setting, in words."""

    name: str
    default: str  # empty: null, or an empty string
    takes: str
    description: str


@dataclass(frozen=True)
class Group:
    """Settings under one heading. `prefix` is the name of the nested settings, `algorithm` whose they are."""

    rows: list[Row]
    prefix: str = ""
    algorithm: str = ""
    about: str = ""


def experiment_group() -> Group:
    return Group(rows(Experiment))


def shared_groups() -> Iterator[Group]:
    """The settings of all algorithms."""
    yield Group(rows(AlgorithmConfig))
    for name, cls in SHARED_GROUPS.items():
        yield Group(rows(cls), name)


def algorithm_groups(name: str) -> Iterator[Group]:
    """What an algorithm adds to the shared settings, and defaults that differ."""
    found = find_algorithm(name)
    name, config = found.__name__, found.Config
    yield Group(rows(config, AlgorithmConfig), algorithm=name)
    for key, field in config.model_fields.items():
        kind, shared = _nested(field), _shared_group(key)
        if kind is not None and kind is not shared:
            yield Group(rows(kind, shared), key, name, kind.__doc__ or "")


def settings_of(name: str) -> list[Group]:
    """All settings of an algorithm: its own and changed defaults, then the shared ones that it does not change."""
    found, seen = [], set()
    for group in (*algorithm_groups(name), *shared_groups()):
        new = [row for row in group.rows if (group.prefix, row.name) not in seen and row.default != _BELOW]
        seen |= {(group.prefix, row.name) for row in new}
        found.append(replace(group, rows=new))
    return [group for group in found if group.rows]


def defaults_of(name: str) -> dict[str, Any]:
    """The default settings of an algorithm, as config.yaml has settings: plain data. Raises ConfigError."""
    defaults: dict[str, Any] = find_algorithm(name).Config().model_dump(mode="json", by_alias=True)
    return defaults


def option_for(name: str, options: Collection[str]) -> str:
    """What to write on the command line for a setting that has no option of its own; empty if it is unknown.

    `name` may be that of another library. `options` are those that the command has.
    """
    classes: list[type[Settings]] = [Experiment, *(find_algorithm(known).Config for known in algorithms.shipped)]

    def exists(setting: str) -> bool:
        return any(has_setting(cls, setting) for cls in classes)

    found = Synonym(name) if exists(name) else counterpart(name, exists)
    if found is None:
        return ""
    if not found.ours:
        return f"Outplay has no such setting: {found.remark}"
    own, remark = "--" + found.ours.replace("_", "-"), f" ({found.remark})" if found.remark else ""
    if found.ours == "stop.timesteps_total":
        return f"write --timesteps N{remark}"
    if own in options:
        return f"write {own} VALUE{remark}"
    option = "--set" if has_setting(Experiment, found.ours) else "--config"
    return f"write {option} {found.ours}=VALUE{remark}"


def _shared_group(name: str) -> type[Settings] | None:
    field = AlgorithmConfig.model_fields.get(name)
    return None if field is None else _nested(field)


def _nested(field: FieldInfo) -> type[Settings] | None:
    """The class of nested settings: of the default, or of what can be given instead of null."""
    kinds = [type(field.default), *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def rows(cls: type[Settings], base: type[Settings] | None = None) -> list[Row]:
    """The settings of a class; with a base, those that it adds or changes."""
    known = {} if base is None else base.model_fields
    return [
        Row(field.alias or name, _default(field), type_in_words(field), field.description or "")
        for name, field in cls.model_fields.items()
        if name not in known or _default(known[name]) != _default(field)
    ]


def _default(field: FieldInfo) -> str:
    return _BELOW if isinstance(field.default, Settings) else default_in_words(field)
