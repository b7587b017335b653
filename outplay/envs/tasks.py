"""Environments with tasks: what a curriculum changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium

from outplay.envs.wrappers import layers

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class TaskSettableEnv(gymnasium.Env[ObsType, ActType]):
    """An environment whose task, for example its difficulty, can be changed. Override both methods.

    A new task takes effect at the next `reset()`. It must consist of numbers, strings, lists and dicts, because
    checkpoints contain it. To add tasks to another environment, name this class first.

    >>> class Slope(outplay.TaskSettableEnv, MountainCarEnv):
    ...     def get_task(self):
    ...         return self.gravity
    ...
    ...     def set_task(self, task):
    ...         self.gravity = task
    >>> trainer = PPO(Slope, curriculum={"levels": [0.001, 0.0025], "promote_when": {"episode_return_mean": -150}})

    Any environment with a method `set_task` can have a curriculum; it need not be derived from this class.
    """

    def get_task(self) -> Any:
        """The present task."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_task()")

    def set_task(self, task: Any) -> None:
        """Set the task of the episodes that start from now on."""
        raise NotImplementedError(f"{type(self).__name__} does not define set_task(task)")


def task_layer(env: Any) -> Any:
    """The outermost layer of an environment that defines set_task(task), or None."""
    return next((layer for layer in layers(env) if _task_method(layer) is not None), None)


def _task_method(layer: Any) -> Callable[[Any], None] | None:
    method = getattr(layer, "set_task", None)
    is_abstract = getattr(method, "__func__", None) is TaskSettableEnv.set_task
    return method if callable(method) and not is_abstract else None
