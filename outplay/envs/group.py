"""The EnvGroup: a fixed number of environments stepped together, and the GroupState that rebuilds it.

The seed of an episode is derived from (run seed, EnvGroup, lane, episode). A Collector updates a `GroupState` from the
Fragments that it receives. With the `GroupState`, any process can rebuild the EnvGroup.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from outplay.envs.recorder import Recorder, check_values
from outplay.envs.vector import Array, Vector
from outplay.errors import CheckpointError, EnvError
from outplay.fragments import Fragment
from outplay.spaces import Leaves
from outplay.streams import seed_for, stream

T = TypeVar("T")
PolicyState = dict[str, Array]  # recurrent state by name, (E, …) each; empty for a policy without one

# A rebuilt environment replays the actions of its episode. Longer episodes are not recorded: memory and time.
LONGEST_REPLAY = 100_000
LONGEST_EPISODE = 200_000  # steps; where whole episodes are collected or evaluated


class Actor(Protocol):
    """The methods of a policy that an EnvGroup calls."""

    def act(
        self,
        observations: Leaves,
        state: PolicyState,
        mask: Array | None,
        explore: bool,
        rng: np.random.Generator,
    ) -> tuple[Array, PolicyState, dict[str, Array]]: ...

    def to_env(self, actions: Array) -> Array: ...

    def initial_state(self, lanes: int) -> PolicyState: ...

    def with_rewards(self, state: PolicyState, rewards: Array) -> PolicyState: ...

    @property
    def sequence_length(self) -> int | None: ...


@dataclass
class GroupState:
    """Everything needed to rebuild an EnvGroup: either the state of its vector, or the episode and actions per lane."""

    lanes: int
    fragments: int = 0  # Fragments collected so far; keys the random stream of the actions
    episodes: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (E,): index of each lane's episode
    returns: Array = field(default_factory=lambda: np.zeros(0))  # (E,): of the running episodes, so far
    lengths: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (E,): of the running episodes, so far
    actions: list[list[Array]] = field(default_factory=list)  # of each lane's episode: arrays (steps, …) to concatenate
    vector: dict[str, Any] | None = None  # Vector.get_state(); None if actions are replayed
    marks: list[int] = field(default_factory=list)  # checksum of each lane's last observation, to verify a rebuild
    policy_state: PolicyState = field(default_factory=dict)  # recurrent state after the last Fragment
    task: Any = None  # of the next episodes
    tasks: list[Any] = field(default_factory=list)  # of each lane's running episode

    def __post_init__(self) -> None:
        if not len(self.episodes):
            self.episodes = np.zeros(self.lanes, np.int64)
            self.returns = np.zeros(self.lanes)
            self.lengths = np.zeros(self.lanes, np.int64)
        self.actions = self.actions or [[] for _ in range(self.lanes)]
        self.tasks = self.tasks or [self.task] * self.lanes

    def advanced(self, fragment: Fragment, env_actions: Array, complete: bool) -> GroupState:
        """The state after a Fragment. `env_actions` are its actions as the environment received them.

        Returns a new object. The old one does not change, so a rollback can use it.
        """
        after = replace(self, fragments=self.fragments + 1, episodes=fragment.episodes, vector=fragment.vector_state)
        after.policy_state = {} if complete else fragment.last_policy_state
        if complete:  # the next Fragment starts with new episodes
            return after
        after.returns, after.lengths = fragment.running_returns, fragment.running_lengths
        if after.vector is not None:
            return after
        after.marks = checksums(fragment.last_observations)
        began = after.episodes != self.episodes
        after.tasks = [fragment.task if began[lane] else self.tasks[lane] for lane in range(self.lanes)]
        after.actions = []
        for lane in range(self.lanes):
            pieces = [] if began[lane] else self.actions[lane]
            first = max(0, len(env_actions) - int(after.lengths[lane]))
            recorded = after.lengths[lane] <= LONGEST_REPLAY
            after.actions.append([*pieces, np.array(env_actions[first:, lane])] if recorded else [])
        return after

    @property
    def is_exact(self) -> bool:
        """Whether a rebuilt EnvGroup continues exactly: no running episode is too long to replay."""
        return self.vector is not None or bool((self.lengths <= LONGEST_REPLAY).all())


def checksums(observations: Leaves) -> list[int]:
    """A checksum (CRC-32) of each lane's observation."""
    lanes = len(observations[0])
    marks = [0] * lanes
    for leaf in observations:
        marks = [zlib.crc32(np.ascontiguousarray(leaf[lane]).tobytes(), mark) for lane, mark in enumerate(marks)]
    return marks


