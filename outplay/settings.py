"""The base of all settings: validation of a dict, and messages that name the wrong key and the values it accepts.

>>> class MyConfig(Settings):
...     size: Positive = Field(64, description="Number of units.")
>>> validated(MyConfig, {"size": 0}, "custom.yml")
ConfigError: custom.yml: size must be an integer of at least 1, not 0
"""

from __future__ import annotations

import shlex
from collections import abc
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from outplay.errors import ConfigError, nearest, shortened, type_name
from outplay.parsing import MAX_DEPTH, check_plain
from outplay.registry import algorithms
from outplay.schema import MAX_LANES
from outplay.synonyms import SETTINGS, Synonym, counterpart


def _ascending(points: Any) -> Any:
    steps = (
        [point[0] for point in points if isinstance(point, (list, tuple)) and point] if isinstance(points, list) else []
    )
    if any(not a < b for a, b in pairwise(steps) if isinstance(a, (int, float)) and isinstance(b, (int, float))):
        raise ValueError(f"a schedule's steps must ascend, and these do not: {steps}")
    return points


LARGEST = 10**12  # of sizes and counters: arrays of such a size raise MemoryError, larger ones overflow
Schedule = Annotated[list[tuple[FiniteFloat, FiniteFloat]], BeforeValidator(_ascending)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Lanes = Annotated[int, Field(ge=1, le=MAX_LANES)]
Few = Annotated[int, Field(ge=1, le=1_000)]
Processes = Annotated[int, Field(ge=0, le=10_000)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

_MAX_DEPTH = MAX_DEPTH - 8  # of one value: a file that it is written to adds some levels


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """`value` as a checkpoint would restore it: numbers, strings, lists, dicts with string keys.

    So the first run and a resumed one use the same value.

    >>> plain({"sizes": (1, 2)}, "env_config")
    {'sizes': [1, 2]}
    """
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{shortened(where)}: nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where}: keys must be strings, and {key!r} is {type_name(key)}")
        return {plain(key, where): plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        try:
            check_plain(value)
        except ValueError as error:  # it could be written, but not be read again
            raise ConfigError(f"{shortened(where)}: {error}") from None
        return value
    raise ConfigError(
        f"{where} is {type_name(value)}, which cannot be saved; only numbers, strings, lists and dicts can (pass "
        "other objects to an environment in its factory: register_env(name, lambda env_config: Env(thing)))"
    )


class Settings(BaseModel):
    """Base of all settings: immutable, unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())

    place: ClassVar[str] = ""  # where these settings are written: see _PLACES

    if not TYPE_CHECKING:  # type checkers know that the fields are frozen

        def __setattr__(self, name: str, value: Any) -> None:
            raise ConfigError(
                f"{name} cannot be changed: settings are fixed when an object is made; give it to the new one, as in "
                f"PPO(env, {name}=…), or continue a trainer with it: PPO.from_checkpoint(trainer.save(), "
                f"config={{'{name}': …}})"
            )


def with_default(base: type[BaseModel], name: str, default: Any) -> Any:
    """A field of `base` with another default, for a subclass: its description and alias are declared once.

    >>> class PPOConfig(ActorCriticConfig):
    ...     lambda_: Fraction = with_default(ActorCriticConfig, "lambda_", 0.97)
    """
    field = base.model_fields[name]
    return Field(default, description=field.description, alias=field.alias)


def refuse_unused(config: BaseModel, names: Sequence[str], cause: str) -> None:
    """Raise ValueError if one of these settings is not the default, though it has no effect because of `cause`.

    >>> refuse_unused(config, ["tau"], "use_target_network: false")
    ValueError: tau has no effect with use_target_network: false; leave it out
    """
    for name in names:
        if getattr(config, name) != type(config).model_fields[name].default:
            raise ValueError(f"{name} has no effect with {cause}; leave it out")


def one_name_each(cls: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Some settings have two names (`lambda` and `lambda_`). If both are given, the later one counts."""
    order = list(data)
    pairs = [(name, f.alias) for name, f in cls.model_fields.items() if f.alias]
    earlier = {min(pair, key=order.index) for pair in pairs if pair[0] in data and pair[1] in data}
    return {key: value for key, value in data.items() if key not in earlier}


def is_true(value: Any, otherwise: bool = False) -> bool:
    """A boolean setting before validation; `otherwise` if it is no boolean, which validation then refuses by name."""
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return otherwise


def at(schedule: Schedule | None, constant: float, step: int) -> float:
    """The value of a schedule at a step: linear between its points, constant before the first and after the last.

    >>> at([(0, 1.0), (100, 0.0)], 0.5, 25)
    0.75
    """
    if not schedule:
        return constant
    points = schedule
    if step <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if step <= x1:
            return y0 + (y1 - y0) * (step - x0) / (x1 - x0)
    return points[-1][1]


S = TypeVar("S", bound=Settings)


Elsewhere = Callable[[], type[Settings]]


def validated(cls: type[S], data: dict[str, Any], where: str, elsewhere: Elsewhere | None = None) -> S:
    """Settings from a dict. Raises ConfigError: one sentence that begins with `where`.

    `elsewhere` returns the settings that are written in another place, to tell where an unknown name belongs.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: settings (key: value) are needed, not {data!r}")
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_sentence(cls, data, error, where, elsewhere)) from None


def _sentence(
    cls: type[Settings], data: dict[str, Any], error: ValidationError, where: str, elsewhere: Elsewhere | None
) -> str:
    # With a union, each of its members complains; the complaint about the value that is there comes first.
    first = error.errors(include_url=False)[0]
    if first["type"] == "invalid_key" or first["loc"][-1:] == ("[key]",):
        hint = " (YAML reads yes, no, on and off as booleans; quote them)" * isinstance(first["input"], bool)
        return f"{where}: keys must be strings, not {_value(first['input'])}{hint}"
    owner: type[BaseModel] | None = cls
    names: list[str] = []
    fields: dict[str, FieldInfo] = {}
    value: Any = data
    for part in first["loc"]:  # as far as settings go: what is inside a list is told as the list
        if owner is None:
            break
        fields = _fields(owner)
        names.append(str(part))
        value = value.get(part) if isinstance(value, dict) else value
        owner = _settings_in(fields.get(str(part)))
    key = ".".join(names)
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        return f"{where}: {unknown_setting(cls, key, value, elsewhere() if elsewhere else None)}"
    if isinstance(value, dict) and "grid_search" in value:  # in files for RLlib
        return f"{where}: {key}: grid_search is for a search over settings: outplay tune -f FILE, or outplay.tune.run"
    wanted = type_in_words(fields[names[-1]])
    if first["type"] == "less_than_equal" and first["ctx"]["le"] >= _TECHNICAL:
        wanted = f"at most {first['ctx']['le']:,}"
    if isinstance(value, dict) and len(first["loc"]) > len(names):  # one entry of a dict is wrong
        key, value, wanted = f"{key}.{first['loc'][len(names)]}", first["input"], _expected(first)
    return f"{where}: {key} must be {wanted}, not {_value(value)}"


# Where settings are written, by Settings.place: in a file, the option of the command line.
_PLACES = {"experiment": ("beside config in a file", "--set"), "algorithm": ("under config in a file", "--config")}
_NEAR = 0.8  # similarity from which a misspelled name of another library counts


def unknown_setting(cls: type[Settings], key: str, value: Any, other: type[Settings] | None = None) -> str:
    """The message about a name that `cls` does not have. `other` are the settings that are written elsewhere."""
    start, (group, _, last) = f"unknown setting {key!r}", key.rpartition(".")
    if found := _counterpart(cls, last, other):
        return start + _renamed(cls, found, other)
    if other is not None and has_setting(other, key):
        return _misplaced(cls, key, value, other)
    if owners := _owners(cls, key):
        return f"{start}: it is a setting of {' and '.join(owners)}, not of {_title(cls)}"
    inner = [f"{name}.{last}" for name, f in cls.model_fields.items() if last in _fields(_settings_in(f))]
    if len(inner) == 1:
        return f"{start}. Did you mean {inner[0]!r}?"
    valid = _fields(_group(cls, group) if group else cls)
    near = get_close_matches(last, [*valid, *SETTINGS], n=1, cutoff=_NEAR)
    if near and near[0] not in valid and (found := _counterpart(cls, near[0], other)):
        return start + _renamed(cls, found, other)
    return start + nearest(last, valid, f"`outplay settings{_argument(cls)}`")


def _owners(cls: type[Settings], key: str) -> list[str]:
    """The algorithms that have a setting, if `cls` are the settings of another one."""
    if cls.place != "algorithm":
        return []
    return [name for name in algorithms.shipped if has_setting(algorithms.load(name).Config, key)]


def _counterpart(cls: type[Settings], name: str, other: type[Settings] | None) -> Synonym | None:
    """Our name for a setting of another library: preferably one that `cls` has."""
    found = counterpart(name, lambda ours: has_setting(cls, ours))
    if found is None or has_setting(cls, found.ours) or other is None:
        return found
    return counterpart(name, lambda ours: has_setting(other, ours))


def _renamed(cls: type[Settings], found: Synonym, other: type[Settings] | None) -> str:
    if not found.ours:
        return f"; Outplay has no such setting: {found.remark}"
    meant = f"; in Outplay it is {found.ours!r}" + (f" ({found.remark})" if found.remark else "")
    if has_setting(cls, found.ours):
        return meant
    if other is None or not has_setting(other, found.ours):
        return f"{meant}, which {_title(cls)} does not have"
    place, option = _PLACES[other.place]
    return f"{meant}, a setting of the {other.place}: {place}, or {option} {found.ours}=… on the command line"


def _misplaced(cls: type[Settings], key: str, value: Any, other: type[Settings]) -> str:
    place, option = _PLACES[other.place]
    line, name = f"{key}: {_as_yaml(value)}", key
    while isinstance(value, dict) and len(value) == 1:  # on the command line, dots separate nested names
        ((inner, value),) = value.items()
        name = f"{name}.{inner}"
    argument = shlex.quote(f"{name}={_as_yaml(value)}")
    python = ", or pass it as run={…} of the trainer in Python" if other.place == "experiment" else ""
    return (
        f"{key} is a setting of the {other.place}, not of the {cls.place}: write {line} {place}"
        f"{',' if python else ', or'} {option} {argument} on the command line{python}"
    )


def _as_yaml(value: Any) -> str:
    try:
        return shortened(yaml.safe_dump([value], default_flow_style=True, width=10**6).strip()[1:-1])
    except (yaml.YAMLError, ValueError):  # an object of Python; an integer of thousands of digits
        return "…"


def has_setting(cls: type[BaseModel], name: str) -> bool:
    """Whether a class has a setting; dots separate nested names. A dict may have any."""
    first, _, rest = name.partition(".")
    field = _fields(cls).get(first)
    if field is None or not rest:
        return field is not None
    inner = _settings_in(field)
    return get_origin(field.annotation) is dict if inner is None else has_setting(inner, rest)


def _group(cls: type[Settings], key: str) -> type[Settings] | None:
    """The class of nested settings."""
    owner: type[Settings] | None = cls
    for name in key.split("."):
        owner = _settings_in(_fields(owner).get(name))
    return owner


def _title(cls: type[BaseModel]) -> str:
    return cls.__name__.removesuffix("Config")


def _argument(cls: type[BaseModel]) -> str:
    return f" {_title(cls)}" if _title(cls) in algorithms else ""


def _expected(error: Any) -> str:
    return "a number" if "float" in error["type"] else str(error["msg"]).removeprefix("Input should be ")


def _fields(cls: type[BaseModel] | None) -> dict[str, FieldInfo]:
    if cls is None:
        return {}
    return {**cls.model_fields, **{f.alias: f for f in cls.model_fields.values() if f.alias}}


def _settings_in(field: FieldInfo | None) -> type[Settings] | None:
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _value(value: Any) -> str:
    try:
        return shortened(repr(value))
    except ValueError:  # Python does not convert integers of thousands of digits
        start = "" if isinstance(value, int) else f"{type_name(value)} with "
        return f"{start}an integer of thousands of digits"


_MANY = {int: "integers", float: "numbers", str: "strings"}
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def type_in_words(field: FieldInfo) -> str:
    """The values that a field accepts, for messages and for the documentation."""
    return _words(field.annotation, _bounds(field.metadata))


def default_in_words(field: FieldInfo) -> str:
    """The default of a field, for the documentation; empty if it is null, an empty string or a group of settings."""
    value: Any = field.default
    if value is None or value == "" or isinstance(value, Settings):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        value = list(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_TECHNICAL = 1_000  # an upper limit from here on keeps nonsense out: only a message about it mentions it


def _bounds(constraints: Any) -> str:
    words = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
    found = [
        f"{text} {limit if isinstance(limit, int) else format(limit, 'g')}"
        for constraint in constraints
        for name, text in words
        if (limit := getattr(constraint, name, None)) is not None and not (name == "le" and limit >= _TECHNICAL)
    ]
    return f" of {' and '.join(found)}" if found else ""


def _words(kind: Any, bounds: str = "", many: bool = False) -> str:
    if kind in _WORDS:
        return (_MANY if many and kind in _MANY else _WORDS)[kind] + (bounds if kind in (int, float) else "")
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *metadata = get_args(kind)
        return _words(inner, _bounds([c for m in metadata for c in getattr(m, "metadata", [m])]), many)
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if origin is tuple:
        return f"[{', '.join(_words(part) for part in get_args(kind))}]"
    if origin is list:
        return f"a list of {_words(get_args(kind)[0], many=True)}"
    if origin is dict:
        return "key: value pairs"
    if origin is abc.Callable:
        return "a function"
    if isinstance(kind, type) and issubclass(kind, Settings):
        return "settings (key: value)"
    parts = get_args(kind)
    if type in parts:
        return "an import path, a class or null"
    if parts:
        return " or ".join(_words(part, bounds, many) for part in parts)
    return "anything" if kind is Any else str(kind)
