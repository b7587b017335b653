"""The Recorder fills a Fragment step by step; `check_values` rejects invalid numbers in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outplay import spaces
from outplay.envs.vector import Array, Vector
from outplay.errors import EnvError, shortened
from outplay.fragments import Fragment
from outplay.spaces import Leaves


class Recorder:
    """The arrays of a Fragment under construction. They grow if an episode is longer than expected."""

    def __init__(
        self,
        vector: Vector,
        group: int,
        steps: int,
        complete: bool,
        sequence_length: int | None,
        info_metrics: Sequence[str] = (),
    ) -> None:
        self.vector = vector
        self.group = group
        self.complete = complete
        self.size = steps
        self.lanes = vector.num_envs
        self.observations = tuple(np.empty((steps, self.lanes, *leaf.shape), leaf.dtype) for leaf in vector.leaves)
        self.rewards = np.empty((steps, self.lanes), np.float32)
        self.terminated = np.zeros((steps, self.lanes), bool)
        self.truncated = np.zeros((steps, self.lanes), bool)
        self.valid = np.ones((steps, self.lanes), bool)
        self.episode_start = np.zeros((steps, self.lanes), bool)
        self.actions: Array | None = None
        self.extras: dict[str, Array] = {}
        self.action_mask: Array | None = None
        self.sequence_length = sequence_length
        self.states: list[dict[str, Array]] = []  # recurrent states before steps 0, sequence_length, …
        self.final_states: list[dict[str, Array]] = []  # one row for each of `finals`
        self.finals: list[tuple[int, int, Leaves]] = []
        self.final_masks: list[Array] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.info_metrics = info_metrics
        self.infos: list[list[float]] = []

    def before(
        self,
        t: int,
        observations: Leaves,
        mask: Array | None,
        playing: Array,
        starts: Array,
        state: dict[str, Array],
    ) -> None:
        if t == self.size:
            self._grow()
        if t == 0 or (self.sequence_length is not None and t % self.sequence_length == 0):
            self.states.append({name: np.array(array) for name, array in state.items()})
        for array, leaf in zip(self.observations, observations, strict=True):
            array[t] = leaf
        if mask is not None:
            if self.action_mask is None:
                self.action_mask = np.empty((self.size, *mask.shape), bool)
            self.action_mask[t] = mask
        self.episode_start[t] = starts
        if self.complete:
            self.valid[t] = playing

    def after(
        self, t: int, actions: Array, extras: dict[str, Array], rewards: Array, terminated: Array, truncated: Array
    ) -> None:
        if self.actions is None:
            self.actions = np.empty((self.size, *actions.shape), actions.dtype)
            self.extras = {name: np.empty((self.size, *array.shape), array.dtype) for name, array in extras.items()}
        self.actions[t] = actions
        for name, array in extras.items():
            self.extras[name][t] = array
        self.rewards[t] = rewards
        self.terminated[t] = terminated
        self.truncated[t] = truncated

    def ended(
        self,
        t: int,
        lanes: Array,
        observations: Leaves,
        returns: Array,
        lengths: Array,
        state: dict[str, Array],
    ) -> None:
        for lane in lanes:
            self.returns.append(float(returns[lane]))
            self.lengths.append(int(lengths[lane]))
            if self.info_metrics:
                self.infos.append(info_numbers(self.vector, int(lane), self.info_metrics))
            if self.truncated[t, lane] and not self.terminated[t, lane]:
                self.finals.append((t, int(lane), tuple(np.array(leaf[lane]) for leaf in observations)))
                self.final_states.append({name: np.array(array[lane]) for name, array in state.items()})
                if self.vector.action_masks is not None:
                    self.final_masks.append(np.array(self.vector.action_masks[lane]))

    def _grow(self) -> None:
        def doubled(array: Array) -> Array:
            larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
            larger[: len(array)] = array
            return larger

        self.size *= 2
        self.observations = tuple(doubled(array) for array in self.observations)
        for name in ("rewards", "terminated", "truncated", "valid", "episode_start", "actions"):
            setattr(self, name, doubled(getattr(self, name)))
        self.extras = {name: doubled(array) for name, array in self.extras.items()}
        self.action_mask = None if self.action_mask is None else doubled(self.action_mask)

    def finish(
        self,
        t: int,
        version: int,
        last: Leaves,
        last_state: dict[str, Array],
        episodes: Array,
        vector_state: dict[str, Any] | None,
    ) -> Fragment:
        assert self.actions is not None
        masks = self.vector.action_masks
        finals = spaces.empty(self.vector.leaves, len(self.finals))
        for row, (_, _, observation) in enumerate(self.finals):
            for array, leaf in zip(finals, observation, strict=True):
                array[row] = leaf
        return Fragment(
            group=self.group,
            version=version,
            observations=tuple(array[:t] for array in self.observations),
            actions=self.actions[:t],
            rewards=self.rewards[:t],
            terminated=self.terminated[:t],
            truncated=self.truncated[:t],
            valid=self.valid[:t],
            episode_start=self.episode_start[:t],
            extras={name: array[:t] for name, array in self.extras.items()},
            last_observations=tuple(np.array(leaf) for leaf in last),
            final_observations=finals,
            final_steps=np.array([step for step, _, _ in self.finals], np.int64),
            final_lanes=np.array([lane for _, lane, _ in self.finals], np.int64),
            action_mask=None if self.action_mask is None else self.action_mask[:t],
            policy_state=self.states[0],
            sequence_length=self.sequence_length,
            inner_states=_stacked(self.states[1:]),
            final_states=_stacked(self.final_states),
            last_action_mask=None if masks is None else np.array(masks),
            final_action_mask=None if masks is None else np.array(self.final_masks, bool).reshape(-1, masks.shape[1]),
            last_policy_state={name: np.array(array) for name, array in last_state.items()},
            episode_returns=np.array(self.returns, np.float64),
            episode_lengths=np.array(self.lengths, np.int64),
            episode_infos=np.array(self.infos, np.float64).reshape(len(self.returns), len(self.info_metrics)),
            episodes=np.array(episodes),
            vector_state=vector_state,
        )


def _stacked(states: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.stack([state[name] for state in states]) for name in states[0]} if states else {}


def info_numbers(vector: Vector, lane: int, keys: Sequence[str]) -> list[float]:
    """The values of `info_metrics` at the last step of a lane; NaN where there is none."""
    info = vector.info(lane)
    return [info_number(info, key, vector.name) for key in keys]


def info_number(info: Mapping[str, Any], key: str, env: str) -> float:
    """`info[key]` as a float; NaN if there is none. "a/b" is info["a"]["b"], unless there is a key "a/b"."""
    value: Any = info
    for part in [key] if key in info else key.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return math.nan
        value = value[part]
    if isinstance(value, (int, float, np.number, np.bool_)) or (isinstance(value, np.ndarray) and value.size == 1):
        try:
            return float(np.asarray(value).reshape(()))
        except (TypeError, ValueError, OverflowError):
            pass
    raise EnvError(
        f"environment {env!r}: info_metrics has {key!r}, but info[{key!r}] at the end of an episode is "
        f"{shortened(repr(value))}, not a number"
    )


def check_values(fragment: Fragment, vector: Vector, began: Array, fresh: Array) -> None:
    """Raise EnvError if an observation or reward is not finite, or not in its space. The message says where.

    `began` (E,): length of each lane's episode when the Fragment started. `fresh` (E,): True where the last observation
    is the first one of an episode.
    """
    for i, leaf in enumerate(vector.leaves):
        if (wrong := spaces.invalid_value(leaf, fragment.observations[i])) is not None:
            (t, lane, *index), problem = wrong
            _raise_invalid(fragment, vector, lane, _steps_before(fragment, began, t, lane), leaf, index, problem)
        if (wrong := spaces.invalid_value(leaf, fragment.final_observations[i])) is not None:
            (row, *index), problem = wrong
            t, lane = int(fragment.final_steps[row]), int(fragment.final_lanes[row])
            _raise_invalid(fragment, vector, lane, _steps_before(fragment, began, t, lane) + 1, leaf, index, problem)
        if (wrong := spaces.invalid_value(leaf, fragment.last_observations[i])) is not None:
            (lane, *index), problem = wrong
            last = _steps_before(fragment, began, len(fragment.rewards) - 1, lane) + 1
            _raise_invalid(fragment, vector, lane, 0 if fresh[lane] else last, leaf, index, problem)
    if len(not_finite := np.argwhere(~np.isfinite(fragment.rewards))):
        t, lane = not_finite[0].tolist()
        problem = f"is {fragment.rewards[t, lane]}; all observations and rewards must be finite"
        _raise_invalid(fragment, vector, lane, _steps_before(fragment, began, t, lane) + 1, None, [], problem)


def _steps_before(fragment: Fragment, began: Array, t: int, lane: int) -> int:
    """The length of the lane's episode before step `t` of the Fragment."""
    starts = np.flatnonzero(fragment.episode_start[: t + 1, lane])
    return t - int(starts[-1]) if len(starts) else int(began[lane]) + t


def _raise_invalid(
    fragment: Fragment,
    vector: Vector,
    lane: int,
    step: int,
    leaf: spaces.Leaf | None,
    index: list[int],
    problem: str,
) -> None:
    what = "a reward" if leaf is None else f"an {spaces.element(leaf, tuple(index))}"
    when = f"step {step} of an episode" if step else "reset()"
    raise EnvError(
        f"environment {vector.name!r}: {when} returned {what} that {problem} (EnvGroup {fragment.group}, lane {lane})"
    )
