"""The loop that plays episodes: for evaluations, videos and live viewing."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outplay.envs import Vector
from outplay.envs.group import LONGEST_EPISODE
from outplay.envs.recorder import info_numbers
from outplay.errors import EnvError
from outplay.policies import Policy
from outplay.spaces import Leaves
from outplay.streams import seed_for, stream

Array = np.ndarray

# Called after the reset (without actions) and after each step, with the environments' actions and the rewards.
Watcher = Callable[[Array | None, Array], None]


@dataclass(frozen=True)
class EpisodeLimits:
    """When to stop before the episodes end."""

    total_steps: int | None = None  # of all episodes together; they are then not `finished`
    episode_steps: int | None = None  # of each episode, which is then truncated


@dataclass
class EpisodeResults:
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    steps: int = 0
    finished: bool = True  # every episode ended, or was truncated
    truncated: int = 0  # episodes that reached EpisodeLimits.episode_steps
    infos: list[list[float]] = field(default_factory=list)  # info_metrics of each episode, if there are any


@dataclass(frozen=True)
class Step:
    """One step of all lanes of a vector, (E, …) each. `playing`: lanes whose episode had not ended before it."""

    vector: int  # which of several vectors that take turns
    is_first: bool  # of new episodes
    before: Leaves  # observations
    mask: Array | None
    actions: Array  # before action scaling
    extras: dict[str, Array]
    rewards: Array
    terminated: Array
    truncated: Array
    after: Leaves  # observations
    next_mask: Array | None
    playing: Array


@dataclass
class EpisodeProgress:
    """What was played so far, updated after every step. Another thread may read it."""

    returns: list[float] = field(default_factory=list)  # of the episodes that ended, in this order
    lengths: list[int] = field(default_factory=list)
    steps: int = 0
    truncated: int = 0
    infos: list[list[float]] = field(default_factory=list)
    on_step: Callable[[Step], None] | None = None  # called after every step, to record it
    on_reset: Callable[[Leaves], None] | None = None  # called with the first observations of the episodes

    def add(
        self, steps: int, returns: list[float], lengths: list[int], truncated: int, infos: list[list[float]]
    ) -> None:
        self.steps += steps
        self.infos += infos
        self.returns += returns
        self.lengths += lengths
        self.truncated += truncated


def evaluation_streams(seed: int, key: tuple[int, ...], lanes: int) -> tuple[list[int], np.random.Generator]:
    """The seeds of evaluation episodes, one per lane, and the stream of their actions. `key` selects them."""
    seeds = [seed_for(seed, "evaluation episode", *key, lane) for lane in range(lanes)]
    return seeds, stream(seed, "evaluation actions", *key)


def play_episodes(
    vector: Vector,
    policy: Policy,
    seeds: Sequence[int],
    rng: np.random.Generator,
    explore: bool,
    limits: EpisodeLimits,
    task: Any = None,
    watch: Watcher | None = None,
    progress: EpisodeProgress | None = None,
    info_metrics: Sequence[str] = (),
) -> Generator[None, None, EpisodeResults]:
    """Play one episode in each lane of `vector`, on these seeds. `info_metrics`: keys to read at the end of each.

    A generator, so that two vectors can take turns: it yields while its environments step.
    """
    lanes = vector.num_envs
    observations = vector.reset(np.ones(lanes, bool), seeds, None if task is None else [task] * lanes)
    playing = np.ones(lanes, bool)
    returns, lengths = np.zeros(lanes), np.zeros(lanes, np.int64)
    infos: list[list[float]] = [[math.nan] * len(info_metrics) for _ in range(lanes if info_metrics else 0)]
    truncated_here = 0
    state = policy.initial_state(lanes)
    if watch is not None:
        watch(None, np.zeros(lanes))
    if progress is not None and progress.on_reset is not None:
        progress.on_reset(_seen(observations, vector)[0])
    while playing.any() and (limits.total_steps is None or lengths.sum() < limits.total_steps):
        seen = None if progress is None or progress.on_step is None else _seen(observations, vector)
        actions, state, extras = policy.act(observations, state, vector.action_masks, explore, rng)
        env_actions = policy.to_env(actions)
        vector.begin(env_actions, playing)
        yield
        observations, rewards, terminated, truncated = vector.step(env_actions, playing)
        state = policy.with_rewards(state, rewards)
        returns += rewards * playing
        lengths += playing
        if watch is not None:
            watch(env_actions, rewards)
        stepped, too_long = playing, 0
        playing = stepped & ~(terminated | truncated)
        if limits.episode_steps is not None:
            in_time = playing & (lengths < limits.episode_steps)
            too_long = int(playing.sum() - in_time.sum())
            truncated_here, playing = truncated_here + too_long, in_time
        ended = stepped & ~playing
        if info_metrics:
            for lane in np.flatnonzero(ended).tolist():
                infos[lane] = info_numbers(vector, lane, info_metrics)
        if progress is not None:
            if seen is not None and progress.on_step is not None:
                cut = truncated | (ended & ~terminated)  # some by limits.episode_steps
                after, is_first = _seen(observations, vector), int(lengths.max()) == 1
                ends = np.array(rewards), np.array(terminated), cut  # a vector may write into the same arrays
                progress.on_step(Step(id(vector), is_first, *seen, actions, extras, *ends, *after, stepped))
            read = [infos[lane] for lane in np.flatnonzero(ended).tolist()] if infos else []
            progress.add(int(stepped.sum()), returns[ended].tolist(), lengths[ended].tolist(), too_long, read)
        if playing.any() and lengths.max() >= LONGEST_EPISODE:
            raise EnvError(
                f"an episode has not ended after {LONGEST_EPISODE:,} steps; set max_episode_steps, or for evaluations "
                "alone evaluation_max_episode_steps (outplay evaluate --max-episode-steps)"
            )
    steps, is_finished = int(lengths.sum()), not playing.any()
    return EpisodeResults(returns.tolist(), lengths.tolist(), steps, is_finished, truncated_here, infos)


def _seen(observations: Leaves, vector: Vector) -> tuple[Leaves, Array | None]:
    """(observations, action masks) as copies: a vector may write the next ones into the same arrays."""
    masks = vector.action_masks
    return tuple(np.array(leaf) for leaf in observations), None if masks is None else np.array(masks)
