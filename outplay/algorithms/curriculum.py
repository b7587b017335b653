"""Curricula: the levels of the setting `curriculum`, and the tasks that `env_task_fn` returns.

Both change the task between two iterations. A new task takes effect at the next episode of each environment.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outplay.conditions import flattened
from outplay.config import AlgorithmConfig
from outplay.envs import EnvSpec, GroupState, Probe
from outplay.envs.probe import try_task
from outplay.envs.tasks import task_layer
from outplay.errors import CallbackError, ConfigError, EnvError, shortened, type_name
from outplay.fragments import Fragment
from outplay.groups import CurriculumConfig
from outplay.imports import import_object
from outplay.metrics import Result
from outplay.settings import plain

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

TaskFunction = Callable[[Result, Any, dict[str, Any]], Any]


@dataclass(frozen=True)
class Level:
    """The present level of a curriculum."""

    number: int = 0  # index in `levels`
    iterations: int = 0  # since the level started


def task_function(setting: Any, folders: Iterable[Path]) -> TaskFunction | None:
    """The function of the setting `env_task_fn`, which may be its import path."""
    if setting is None:
        return None
    found = import_object("env_task_fn", setting, folders, "function") if isinstance(setting, str) else setting
    if not callable(found):
        raise ConfigError(f"env_task_fn: {setting!r} is {type_name(found)}, not a function")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return found  # type: ignore[no-any-return]
    try:
        signature.bind({}, None, {})
    except TypeError:
        name = setting if isinstance(setting, str) else getattr(found, "__qualname__", type_name(found))
        raise ConfigError(
            f"env_task_fn: {name} must take (train_results, task_settable_env, env_ctx), but it takes {signature}"
        ) from None
    return found  # type: ignore[no-any-return]


def check_tasks(spec: EnvSpec, probe: Probe, config: AlgorithmConfig) -> None:
    """Raise EnvError if there is a curriculum, and the environment has no tasks, or fails with the first one."""
    name = "curriculum" if config.curriculum is not None else "env_task_fn" if config.env_task_fn is not None else ""
    if name and not probe.has_tasks:
        raise EnvError(
            f"{name} is set, but environment {spec.name!r} has no set_task(task); add that method, as "
            "outplay.TaskSettableEnv shows"
        )
    if config.curriculum is not None:
        try_task(spec, config.curriculum.levels[0], config.seed)


def restored_level(config: AlgorithmConfig, saved: Mapping[str, int] | None) -> Level:
    """The level in a checkpoint. Without a curriculum in it, the first one; if there are fewer levels now, the last."""
    if saved is None or config.curriculum is None:
        return Level()
    return Level(min(saved["number"], len(config.curriculum.levels) - 1), saved["iterations"])


def states_on(config: AlgorithmConfig, level: Level, states: list[GroupState] | None) -> list[GroupState] | None:
    """The states of the EnvGroups with the task of this level. Without a curriculum they do not change."""
    if config.curriculum is None:
        return states
    task = config.curriculum.levels[level.number]
    if states is None:
        return [GroupState(size, task=task) for size in config.group_sizes]
    return [replace(state, task=task) if state.fragments else GroupState(state.lanes, task=task) for state in states]


def of_level(config: AlgorithmConfig, task: Any, fragment: Fragment) -> list[bool]:
    """For each episode that ended in the Fragment: whether it started on the present level, whose task is `task`."""
    if config.curriculum is None:
        return [True] * len(fragment.episode_returns)
    return [started_on == task for started_on in fragment.episode_tasks]


def update(algorithm: Algorithm, result: Result) -> None:
    """After an iteration: change the level, or set the task that `env_task_fn` returns."""
    curriculum = algorithm.config.curriculum
    if curriculum is not None:
        before = algorithm.level
        enough = min(curriculum.min_episodes, algorithm.config.metrics_num_episodes)
        algorithm.level = next_level(curriculum, before, result, len(algorithm.episodes.returns) >= enough)
        if algorithm.level.number != before.number:
            log.info("curriculum: level %d after level %d", algorithm.level.number, before.number)
            algorithm.collector.set_task(curriculum.levels[algorithm.level.number])
            algorithm.episodes.clear()  # otherwise the episodes of one level would change the next one, too
    elif algorithm.task_function is not None:
        _call(algorithm, algorithm.task_function, result)


def next_level(curriculum: CurriculumConfig, level: Level, result: Mapping[str, Any], has_episodes: bool) -> Level:
    """The level after an iteration with this result. `has_episodes`: enough episodes of the level have ended."""
    metrics = flattened(result)
    if metrics.get("evaluation/curriculum_level", level.number) != level.number:  # an evaluation of an earlier level
        metrics = {name: value for name, value in metrics.items() if not name.startswith("evaluation/")}
    stayed = Level(level.number, level.iterations + 1)
    if not has_episodes or stayed.iterations < curriculum.min_iterations:
        return stayed

    def hold(conditions: Mapping[str, float], sign: int) -> bool:
        """Whether all metrics are at least (sign 1) or at most (sign -1) their values. A missing metric is neither."""
        values = {name: metrics.get(name) for name in conditions}
        return bool(conditions) and all(
            value is not None and sign * value >= sign * conditions[name] for name, value in values.items()
        )

    if hold(curriculum.promote_when, 1):
        return stayed if level.number == len(curriculum.levels) - 1 else Level(level.number + 1)
    if hold(curriculum.demote_when, -1):
        return stayed if level.number == 0 else Level(level.number - 1)
    return stayed


def _call(algorithm: Algorithm, function: TaskFunction, result: Result) -> None:
    """Set the task that `env_task_fn` returns. None keeps the present task."""
    if algorithm._task_env is None:
        algorithm._task_env = algorithm.env_spec.make()
    env = task_layer(algorithm._task_env)
    if algorithm.collector.task is not None:
        env.set_task(algorithm.collector.task)
    try:
        task = function(result, env, algorithm.config.env_config)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise CallbackError(
            f"env_task_fn raised {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
        ) from error
    if task is None:
        return
    try:
        algorithm.collector.set_task(plain(task, "the task"))
    except ConfigError as error:
        raise ConfigError(f"env_task_fn returned {shortened(repr(task))}: {error}") from None