class EnvGroup:
    """Collects Fragments from its environments.

    >>> group = EnvGroup(make_vector(spec, 8), index=0, seed=7)
    >>> fragment = group.collect(policy, steps=32, explore=True, version=1)
    """

    def __init__(
        self,
        vector: Vector,
        index: int,
        seed: int,
        state: GroupState | None = None,
        info_metrics: Sequence[str] = (),
    ) -> None:
        self.vector = vector
        self.info_metrics = info_metrics
        self.index = index
        self.seed = seed
        lanes = vector.num_envs
        state = state or GroupState(lanes)
        self._fragments = state.fragments
        self._episodes = np.array(state.episodes)
        self._returns = np.array(state.returns, np.float64)
        self._lengths = np.array(state.lengths)
        self._policy_state = {name: np.array(array) for name, array in state.policy_state.items()}
        self._task = state.task
        self._tasks = list(state.tasks)  # of each lane's running episode
        self._expected = 0  # with complete episodes: estimated steps of the next Fragment
        self._starts = np.ones(lanes, bool)
        self._observations: Leaves = ()
        self.wrongly_rebuilt: list[int] = []  # lanes whose state differs from the original after a rebuild
        if state.fragments:
            self._rebuild(state)
        else:
            self._reset(np.arange(lanes), state.tasks)

    def _seeds(self, lanes: Array, back: int = 0) -> list[int | None]:
        """Seeds of these lanes' episodes, or of the episodes `back` before. None if an earlier seed determines it."""
        every = self.vector.episodes_per_seed
        episodes = [(int(lane), int(self._episodes[lane]) - back) for lane in lanes]
        return [
            seed_for(self.seed, "episode", self.index, lane, number) if number % every == 0 else None
            for lane, number in episodes
        ]

    def _rebuild(self, state: GroupState) -> None:
        """Restore the environments: set the state of the vector, or replay the running episodes."""
        self._starts = self._lengths == 0
        if state.vector is not None:
            try:
                self._observations = self.vector.set_state(state.vector)
            except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
                raise CheckpointError(f"the saved state of EnvGroup {self.index} is not valid: {error}") from error
            return
        logs = [np.concatenate(pieces) if pieces else np.zeros(0) for pieces in state.actions]
        for lane in range(len(logs)):
            if len(logs[lane]) != self._lengths[lane]:  # the episode was too long to be recorded
                logs[lane] = logs[lane][:0]
                self._skip_to_next_episode(lane)
        left = np.array([len(log) for log in logs])
        longest = int(left.max())
        self._replay_resets(np.arange(len(logs)))
        self._reset(np.arange(len(logs)), state.tasks)
        # Native vectors can only step all lanes. So all lanes end their replay at the same step, and a lane with fewer
        # steps starts later. Its steps before that are ignored.
        for steps in range(longest, 0, -1):
            if steps < longest and len(beginning := np.flatnonzero(left == steps)):
                self._replay_resets(beginning)
                self._reset(beginning, state.tasks)
            if not (left >= steps).any():
                continue
            template = next(log for log in logs if len(log) >= steps)[0]
            actions = np.stack([log[len(log) - steps] if len(log) >= steps else template for log in logs])
            self._observations, _, terminated, truncated = self.vector.step(actions, left >= steps)
            for lane in np.flatnonzero((terminated | truncated) & (left >= steps)).tolist():
                # The replay ended, but the original episode did not: the environment is not deterministic.
                logs[lane], left[lane] = logs[lane][:0], 0
                self._skip_to_next_episode(lane)
        if longest and len(fresh := np.flatnonzero(left == 0)):
            self._replay_resets(fresh)
            self._reset(fresh, state.tasks)
        now = checksums(self._observations)
        self.wrongly_rebuilt += [lane for lane in np.flatnonzero(left).tolist() if now[lane] != state.marks[lane]]

    def _skip_to_next_episode(self, lane: int) -> None:
        """Give up an episode that cannot be replayed: the lane starts its next one."""
        self._episodes[lane] += 1
        self._returns[lane], self._lengths[lane], self._starts[lane] = 0.0, 0, True
        self.wrongly_rebuilt.append(lane)

    def _reset(self, lanes: Array, tasks: Sequence[Any] | None = None) -> None:
        """Start the current episodes of these lanes. `tasks` has one entry per lane of the whole group."""
        mask = np.zeros(self.vector.num_envs, bool)
        mask[lanes] = True
        chosen = None if tasks is None else [tasks[lane] for lane in lanes]
        self._observations = self.vector.reset(mask, self._seeds(lanes), chosen)

    def _replay_resets(self, lanes: Array) -> None:
        """Repeat the resets since the last seed of these lanes, if one seed determines several episodes."""
        for back in range(self.vector.episodes_per_seed - 1, 0, -1):
            earlier = lanes[self._episodes[lanes] % self.vector.episodes_per_seed >= back]
            if len(earlier):
                mask = np.zeros(self.vector.num_envs, bool)
                mask[earlier] = True
                self.vector.reset(mask, self._seeds(earlier, back))

    def set_task(self, task: Any) -> None:
        """Set the task of episodes that start from now on."""
        self._task = task

    def collect(self, policy: Actor, steps: int, explore: bool, version: int, complete: bool = False) -> Fragment:
        """Collect at least `steps` steps in every lane. With `complete`, continue until all running episodes end."""
        return interleave([self.collect_interleaved(policy, steps, explore, version, complete)])[0]

    def collect_interleaved(
        self, policy: Actor, steps: int, explore: bool, version: int, complete: bool = False
    ) -> Generator[None, None, Fragment]:
        """`collect` as a generator for `interleave`: it yields while its environments step in the background."""
        # With complete episodes, the length of the last Fragment is the estimate for this one.
        most = max(steps, self._expected if complete else 0)
        rng = stream(self.seed, "actions", self.index, self._fragments)
        began = self._lengths.copy()
        playing = np.ones(self.vector.num_envs, bool)
        if complete and self._fragments:
            self._next_episodes(np.arange(self.vector.num_envs))
        initial = policy.initial_state(self.vector.num_envs)
        state = self._state_at_start(initial)
        recorder = Recorder(self.vector, self.index, most, complete, policy.sequence_length, self.info_metrics)
        act_seconds = step_seconds = 0.0
        ended_tasks: list[Any] = []
        t = 0
        while t < steps or (complete and playing.any()):
            mask = self.vector.action_masks
            recorder.before(t, self._observations, mask, playing, self._starts, state)
            clock = time.perf_counter()
            actions, state, extras = policy.act(self._observations, state, mask, explore, rng)
            env_actions = policy.to_env(actions)
            self.vector.begin(env_actions, playing if complete else None)
            act_seconds += time.perf_counter() - clock
            yield
            clock = time.perf_counter()
            self._observations, rewards, terminated, truncated = self.vector.step(
                env_actions, playing if complete else None
            )
            step_seconds += time.perf_counter() - clock
            recorder.after(t, actions, extras, rewards, terminated, truncated)
            state = policy.with_rewards(state, rewards)
            with np.errstate(over="ignore", invalid="ignore"):  # rewards that are not finite are refused by name
                self._returns += rewards
            self._lengths += 1
            self._starts = (terminated | truncated) & playing
            t += 1
            if self._starts.any():
                ended = np.flatnonzero(self._starts)
                recorder.ended(t - 1, ended, self._observations, self._returns, self._lengths, state)
                ended_tasks += [self._tasks[lane] for lane in ended]
                if complete and t >= steps:
                    playing[ended] = False  # the next Fragment starts with a new episode
                else:
                    self._next_episodes(ended)
                    state = _reset_rows(state, initial, ended)
            if complete and t >= LONGEST_EPISODE and (self._lengths * playing).max() >= LONGEST_EPISODE:
                raise EnvError(
                    f"an episode has not ended after {LONGEST_EPISODE:,} steps, and batch_mode is complete_episodes; "
                    "set max_episode_steps"
                )
        self._expected = t * 5 // 4
        self._policy_state = state
        fragment = recorder.finish(t, version, self._observations, state, self._episodes, self.vector.get_state())
        fragment.running_returns, fragment.running_lengths = self._returns.copy(), self._lengths.copy()
        check_values(fragment, self.vector, began, self._starts)
        fragment.seconds = {"act": act_seconds, "step": step_seconds}
        fragment.number, fragment.task, fragment.episode_tasks = self._fragments, self._task, ended_tasks
        self._fragments += 1
        fragment.wrongly_rebuilt, self.wrongly_rebuilt = len(self.wrongly_rebuilt), []
        return fragment

    def _state_at_start(self, initial: PolicyState) -> PolicyState:
        """The recurrent state before the next Fragment. Lanes where an episode starts have the initial state."""
        if not initial:
            return {}
        for name, array in initial.items():
            if array.dtype.hasobject:
                raise TypeError(f"the recurrent state {name!r} of the policy has dtype object, which cannot be saved")
        if self._policy_state.keys() != initial.keys():  # the first Fragment
            return _reset_rows(initial, initial, np.arange(self.vector.num_envs))
        return _reset_rows(self._policy_state, initial, np.flatnonzero(self._starts))

    def _next_episodes(self, lanes: Array) -> None:
        self._episodes[lanes] += 1
        self._returns[lanes] = 0.0
        self._lengths[lanes] = 0
        self._starts[lanes] = True
        for lane in lanes:
            self._tasks[lane] = self._task
        self._reset(lanes, None if self._task is None else [self._task] * self.vector.num_envs)

    def close(self) -> None:
        self.vector.close()


def _reset_rows(state: PolicyState, initial: PolicyState, lanes: Array) -> PolicyState:
    """`state` with the initial state in the rows of these lanes."""
    fresh = {name: np.array(array) for name, array in state.items()}
    for name, array in fresh.items():
        array[lanes] = initial[name][lanes]
    return fresh


def interleave(players: list[Generator[None, None, T]]) -> list[T]:
    """Run generators in turns, each until its next yield. Returns their results in order.

    While the environments of one EnvGroup step in the background, the policy acts for the next one.
    """
    results: dict[int, T] = {}
    while len(results) < len(players):
        for i, player in enumerate(players):
            if i not in results:
                try:
                    next(player)
                except StopIteration as end:
                    results[i] = end.value
    return [results[i] for i in range(len(players))]
