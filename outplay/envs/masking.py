"""Reads the action masks of Python environments: from `action_masks()`, from the observation, or from the info."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from outplay.envs.global_streams import OwnStreams
from outplay.envs.wrappers import mask_method
from outplay.errors import EnvError, OutplayError
from outplay.masks import KEYS, checked_mask, mask_in, mask_key, mask_sizes, part_without_choice, with_mask_part
from outplay.spaces import in_one_line

Array = np.ndarray


class MaskReader:
    """The action masks of the environments of a vector, one row per lane.

    An environment gives its mask by a method `action_masks()`, in its observation, or in the info of reset and step.
    The first of these that it has is used; `sources` are all of them. Whether infos have masks is known after the
    first reset.
    """

    def __init__(self, name: str, envs: list[gymnasium.Env[Any, Any]], stack: int = 1) -> None:
        self.name = name
        self.rows: Array | None = None  # (E, n): True where an action is allowed; None without action masks
        self._envs = envs
        self._space = envs[0].action_space
        try:
            self.observation_space, self.unused = with_mask_part(envs[0].observation_space, self._space, stack)
        except EnvError as error:
            raise EnvError(f"environment {name!r}: {error}") from error
        found = [mask_method(env) for env in envs]
        self._methods = [method for method in found if method is not None] if all(found) else []
        self._key = mask_key(self.observation_space)
        self._info_key: str | None = None
        self._steps = [0] * len(envs)  # of the running episodes
        self._is_known = False  # whether infos have masks
        self.sources: list[str] = []
        if self._methods:
            try:
                self._use("action_masks()")
            except EnvError as error:
                raise EnvError(f"environment {name!r} has action_masks(): {error}") from error
        if self._key is not None:
            self._use(f"observation[{self._key!r}]")

    def _use(self, source: str) -> None:
        self.sources.append(source)
        if self.rows is None:
            self._sizes = mask_sizes(self._space)
            self.rows = np.ones((len(self._envs), sum(self._sizes)), bool)

    def after_reset(self, lane: int, observation: Any, info: Any) -> None:
        if not self._is_known:
            self._is_known = True
            self._look_into(info)
        if self.rows is not None:
            self._steps[lane] = 0
            self._read(lane, observation, info, "reset", True)

    def after_step(self, lane: int, observation: Any, info: Any, terminated: bool, truncated: bool) -> None:
        assert self.rows is not None
        self._steps[lane] += 1
        if terminated:  # no action follows, and a terminal state may allow none
            self.rows[lane] = True
        else:
            self._read(lane, observation, info, "step", not truncated)

    def _look_into(self, info: Any) -> None:
        """Find out whether infos have masks, from the first one."""
        found = [key for key in KEYS if isinstance(info, dict) and key in info]
        if not found or self._methods or self._key is not None:
            self.sources += [f"info[{key!r}]" for key in found]
            return
        try:
            sizes = mask_sizes(self._space)
        except EnvError as error:
            self.unused = self.unused or str(error)
            return
        shape = _shape(info[found[0]])
        if shape not in ((sum(sizes),), tuple(sizes)):
            self.unused = self.unused or (
                f"the info[{found[0]!r}] of reset() has shape {shape}; the action space {in_one_line(self._space)} "
                f"needs {sum(sizes)} values"
            )
            return
        self._info_key = found[0]
        self._use(f"info[{found[0]!r}]")

    def _read(self, lane: int, observation: Any, info: Any, call: str, acts: bool) -> None:
        """Read a mask. If no action follows (`acts` is False), it may allow none; then all are taken as allowed."""
        assert self.rows is not None
        try:
            if self._methods:
                mask, source = self._from_method(lane), "action_masks() returned"
            elif self._key is not None:
                mask = mask_in(observation, self.observation_space, f"environment {self.name!r}: {call}() returned")
                source = f"observation[{self._key!r}] of {call}() is"
            else:
                mask, source = self._from_info(info, call), f"info[{self._info_key!r}] of {call}() is"
            if not acts and _allows_nothing(mask, self._sizes):
                self.rows[lane] = True
            else:
                self.rows[lane] = checked_mask(mask, self._sizes, f"environment {self.name!r}: {source}")
        except EnvError as error:
            when = f"after step {self._steps[lane]} of its episode" if self._steps[lane] else "after reset()"
            raise EnvError(f"{error} (environment {lane}, {when})") from error

    def _from_info(self, info: Any, call: str) -> Any:
        if isinstance(info, dict) and self._info_key in info:
            return info[self._info_key]
        raise EnvError(
            f"environment {self.name!r}: {call}() returned an info without {self._info_key!r}, which the first reset() "
            "had"
        )

    def _from_method(self, lane: int) -> Any:
        env, method = self._envs[lane], self._methods[lane]
        try:
            return env.call(method) if isinstance(env, OwnStreams) else method()
        except OutplayError:
            raise
        except (Exception, SystemExit) as error:
            raise raised(self.name, "action_masks", error) from error


def _shape(mask: Any) -> tuple[int, ...]:
    """The shape of a mask; the sizes of its parts if it is a tuple or list of masks."""
    if isinstance(mask, (tuple, list)) and any(np.ndim(part) for part in mask):
        return tuple(int(np.size(part)) for part in mask)
    return np.shape(mask)


def _allows_nothing(mask: Any, sizes: list[int]) -> bool:
    parts = [np.ravel(part) for part in mask] if isinstance(mask, tuple) else [np.ravel(mask)]
    flat = np.concatenate(parts)
    return flat.size == sum(sizes) and part_without_choice(flat.astype(bool), sizes) is not None


def raised(name: str, call: str, error: BaseException) -> EnvError:
    """The error of an environment whose method `call` raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return EnvError(
        f"environment {name!r} raised in {call}(): {type(error).__name__}: {error} "
        f"({Path(place.filename).name}, line {place.lineno})"
    )
