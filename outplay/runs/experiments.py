"""Experiment files and recipes: YAML in RLlib's format, safely loaded.

name:
  env: CartPole-v1
  run: PPO
  checkpoint_freq: 10
  stop: {timesteps_total: 100000}
  config: {lr: 0.001}
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from outplay.conditions import METRICS, metric_name
from outplay.config import AlgorithmConfig
from outplay.errors import ConfigError, nearest, shortened
from outplay.experiment import Experiment
from outplay.parsing import MAX_DEPTH, parse_yaml, read_yaml
from outplay.runs.results import folder_name
from outplay.settings import Settings, validated

__all__ = [
    "METRICS",
    "Experiment",
    "checked_metric",
    "experiment",
    "load_file",
    "load_recipe",
    "nested",
    "parse_setting",
    "recipe_names",
]

_POSITIVE = frozenset(name for name in METRICS if not name.startswith("episode_return_"))


def experiment(data: dict[str, Any], where: str) -> Experiment:
    """A validated experiment from a dict. `where` is the source of the data, for error messages."""
    checked = validated(Experiment, data, where, lambda: _algorithm_settings(data))
    config = dict(checked.config)
    env, other = checked.env, config.pop("env", None)
    if env is not None and other is not None and env != other:
        raise ConfigError(f"{where}: two environments are named: env is {env!r}, and env in config is {other!r}")
    env = other if env is None else env
    if env is None:
        raise ConfigError(f"{where}: env is missing; add an environment, as env: CartPole-v1")
    name = checked.name or folder_name(_env_name(env))
    if name.startswith((".", "~")) or set(name) & set("/\\") or not name.isprintable():
        raise ConfigError(f"{where}: the name {name!r} cannot be used for a folder; use letters, digits, - and _")
    stop = {checked_metric(metric, where): value for metric, value in checked.stop.items()}
    for metric, value in stop.items():
        if metric in _POSITIVE and value <= 0:
            raise ConfigError(f"{where}: stop.{metric} must be more than 0, not {value:g}")
    return checked.model_copy(update={"name": name, "env": env, "config": config, "stop": stop})


def _env_name(env: Any) -> str:
    if isinstance(env, str):
        return env
    from outplay.envs import env_name  # it needs gymnasium

    return env_name(env) if callable(env) else "env"  # what is no environment is refused later, by name


def _algorithm_settings(data: dict[str, Any]) -> type[Settings]:
    """The settings of the experiment's algorithm, for a message about one of them that is outside `config`."""
    from outplay.algorithms import find_algorithm  # it needs torch

    try:
        return find_algorithm(data.get("run", Experiment.model_fields["run"].default)).Config
    except ConfigError:
        return AlgorithmConfig


def checked_metric(name: str, where: str) -> str:
    """The name of a metric for a stop condition; RLlib's names are translated. Raises ConfigError if unknown."""
    try:
        return metric_name(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: stop: {error}") from None


def load_file(path: Path, trust: bool = False) -> list[Experiment]:
    """The experiments of a file, in order.

    `import_from` is ignored without `trust`: a file must not decide which code a module name imports.
    """
    data = read_yaml(path)
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path}: expected experiments, as name: {{env: …, run: …, stop: …, config: …}}")
    found = []
    for name, body in data.items():
        if not isinstance(body, dict):
            raise ConfigError(
                f"{path}: the experiment {name!r} must be settings (env: …, run: …), not {shortened(repr(body))}"
            )
        one = experiment({"name": str(name), **body}, f"{path}, {name}")
        found.append(one if trust else one.model_copy(update={"import_from": []}))
    return found


def recipe_names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in _recipes().iterdir() if file.name.endswith(".yaml"))


def load_recipe(name: str) -> Experiment:
    """A built-in experiment."""
    if name not in recipe_names():
        raise ConfigError(f"no recipe {name!r}{nearest(name, recipe_names())}")
    with resources.as_file(_recipes() / f"{name}.yaml") as path:
        return load_file(path)[0]


def _recipes() -> Any:
    return resources.files("outplay") / "recipes"


def parse_setting(text: str, option: str) -> tuple[str, Any]:
    """Parse KEY=VALUE of a command line option. The value is YAML, so that lists and numbers work."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"{option} takes KEY=VALUE, not {shortened(text)!r}")
    if key.count(".") >= MAX_DEPTH:
        raise ConfigError(f"{option} {shortened(key)}: no setting is nested that deep")
    return key.strip(), parse_yaml(value, f"{option} {shortened(text if text.isprintable() else repr(text))}")


def nested(settings: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`settings` with `value` at `key`; dots separate the keys of nested settings.

    >>> nested({"model": {"fcnet_hiddens": [64]}}, "model.vf_share_layers", True)
    {'model': {'fcnet_hiddens': [64], 'vf_share_layers': True}}
    """
    first, dot, rest = key.partition(".")
    if not dot:
        return {**settings, first: value}
    inner = settings.get(first, {})
    return {**settings, first: nested(inner if isinstance(inner, dict) else {}, rest, value)}
