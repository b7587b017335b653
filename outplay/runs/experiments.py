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
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from outplay.errors import ConfigError, nearest, shortened
from outplay.parsing import MAX_DEPTH, parse_yaml, read_yaml
from outplay.registry import algorithms
from outplay.settings import NotNegative, Positive, Settings, validated

# Metrics for stop conditions, besides learner/… and evaluation/….
METRICS = (
    "training_iteration",
    "timesteps_total",
    "episodes_total",
    "episode_return_mean",
    "episode_return_min",
    "episode_return_max",
    "episode_len_mean",
    "episode_return_running",
    "time_total_s",
    "time_this_iter_s",
    "env_steps_per_s",
    "episodes_this_iter",
)
_POSITIVE = frozenset(name for name in METRICS if not name.startswith("episode_return_"))
_EVALUATION = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean")
# RLlib's names of these metrics.
_RLLIB = {"episode_reward_mean": "episode_return_mean", "episode_reward_min": "episode_return_min",
          "episode_reward_max": "episode_return_max"}  # fmt: skip


class Experiment(Settings):
    """One experiment: an algorithm, an environment and stop conditions."""

    name: str = Field("default", description="Name of the experiment: the folder of its runs.")
    description: str = Field("", description="Description in one line.")
    env: Any = Field(None, description="The environment; the same as `env` in `config`.")
    run: str = Field(
        "PPO", description=f"The algorithm: {', '.join(algorithms.shipped)}, or one of an installed package."
    )
    stop: dict[str, FiniteFloat] = Field(
        {}, description="Stop conditions {metric: value}: the run stops when any metric reaches its value."
    )
    confirm: bool = Field(
        False,
        description="A stop condition on episode_return_mean must also hold in an evaluation (evaluation_duration "
        "episodes, on seeds that training does not use); checked every 5 iterations.",
    )
    show: Literal["iterations", "episodes"] = Field(
        "iterations", description="Progress output: per iteration, or one line per episode."
    )
    video_at_end: bool = Field(False, description="Record a video of one episode when the run ends.")
    checkpoint_freq: Annotated[int, Field(ge=0)] = Field(0, description="Iterations between checkpoints; 0: none.")
    checkpoint_every_s: NotNegative = Field(
        300.0,
        description="Seconds between checkpoints, written at the end of an iteration; 0: none. The interval is longer "
        "if saving is slow, so that saving takes at most about 5% of the time.",
    )
    checkpoint_at_end: bool = Field(True, description="Write a checkpoint when the run ends.")
    keep_checkpoints: Positive | None = Field(
        10, description="Number of newest checkpoints to keep, besides the one with the best return; null keeps all."
    )
    loggers: list[Literal["csv", "tensorboard"]] = Field([], description="Metric outputs besides metrics.jsonl.")
    callbacks: list[str] = Field(
        [], description="Callbacks: import paths (module:Class), or names that installed packages register."
    )
    import_from: list[str] = Field(
        [],
        description="With --trust: additional folders to import the environment's module from. A run records the "
        "folder that it imported the module from.",
    )
    config: dict[str, Any] = Field({}, description="The settings of the algorithm.")


def experiment(data: dict[str, Any], where: str) -> Experiment:
    """A validated experiment from a dict. `where` is the source of the data, for error messages."""
    checked = validated(Experiment, data, where)
    config = dict(checked.config)
    env, other = checked.env, config.pop("env", None)
    if env is not None and other is not None and env != other:
        raise ConfigError(f"{where}: two environments are named: env is {env!r}, and env in config is {other!r}")
    env = other if env is None else env
    if env is None:
        raise ConfigError(f"{where}: env is missing; add an environment, as env: CartPole-v1")
    name = checked.name
    if not name or name.startswith(".") or set(name) & set("/\\") or not name.isprintable():
        raise ConfigError(f"{where}: the name {name!r} cannot be used for a folder; use letters, digits, - and _")
    stop = {checked_metric(name, where): value for name, value in checked.stop.items()}
    for metric, value in stop.items():
        if metric in _POSITIVE and value <= 0:
            raise ConfigError(f"{where}: stop.{metric} must be more than 0, not {value:g}")
    return checked.model_copy(update={"env": env, "config": config, "stop": stop})


def checked_metric(name: str, where: str) -> str:
    """The name of a metric for a stop condition; RLlib's names are translated. Raises ConfigError if unknown."""
    prefix, slash, last = name.rpartition("/")
    name = prefix + slash + _RLLIB.get(last, last)
    known = [*METRICS, *(f"evaluation/{metric}" for metric in _EVALUATION)]
    if name not in known and not name.startswith("learner/"):
        raise ConfigError(f"{where}: stop: there is no metric {name!r}{nearest(name, known)}")
    return name


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
