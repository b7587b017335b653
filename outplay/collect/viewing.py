"""Evaluation episodes for a person who watches: one step at a time, with pictures and what the policy computed.

The episodes are those of an evaluation: the same environment, seeds, random stream and loop (`play_episodes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from outplay import spaces
from outplay.collect.episodes import EpisodeLimits, EpisodeProgress, Step, evaluation_streams, play_episodes
from outplay.collect.video import FrameSource, frame_source, headless_rendering, try_to_render
from outplay.collect.worker import torch_threads
from outplay.envs import EnvSpec, PythonVector, Vector, make_vector
from outplay.envs.native import AtariVector
from outplay.errors import EnvError
from outplay.policies import Policy
from outplay.policies.viewing import Choice, action_labels, choice_of
from outplay.spaces import Leaf, Leaves

Array = np.ndarray

MAX_OBSERVATION = 64  # numbers of an observation that are shown
_DEFAULT_FPS = 15.0  # of environments without pictures


@dataclass(frozen=True)
class Moment:
    """An episode after its reset (step 0), or after a step.

    `action` and `choice` belong to the step; the observation and the picture show what came of it.
    """

    step: int
    reward: float
    episode_return: float  # so far
    terminated: bool
    truncated: bool
    action: Any  # in the environment's format; None after the reset
    choice: Choice | None  # None after the reset
    observation: list[float]  # numbers of the observation, without images; at most MAX_OBSERVATION
    picture: Array | None  # (height, width, 3), uint8

    @property
    def is_last(self) -> bool:
        return self.terminated or self.truncated


class EpisodeViewer:
    """One environment in which evaluation episodes are played.

    >>> viewer = EpisodeViewer(env.spec, env.probe.renders)
    >>> for moment in viewer.episode(policy, seed=0, number=0):
    ...     show(moment.picture, moment.reward)
    """

    def __init__(self, spec: EnvSpec, renders: bool | None) -> None:
        """`renders` is that of the environment's Probe: whether it can render images; None if only trying tells."""
        self._stack = ExitStack()
        self._stack.enter_context(headless_rendering())
        self.no_pictures = ""  # why there are none, although the environment renders
        self._source: FrameSource | None = None
        try:
            self._source = self._make_source(spec, renders)
            vector = make_vector(spec, 1, separate=True) if self._source is None else self._source.vector
        except BaseException:
            self.close()
            raise
        self.vector: Vector = vector
        if self._source is None:
            self._stack.callback(vector.close)
        self._image = next((i for i, leaf in enumerate(vector.leaves) if leaf.is_image), None)

    def _make_source(self, spec: EnvSpec, renders: bool | None) -> FrameSource | None:
        if renders is False or spec.is_envpool:
            return None
        try:
            if not spec.is_atari:
                try_to_render(spec)
            source = frame_source(spec)
        except EnvError as error:
            if renders:
                self.no_pictures = str(error)
            return None
        self._stack.callback(source.close)
        return source

    @property
    def has_pictures(self) -> bool:
        """Without pictures of the environment, an image of the observation is one."""
        return self._source is not None or self._image is not None

    @property
    def fps(self) -> float:
        """Steps per second at which the environment is usually shown."""
        return _DEFAULT_FPS if self._source is None else self._source.fps

    @property
    def action_names(self) -> list[str] | None:
        """The names of discrete actions: those of the environment, or numbers. None for continuous actions."""
        labels = action_labels(self.vector.action_space)
        names: Any = None
        if isinstance(self.vector, AtariVector):
            names = self.vector.action_names()
        elif isinstance(self.vector, PythonVector):
            meanings = getattr(self.vector.envs[0].unwrapped, "get_action_meanings", None)
            names = meanings() if callable(meanings) else None
        is_named = labels is not None and isinstance(names, list) and len(names) == len(labels)
        return [str(name) for name in names] if is_named else labels

    @property
    def action_count(self) -> int:
        """The number of actions of a Discrete space, else the numbers of one action."""
        space = self.vector.action_space
        return int(space.n) if isinstance(space, Discrete) else spaces.action_size(space)

    @property
    def observation_names(self) -> list[str]:
        """A name for each number of `Moment.observation`."""
        names = [name for leaf in self.vector.leaves if not leaf.is_image for name in _names(leaf)]
        return names[:MAX_OBSERVATION]

    def episode(
        self,
        policy: Policy,
        seed: int,
        number: int = 0,
        longest: int | None = None,
        task: Any = None,
        wants_picture: Callable[[], bool] = lambda: True,
    ) -> Iterator[Moment]:
        """Episode `number` of those that `outplay evaluate --seed SEED` plays one after the other.

        Actions are greedy. `longest`: steps after which the episode is truncated. `wants_picture` is called at each
        moment; without a picture, the environment is not rendered.
        """
        seeds, rng = evaluation_streams(seed, (0, number), 1)
        moments: list[Moment] = []
        picture: Array | None = None
        total, steps = 0.0, 0

        def watch(actions: Array | None, _: Array) -> None:
            nonlocal picture
            picture = self._picture(seeds, actions, wants_picture())

        def on_reset(observations: Leaves) -> None:
            moments.append(self._moment(0, 0.0, 0.0, observations, picture))

        def on_step(step: Step) -> None:
            nonlocal total, steps
            steps, reward = steps + 1, float(step.rewards[0])
            total += reward
            ends = bool(step.terminated[0]), bool(step.truncated[0])
            choice = choice_of(policy, step.before, step.actions, step.extras)
            action = spaces.nested_action(policy.action_space, policy.to_env(step.actions)[0])
            moments.append(self._moment(steps, reward, total, step.after, picture, ends, action, choice))

        progress = EpisodeProgress(on_step=on_step, on_reset=on_reset)
        limits = EpisodeLimits(episode_steps=longest)
        playing = play_episodes(self.vector, policy, seeds, rng, False, limits, task, watch, progress)
        is_over = False
        while not is_over:
            with torch_threads(1):
                is_over = next(playing, StopIteration) is StopIteration
            yield from moments
            moments.clear()

    def _picture(self, seeds: list[int], actions: Array | None, is_wanted: bool) -> Array | None:
        if self._source is None:
            return None
        if is_wanted:
            return self._source.frame(seeds, actions)
        self._source.skip(seeds, actions)
        return None

    def _moment(
        self,
        step: int,
        reward: float,
        episode_return: float,
        observations: Leaves,
        picture: Array | None,
        ends: tuple[bool, bool] = (False, False),
        action: Any = None,
        choice: Choice | None = None,
    ) -> Moment:
        if self._source is None and self._image is not None:
            picture = _as_picture(observations[self._image][0])
        numbers = [
            float(x)
            for leaf, values in zip(self.vector.leaves, observations, strict=True)
            if not leaf.is_image
            for x in values[0].ravel()[:MAX_OBSERVATION]
        ]
        return Moment(step, reward, episode_return, *ends, action, choice, numbers[:MAX_OBSERVATION], picture)

    def close(self) -> None:
        """Close the environment."""
        self._stack.close()


def _names(leaf: Leaf) -> list[str]:
    """speed, position[0], position[1], …; without keys 0, 1, …"""
    name = ".".join(map(str, leaf.path))
    indices = [",".join(map(str, index)) for index in np.ndindex(*leaf.shape)] if leaf.shape else [""]
    if not name:
        return [index or "observation" for index in indices]
    return [f"{name}[{index}]" if index else name for index in indices]


def _as_picture(image: Array) -> Array:
    """An image of an observation as (height, width, 3): of stacked frames, the last one."""
    while image.ndim > 3 or (image.ndim == 3 and image.shape[-1] not in (1, 3) and image.shape[0] != 3):
        image = image[-1]
    if image.ndim == 3 and image.shape[-1] not in (1, 3):
        image = image.transpose(1, 2, 0)  # the channels came first
    grey = image[..., None] if image.ndim == 2 else image
    return np.ascontiguousarray(np.broadcast_to(grey, (*grey.shape[:2], 3)))
