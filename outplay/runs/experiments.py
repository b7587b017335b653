"""Experiment files and recipes: YAML, safely loaded, in the form of RLlib's.

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

from outplay.config import NotNegative, Positive, Settings, validated
from outplay.errors import ConfigError, nearest, shortened
from outplay.parsing import MOST_DEPTH, parse_yaml, read_yaml
from outplay.registry import algorithms

# What a run can be stopped by. The learner's metrics are learner/…, those of an evaluation evaluation/….
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
_MORE_THAN_ZERO = frozenset(name for name in METRICS if not name.startswith("episode_return_"))
_EVALUATION = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean")
# RLlib's names for the same things.
_RLLIB = {"episode_reward_mean": "episode_return_mean", "episode_reward_min": "episode_return_min",
          "episode_reward_max": "episode_return_max"}  # fmt: skip


class Experiment(Settings):
    """One experiment: an algorithm on an environment, and when it ends."""

    name: str = Field("default", description="The experiment's name: the folder that its runs lie in.")
    description: str = Field("", description="One line about it.")
    env: Any = Field(None, description="The environment; the same as `env` in `config`.")
    run: str = Field(
        "PPO", description=f"The algorithm: {', '.join(algorithms.shipped)}, or one of an installed package."
    )
    stop: dict[str, FiniteFloat] = Field({}, description="The run ends when any of these metrics reaches its value.")
    confirm: bool = Field(
        False,
        description="A condition on episode_return_mean must hold in an evaluation too (evaluation_duration fresh "
        "episodes) before it stops the run; it is looked at every 5 iterations.",
    )
    show: Literal["iterations", "episodes"] = Field(
        "iterations", description="What a run shows of itself: its iterations, or a line for each episode."
    )
    video_at_end: bool = Field(False, description="Record a video of one episode when the run ends.")
    checkpoint_freq: Annotated[int, Field(ge=0)] = Field(0, description="Save every so many iterations; 0: do not.")
    checkpoint_every_s: NotNegative = Field(
        300.0,
        description="Save after the first iteration that ends this many seconds after the last checkpoint; 0: do not. "
        "Saving never takes more than about 5% of the time: a slow one puts off the next.",
    )
    checkpoint_at_end: bool = Field(True, description="Save when the run ends.")
    keep_checkpoints: Positive | None = Field(
        10, description="Keep the last so many checkpoints, and the one with the best return; null keeps all."
    )
    loggers: list[Literal["csv", "tensorboard"]] = Field([], description="Where metrics go besides metrics.jsonl.")
    callbacks: list[str] = Field(
        [], description="Callbacks: import paths (module:Class), or names that installed packages register."
    )
    import_from: list[str] = Field(
        [],
        description="With --trust: folders where the environment's module is looked up too; a run records where it "
        "found it.",
    )
    config: dict[str, Any] = Field({}, description="The settings of the algorithm.")


def experiment(data: dict[str, Any], where: str) -> Experiment:
    """An experiment from plain data, checked."""
    checked = validated(Experiment, data, where)
    config = dict(checked.config)
    env, other = checked.env, config.pop("env", None)
    if env is not None and other is not None and env != other:
        raise ConfigError(f"{where}: two environments are named: env is {env!r}, and env in config is {other!r}")
    env = other if env is None else env
    if env is None:
        raise ConfigError(f"{where}: it names no environment; add env: CartPole-v1, or any other")
    name = checked.name
    if not name or name.startswith(".") or set(name) & set("/\\") or not name.isprintable():
        raise ConfigError(f"{where}: the name {name!r} cannot be a folder's; use letters, digits, - and _")
    stop = {checked_metric(name, where): value for name, value in checked.stop.items()}
    for metric, value in stop.items():
        if metric in _MORE_THAN_ZERO and value <= 0:
            raise ConfigError(f"{where}: stop.{metric} must be more than 0, not {value:g}")
    return checked.model_copy(update={"env": env, "config": config, "stop": stop})


def checked_metric(name: str, where: str) -> str:
    prefix, slash, last = name.rpartition("/")
    name = prefix + slash + _RLLIB.get(last, last)
    known = [*METRICS, *(f"evaluation/{metric}" for metric in _EVALUATION)]
    if name not in known and not name.startswith("learner/"):
        raise ConfigError(f"{where}: stop: there is no metric {name!r}{nearest(name, known)}")
    return name


def load_file(path: Path, trust: bool = False) -> list[Experiment]:
    """The experiments of a file, in its order. Its `import_from` counts only with `trust`: a file does not decide which
    code runs when a user names a module."""
    data = read_yaml(path)
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path}: it must hold experiments, as name: {{env: …, run: …, stop: …, config: …}}")
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
    """An experiment that ships with Outplay."""
    if name not in recipe_names():
        raise ConfigError(f"no recipe {name!r}{nearest(name, recipe_names())}")
    with resources.as_file(_recipes() / f"{name}.yaml") as path:
        return load_file(path)[0]


def _recipes() -> Any:
    return resources.files("outplay") / "recipes"


def parse_setting(text: str, option: str) -> tuple[str, Any]:
    """KEY=VALUE of a command line; the value as YAML, so that lists and numbers work."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"{option} takes KEY=VALUE, not {shortened(text)!r}")
    if key.count(".") >= MOST_DEPTH:
        raise ConfigError(f"{option} {shortened(key)}: no setting is nested that deep")
    return key.strip(), parse_yaml(value, f"{option} {shortened(text if text.isprintable() else repr(text))}")


def nested(settings: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`settings` with `value` at `key`; dots lead into nested settings.

    >>> nested({"model": {"fcnet_hiddens": [64]}}, "model.vf_share_layers", True)
    {'model': {'fcnet_hiddens': [64], 'vf_share_layers': True}}
    """
    first, dot, rest = key.partition(".")
    if not dot:
        return {**settings, first: value}
    inner = settings.get(first, {})
    return {**settings, first: nested(inner if isinstance(inner, dict) else {}, rest, value)}
