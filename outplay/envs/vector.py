"""Vectors: a fixed number of environments with one batched step. Each EnvGroup has one vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from outplay import spaces
from outplay.envs.global_streams import OwnStreams
from outplay.envs.lookup import EnvSpec
from outplay.envs.masking import MaskReader, raised
from outplay.envs.tasks import task_layer
from outplay.errors import EnvError, OutplayError, type_name
from outplay.sequences import Padded
from outplay.spaces import Leaf, Leaves

Array = np.ndarray
State = dict[str, Any]


class Vector(Protocol):
    """Environments stepped together, one per lane. No autoreset: the EnvGroup resets lanes and chooses their seeds.

    >>> observations = vector.reset(np.ones(vector.num_envs, bool), seeds)
    >>> observations, rewards, terminated, truncated = vector.step(actions)
    >>> ended = terminated | truncated
    >>> observations = vector.reset(ended, seeds_of_ended_lanes)  # the other rows do not change

    The next call may overwrite the arrays that `step` and `reset` return, and `action_masks`.

    A vector that steps in threads can step in the background:

    >>> vector.begin(actions)
    >>> ...
    >>> observations, rewards, terminated, truncated = vector.step(actions)  # waits for the result
    """

    name: str  # of the environment
    num_envs: int
    leaves: tuple[Leaf, ...]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    action_masks: Array | None  # (E, n): True where an action is allowed; None without action masks
    inexact: str  # why episodes are not reproducible from seed and actions; empty if they are
    episodes_per_seed: int  # consecutive episodes that one seed determines; more than 1 where seeding is slow

    def reset(self, lanes: Array, seeds: Sequence[int | None], tasks: Sequence[Any] | None = None) -> Leaves:
        """Start a new episode in the lanes where `lanes` (E,) is True. Returns the observations of all lanes.

        `seeds` and `tasks` have one entry per lane that is reset. If a seed is None, the episode is determined by the
        lane's last seed and the number of resets since then.
        """

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:
        """Observations, rewards, terminated and truncated of all lanes.

        The caller uses only the lanes where `lanes` (E,) is True; default: all. Other lanes may be stepped or not.
        """

    def info(self, lane: int) -> Mapping[str, Any]:
        """The info of a lane's last step, for `info_metrics`. Only valid until the next call of `step` or `reset`."""

    def begin(self, actions: Array, lanes: Array | None = None) -> None:
        """Start a step in the background. The next call must be `step` with the same arguments. May do nothing."""

    def get_state(self) -> State | None:
        """The state of all environments as arrays and numbers. None if it must be rebuilt by replaying actions."""

    def set_state(self, state: State) -> Leaves:
        """Restore a state. Returns its observations."""

    def close(self) -> None: ...


