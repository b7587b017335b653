"""What `tune.run` can run: a function, a class, an algorithm by its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import outplay
from outplay.errors import ConfigError

_EXPERIMENT_KEYS = ("env", "stop", "config", "run", "callbacks", "loggers", "checkpoint_freq", "checkpoint_at_end")


class Trainable:
    """A trial as a class. Subclass it; `save_checkpoint` and `load_checkpoint` are needed to pause and to resume.

    >>> class Counter(tune.Trainable):
    ...     def setup(self, config):
    ...         self.x = config["start"]
    ...     def step(self):
    ...         self.x += 1
    ...         return {"x": self.x, "done": self.x >= 10}
    ...     def save_checkpoint(self, folder):
    ...         Path(folder, "x.txt").write_text(str(self.x))
    ...     def load_checkpoint(self, folder):
    ...         self.x = int(Path(folder, "x.txt").read_text())
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Called once, with the trial's config."""

    def step(self) -> dict[str, Any]:
        """One iteration. Returns its metrics; with `"done": True` the trial ends."""
        raise NotImplementedError(f"{type(self).__name__} needs a method step(), which returns a dict of metrics")

    def cleanup(self) -> None:
        """Called when the trial ends."""


class _Bound:
    """A function with large arguments, which lie in the object store."""

    def __init__(self, function: Callable[..., Any], refs: dict[str, Any]) -> None:
        self._function, self._refs = function, refs
        self.__name__ = name_of(function)

    def __call__(self, config: dict[str, Any]) -> Any:
        return self._function(config, **{name: outplay.get(ref) for name, ref in self._refs.items()})


def with_parameters(trainable: Callable[..., Any], **parameters: Any) -> Callable[[dict[str, Any]], Any]:
    """The function with further arguments: large objects, which are stored once for all trials.

    >>> tune.run(tune.with_parameters(train, data=dataset), config={…})  # train(config, data)
    """
    if isinstance(trainable, type) or not callable(trainable):
        raise ConfigError(f"with_parameters takes a function, not {trainable!r}")
    return _Bound(trainable, {name: outplay.put(value) for name, value in parameters.items()})


def with_resources(trainable: Any, resources: Any) -> Any:
    """The trainable with the resources of its trials: `tune.with_resources(train, {"cpu": 2})`."""
    if isinstance(trainable, str):
        raise ConfigError(f"with_resources takes a function or class; for {trainable!r}, use resources_per_trial")
    if isinstance(trainable, type):
        return type(trainable.__name__, (trainable,), {"resources_per_trial": resources})

    @functools.wraps(trainable)
    def bound(config: dict[str, Any]) -> Any:
        return trainable(config)

    bound.resources_per_trial = resources  # type: ignore[attr-defined]
    return bound


def name_of(trainable: Any) -> str:
    """The name of a trainable, for folders and tables."""
    if isinstance(trainable, str):
        return trainable
    name = getattr(trainable, "__name__", type(trainable).__name__)
    return "function" if name == "<lambda>" else str(name)


def checked_trainable(given: Any) -> Any:
    """What the workers run: a function or class as it is, an algorithm by its name. Raises ConfigError."""
    if isinstance(given, str):
        from outplay.runs.loading import find_algorithm  # it needs torch

        return find_algorithm(given).__name__
    if isinstance(given, type):
        if _is_algorithm(given):
            return given.__name__
        if not callable(getattr(given, "step", None)):
            raise ConfigError(
                f"{given.__name__} is no trainable: it has no method step(), which returns a dict of metrics"
            )
        return given
    if callable(as_trainable := getattr(given, "as_trainable", None)):  # a trainer of outplay.train
        return as_trainable()
    if not callable(given):
        raise ConfigError(
            f"tune.run takes a function of the config, a class with step(), or the name of an algorithm, not {given!r}"
        )
    _check_takes_config(given)
    return given


def _is_algorithm(cls: type) -> bool:
    return any(base.__module__ == "outplay.algorithms.algorithm" for base in cls.__mro__)


def _check_takes_config(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind({})
    except TypeError:
        raise ConfigError(f"{name_of(function)}{signature} must take one argument: the config of the trial") from None


def experiment_of(algorithm: str, config: Mapping[str, Any], stop: Mapping[str, float]) -> dict[str, Any]:
    """The experiment of an algorithm's trial.

    `config` may have the form of an experiment, with the algorithm's settings within `config`; or be these settings,
    with `env` among them, as for Ray Tune.
    """
    if "config" in config or set(config) <= set(_EXPERIMENT_KEYS):
        experiment = dict(config)
    else:
        experiment = {"config": {name: value for name, value in config.items() if name != "env"}}
        if "env" in config:
            experiment["env"] = config["env"]
    return {"run": algorithm, **experiment, "stop": {**experiment.get("stop", {}), **stop}}
