"""The Fragment (experience of one EnvGroup) and the Batch (all Fragments of an iteration). Both consist of arrays.

Shapes: T steps, E lanes of one EnvGroup, N lanes of all EnvGroups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from outplay.spaces import Leaves

Array = np.ndarray
InitialState = Callable[[int], dict[str, Array]]  # for a number of lanes, as Policy.initial_state


@dataclass
class Fragment:
    """T steps × E lanes of experience from one EnvGroup.

    - `extras`: outputs of the policy per action: the distribution's parameters as "dist", and "value" if available.
    - `valid`: False where a lane waited for other lanes to end their episodes (`complete_episodes`).
    - `final_observations`: last observations of truncated episodes, for bootstrapping. Entry i belongs to step
      `final_steps[i]` of lane `final_lanes[i]`.
    - `policy_state`, `last_policy_state`: recurrent state before the first step and after the last step. Lanes where
      an episode starts at that point have the initial state. Empty for policies without recurrent state.
    - `inner_states`: recurrent states before steps `sequence_length`, 2 · `sequence_length`, …, where sequences start.
    - `final_states`: recurrent states before the final observations.
    """

    group: int
    version: int  # of the Weights that acted
    observations: Leaves  # (T, E, …) each
    actions: Array  # (T, E, …), before action scaling
    rewards: Array  # (T, E), neither scaled nor clipped
    terminated: Array  # (T, E)
    truncated: Array  # (T, E)
    valid: Array  # (T, E)
    episode_start: Array  # (T, E): the observation is an episode's first
    extras: dict[str, Array]  # (T, E, …) each
    last_observations: Leaves  # (E, …): after the last step
    final_observations: Leaves  # (K, …)
    final_steps: Array  # (K,)
    final_lanes: Array  # (K,)
    action_mask: Array | None = None  # (T, E, n): True where an action was allowed; None without action masks
    last_action_mask: Array | None = None  # (E, n): of last_observations
    final_action_mask: Array | None = None  # (K, n): of final_observations
    policy_state: dict[str, Array] = field(default_factory=dict)  # (E, …) each
    last_policy_state: dict[str, Array] = field(default_factory=dict)  # (E, …) each
    sequence_length: int | None = None
    inner_states: dict[str, Array] = field(default_factory=dict)  # (C, E, …) each
    final_states: dict[str, Array] = field(default_factory=dict)  # (K, …) each
    episode_returns: Array = field(default_factory=lambda: np.zeros(0))  # of the episodes that ended, in order
    episode_lengths: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    episode_tasks: list[Any] = field(default_factory=list)  # the task of each episode that ended
    episode_infos: Array = field(default_factory=lambda: np.zeros((0, 0)))  # (episodes, info_metrics); NaN: no value
    episodes: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (E,): index of each lane's episode
    running_returns: Array = field(default_factory=lambda: np.zeros(0))  # (E,): of episodes that have not ended
    running_lengths: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (E,)
    vector_state: dict[str, Any] | None = None  # after the last step, if the vector can be restored
    number: int = 0  # index of this Fragment in its EnvGroup
    updates: int = 0  # of the learner, before the Weights that acted
    task: Any = None  # of the episodes that started in this Fragment
    wrongly_rebuilt: int = 0  # lanes whose state differs from the original after a rebuild before this Fragment
    seconds: dict[str, float] = field(default_factory=dict)  # time per stage: act, step

    @property
    def steps(self) -> int:
        return int(self.valid.sum())


@dataclass
class Batch:
    """The Fragments of one iteration, concatenated along the lanes in EnvGroup order: T steps × N lanes."""

    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    episode_start: Array
    extras: dict[str, Array]
    last_observations: Leaves  # (N, …)
    final_observations: Leaves  # (K, …)
    final_steps: Array
    final_lanes: Array
    all_valid: bool
    action_mask: Array | None  # (T, N, n), or None where all actions are allowed
    last_action_mask: Array | None  # (N, n): of last_observations
    final_action_mask: Array | None  # (K, n): of final_observations
    policy_state: dict[str, Array]  # (N, …) each: recurrent state before the first step
    last_policy_state: dict[str, Array]  # (N, …) each: after the last step
    sequence_length: int | None
    final_states: dict[str, Array]  # (K, …) each: before the final observations
    fragments: list[Fragment] = field(repr=False)

    @cached_property
    def observations(self) -> Leaves:
        """(T, N, …) each. Concatenated on first access, since they are large."""
        leaves = range(len(self.fragments[0].observations))
        return tuple(_concatenate([f.observations[i] for f in self.fragments], len(self.rewards)) for i in leaves)

    def subsample(self, leaf: int, max_rows: int) -> Array:
        """About `max_rows` rows (at most) of one observation leaf, from all lanes."""
        every = -(-self.steps // max_rows)
        return np.concatenate([f.observations[leaf][::every][f.valid[::every]] for f in self.fragments])

    def observation_parts(self, leaf: int) -> list[Array]:
        """One observation leaf as a list of arrays (T, lanes, …), one per Fragment.

        For a learner that concatenates them on another device.
        """
        return [f.observations[leaf] for f in self.fragments]

    def parts(self) -> Iterator[tuple[Batch, slice]]:
        """Split the Batch by Fragment: (smaller Batch, its lanes in this Batch). Avoids copying all observations."""
        lane = 0
        for fragment in self.fragments:
            lanes = fragment.rewards.shape[1]
            yield join([fragment]), slice(lane, lane + lanes)
            lane += lanes

    @property
    def steps(self) -> int:
        return self.valid.size if self.all_valid else int(self.valid.sum())

    def rows(self, array: Array) -> Array:
        """Flatten a (T, N, …) array to rows, valid steps only."""
        flat = array.reshape(-1, *array.shape[2:])
        return flat if self.all_valid else flat[self.valid.reshape(-1)]

    def observation_rows(self) -> Leaves:
        return tuple(self.rows(leaf) for leaf in self.observations)

    def sequences(self, initial_state: InitialState | None = None) -> Sequences:
        """The valid steps as sequences for a recurrent policy, lane by lane, in time order.

        A sequence starts where an episode starts, and every `sequence_length` steps of the Fragment. `initial_state` is
        `Policy.initial_state`; default: zeros.
        """
        steps, lanes = self.valid.shape
        valid, starts = self.valid.T.ravel(), self.episode_start.T.ravel()  # one lane after the other
        times = np.tile(np.arange(steps), lanes)
        begins = valid & (starts | (times % (self.sequence_length or steps) == 0))
        rows = np.flatnonzero(valid)
        first = np.flatnonzero(begins)
        sequence = np.cumsum(begins)[rows] - 1
        return Sequences(
            steps=times[rows],
            lanes=rows // steps,
            lengths=np.bincount(sequence, minlength=len(first)),
            policy_state=self._states_at(times[first], first // steps, starts[first], initial_state),
        )

    def _states_at(
        self, times: Array, lanes: Array, starts: Array, initial_state: InitialState | None
    ) -> dict[str, Array]:
        """The recurrent state before these steps, where sequences start."""
        initial = {} if initial_state is None else initial_state(len(times))
        found = {}
        at_first, inside = times == 0, (times > 0) & ~starts
        for name, array in self.policy_state.items():
            found[name] = np.array(initial[name]) if initial else np.zeros((len(times), *array.shape[1:]), array.dtype)
            found[name][at_first] = array[lanes[at_first]]
            if inside.any():
                assert self.sequence_length is not None
                none = [np.zeros((0, f.rewards.shape[1], *array.shape[1:]), array.dtype) for f in self.fragments]
                inner = [f.inner_states.get(name, empty) for f, empty in zip(self.fragments, none, strict=True)]
                joined = _concatenate(inner, max(map(len, inner)))
                found[name][inside] = joined[times[inside] // self.sequence_length - 1, lanes[inside]]
        return found


@dataclass(frozen=True)
class Sequences:
    """The valid steps of a Batch, one sequence after another.

    >>> sequences = batch.sequences()
    >>> actions = sequences.take(batch.actions)  # (B, …): the rows of the first sequence, of the second, …
    >>> actions[: sequences.lengths[0]]  # the first sequence
    """

    steps: Array  # (B,): of the Batch
    lanes: Array  # (B,): of the Batch
    lengths: Array  # (S,): steps of each sequence
    policy_state: dict[str, Array]  # (S, …) each: recurrent state before the sequence

    def take(self, array: Array) -> Array:
        """A (T, N, …) array of the Batch as rows (B, …)."""
        taken: Array = array[self.steps, self.lanes]
        return taken


def join(fragments: list[Fragment]) -> Batch:
    """Concatenate Fragments along the lanes. Shorter Fragments are padded with steps that are not valid."""
    steps = max(len(f.rewards) for f in fragments)
    offsets = np.cumsum([0, *(f.rewards.shape[1] for f in fragments)])

    def side_by_side(name: str) -> Array:
        return _concatenate([getattr(f, name) for f in fragments], steps)

    valid = side_by_side("valid")
    return Batch(
        actions=side_by_side("actions"),
        rewards=side_by_side("rewards"),
        terminated=side_by_side("terminated"),
        truncated=side_by_side("truncated"),
        valid=valid,
        episode_start=side_by_side("episode_start"),
        extras={name: _concatenate([f.extras[name] for f in fragments], steps) for name in fragments[0].extras},
        last_observations=_stack([f.last_observations for f in fragments]),
        final_observations=_stack([f.final_observations for f in fragments]),
        final_steps=np.concatenate([f.final_steps for f in fragments]),
        final_lanes=np.concatenate([f.final_lanes + offset for f, offset in zip(fragments, offsets[:-1], strict=True)]),
        all_valid=bool(valid.all()),
        action_mask=None if fragments[0].action_mask is None else side_by_side("action_mask"),
        last_action_mask=_rows_of([f.last_action_mask for f in fragments]),
        final_action_mask=_rows_of([f.final_action_mask for f in fragments]),
        policy_state=_by_lane([f.policy_state for f in fragments]),
        last_policy_state=_by_lane([f.last_policy_state for f in fragments]),
        sequence_length=fragments[0].sequence_length,
        final_states=_by_lane([f.final_states for f in fragments if len(f.final_steps)]),
        fragments=fragments,
    )


def _concatenate(arrays: list[Array], steps: int) -> Array:
    if all(len(array) == steps for array in arrays):
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
    lanes = sum(array.shape[1] for array in arrays)
    joined = np.zeros((steps, lanes, *arrays[0].shape[2:]), arrays[0].dtype)
    lane = 0
    for array in arrays:
        joined[: len(array), lane : lane + array.shape[1]] = array
        lane += array.shape[1]
    return joined


def _stack(parts: list[Leaves]) -> Leaves:
    return tuple(np.concatenate([part[i] for part in parts]) for i in range(len(parts[0])))


def _rows_of(masks: list[Array | None]) -> Array | None:
    found = [mask for mask in masks if mask is not None]
    return np.concatenate(found) if found else None


def _by_lane(states: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([state[name] for state in states]) for name in states[0]} if states else {}