class PythonVector:
    """Steps Python environments sequentially, in one process."""

    inexact = ""
    episodes_per_seed = 1

    def __init__(self, spec: EnvSpec, num_envs: int, render_mode: str | None = None) -> None:
        self.name = spec.name
        self.num_envs = num_envs
        self.envs = [spec.make(render_mode=render_mode) for _ in range(num_envs)]
        self.action_space = self.envs[0].action_space
        self.masks = MaskReader(self.name, self.envs, spec.frame_stack)
        self.observation_space = spaces.readable(self.masks.observation_space, spec.reading)
        self._after_reset, self._after_step = (
            f"environment {self.name!r}: {call}() returned" for call in ("reset", "step")
        )
        self._nests = spaces.is_composite(self.action_space)
        self.leaves = spaces.leaves(self.observation_space)
        only = self.leaves[0]
        self._is_plain = not only.path and not isinstance(only.space, Padded)  # observations are arrays of that shape
        self._observations = spaces.empty(self.leaves, num_envs)
        self._rewards = np.zeros(num_envs, np.float32)
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)
        self._infos: list[Any] = [{}] * num_envs
        self.action_masks: Array | None = self.masks.rows

    def reset(self, lanes: Array, seeds: Sequence[int | None], tasks: Sequence[Any] | None = None) -> Leaves:
        for i, (lane, seed) in enumerate(zip(np.flatnonzero(lanes).tolist(), seeds, strict=True)):
            if tasks is not None and tasks[i] is not None:
                self._set_task(self.envs[lane], tasks[i], seed)
            try:
                result = self.envs[lane].reset(seed=seed)
            except OutplayError:
                raise
            except (Exception, SystemExit) as error:
                raise self._raised("reset", error) from error
            if not isinstance(result, tuple) or len(result) != 2:
                raise EnvError(
                    f"environment {self.name!r}: reset() must return (observation, info), not "
                    f"{type_name(result)}{_count(result)}"
                )
            spaces.write(result[0], self.leaves, self._observations, lane, self._after_reset)
            self.masks.after_reset(lane, *result)
        self.action_masks = self.masks.rows
        return self._observations

    def step(self, actions: Array, lanes: Array | None = None) -> tuple[Leaves, Array, Array, Array]:
        plain, shape = self._is_plain, self.leaves[0].shape
        for lane in range(self.num_envs) if lanes is None else np.flatnonzero(lanes).tolist():
            action = spaces.nested_action(self.action_space, actions[lane]) if self._nests else actions[lane]
            try:
                result = self.envs[lane].step(action)
            except OutplayError:
                raise
            except (Exception, SystemExit) as error:
                raise self._raised("step", error) from error
            if not isinstance(result, tuple) or len(result) != 5:
                raise EnvError(
                    f"environment {self.name!r}: step() must return (observation, reward, terminated, truncated, "
                    f"info), not {type_name(result)}{_count(result)}"
                )
            observation, reward, terminated, truncated, info = result
            self._infos[lane] = info
            self._terminated[lane] = terminated if type(terminated) is bool else self._flag("terminated", terminated)
            self._truncated[lane] = truncated if type(truncated) is bool else self._flag("truncated", truncated)
            if plain and isinstance(observation, np.ndarray) and observation.shape == shape:
                self._observations[0][lane] = observation  # fast path of the usual case
            else:
                spaces.write(observation, self.leaves, self._observations, lane, self._after_step)
            self._rewards[lane] = reward if type(reward) is float else self._number(reward)
            if self.action_masks is not None:
                self.masks.after_step(lane, observation, info, self._terminated[lane], self._truncated[lane])
        return self._observations, self._rewards, self._terminated, self._truncated

    def info(self, lane: int) -> Mapping[str, Any]:
        info = self._infos[lane]
        if not isinstance(info, Mapping):
            raise EnvError(f"environment {self.name!r}: step() returned an info that is not a dict: {info!r}")
        return info

    def begin(self, actions: Array, lanes: Array | None = None) -> None:
        pass  # sequential: nothing can run in the background

    def _set_task(self, env: gymnasium.Env[Any, Any], task: Any, seed: int | None) -> None:
        layer = task_layer(env)
        if layer is None:
            raise EnvError(f"environment {self.name!r} has a curriculum, but no set_task(task)")
        try:
            if isinstance(env, OwnStreams):
                if seed is not None:  # random numbers drawn in set_task() must not depend on the previous episode
                    env.seed_streams(seed)
                env.call(layer.set_task, task)
            else:
                layer.set_task(task)
        except OutplayError:
            raise
        except (Exception, SystemExit) as error:
            raise self._raised("set_task", error) from error

    def _number(self, reward: Any) -> float:
        if isinstance(reward, (int, float, np.number, np.bool_)) or (
            isinstance(reward, np.ndarray) and reward.size == 1
        ):
            return float(np.asarray(reward).reshape(()))
        raise EnvError(f"environment {self.name!r}: a reward must be a number, not {reward!r}")

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, (bool, np.bool_, int, np.integer)) and value in (0, 1):
            return bool(value)
        raise EnvError(f"environment {self.name!r}: {name} must be True or False, not {value!r}")

    def _raised(self, call: str, error: BaseException) -> EnvError:
        return raised(self.name, call, error)

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> Leaves:  # noqa: ARG002
        raise EnvError(f"environment {self.name!r} has no state to restore; replay its actions instead")

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _count(result: Any) -> str:
    return f" of {len(result)} values" if isinstance(result, tuple) else ""
